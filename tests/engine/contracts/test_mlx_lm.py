"""What lmx replaces in classes of mlx-lm: that it is there."""

import pytest

from tests.support.references.private_parts import PARTS, Part, find

pytestmark = pytest.mark.engine
LIBRARY = "mlx-lm"


@pytest.mark.parametrize("part", PARTS[LIBRARY], ids=lambda part: part.where)
def test_it_is_there(part: Part) -> None:
    assert find(LIBRARY, part) is not None
