"""What lmx uses of libraries that they promise nobody is there: those of MLX."""

import pytest

from tests.support.references.private_parts import PARTS, Part, find

LIBRARIES = ("mlx", "mlx-audio", "mlx-lm", "mlx-vlm")


@pytest.mark.parametrize(
    ("library", "part"),
    [(library, part) for library in LIBRARIES for part in PARTS[library]],
    ids=lambda value: value.where if isinstance(value, Part) else value,
)
def test_it_is_there(library: str, part: Part) -> None:
    assert find(library, part) is not None
