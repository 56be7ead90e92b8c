"""Trees of Python source while garbage is collected."""

import ast
import gc
import inspect
import traceback
from collections.abc import Iterator

import pytest

from lmx.protocol.host.python_source import python_tree, python_value


class _Garbage:
    """Prints a traceback when it is collected. Python 3.11 reads source as a tree for that."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        try:
            _ = [1][0] + {"b": 1}["a"]
        except KeyError as error:
            traceback.format_exception(error)


@pytest.fixture
def collected_often() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(50)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("collected_often")
def test_garbage_that_prints_a_traceback_does_not_spoil_a_tree() -> None:
    source = inspect.getsource(ast)
    for _ in range(5):
        _Garbage()
        assert python_tree(source).body
        _Garbage()
        assert python_value(str([[n] for n in range(200)]))[-1] == [199]
    assert gc.isenabled()
