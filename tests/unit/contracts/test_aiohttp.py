"""What lmx uses of aiohttp beyond its documentation."""

import pytest

from tests.support.references.private_parts import PARTS, Part, find

LIBRARY = "aiohttp"


@pytest.mark.parametrize("part", PARTS[LIBRARY], ids=lambda part: part.where)
def test_it_is_there(part: Part) -> None:
    assert find(LIBRARY, part) is not None
