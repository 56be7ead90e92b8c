"""What lmx uses of gguf: no more than its reader."""

import pytest

from tests.support.references.private_parts import PARTS, Part, find

LIBRARY = "gguf"


@pytest.mark.parametrize("part", PARTS[LIBRARY], ids=lambda part: part.where)
def test_it_is_there(part: Part) -> None:
    assert find(LIBRARY, part) is not None
