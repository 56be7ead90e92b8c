"""What lmx uses of libraries that they promise nobody is there."""

import pytest

from tests.support.references.private_parts import PARTS, Part, find


@pytest.mark.parametrize(
    ("library", "part"),
    [(library, part) for library, parts in PARTS.items() for part in parts],
    ids=lambda value: value.where if isinstance(value, Part) else value,
)
def test_it_is_there(library: str, part: Part) -> None:
    assert find(library, part) is not None
