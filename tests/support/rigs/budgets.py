"""How many examples a property is tried with: a part in `make test`, all in `make fuzz`."""

import os
from typing import Final

WHOLE: Final = os.environ.get("LMX_TEST_EXAMPLES") == "whole"
_SHARE: Final = 8
_FEWEST: Final = 10


def examples(whole: int) -> int:
    """Return ``whole``; in `make test` an eighth of it, and 10 at least."""
    return whole if WHOLE else min(whole, max(_FEWEST, whole // _SHARE))
