"""Makes the methods of dataclasses when they are first used, instead of when a module is imported.

A dataclass writes the source text of ``__init__``, ``__eq__``, ``__repr__``, ``__hash__`` and, if
it is frozen, two more methods, and compiles each of them: 0.5 ms for a class, and each process of
lmx imports two to five hundred of them, its libraries' included, most of which it never makes an
object of. See ``docs/decisions/imports.md``.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_WRITE_FUNCTION: Final = "_create_fn"
"""What writes and compiles a method in Python 3.11 and 3.12."""
_FUNCTIONS: Final = "_FuncBuilder"
"""What collects the methods of a class, and compiles them together, from Python 3.13 on."""


@contextmanager
def methods_at_first_use() -> Iterator[None]:
    """Give the dataclasses that are defined within the block such methods. They behave as others
    do, and so do their signatures. A Python whose dataclasses are made in a third way makes them as
    ever."""
    parts = vars(dataclasses)
    if _WRITE_FUNCTION in parts:
        owner, name, later = dataclasses, _WRITE_FUNCTION, _later(parts[_WRITE_FUNCTION])
    elif _FUNCTIONS in parts and hasattr(parts[_FUNCTIONS], "add_fns_to_class"):
        owner, name = parts[_FUNCTIONS], "add_fns_to_class"
        later = _all_later(getattr(owner, name))
    else:
        yield
        return
    before = getattr(owner, name)
    setattr(owner, name, later)
    try:
        yield
    finally:
        setattr(owner, name, before)


class _Method:
    """Stands in a class for a method, until it is used: then the method takes its place."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.__name__ = name
        self._make = functools.cache(make)

    def __get__(self, instance: object, owner: type) -> Any:
        method = self._make()
        for each in owner.__mro__:
            if each.__dict__.get(self.__name__) is self:
                method.__qualname__ = f"{each.__qualname__}.{self.__name__}"
                setattr(each, self.__name__, method)
        return method if instance is None else method.__get__(instance, owner)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What wraps the method calls it: ``__repr__`` is wrapped for classes that hold
        themselves."""
        return self._make()(*arguments, **named)


def _later(write: Callable[..., Any]) -> Callable[..., Any]:
    def written(name: str, *arguments: Any, **named: Any) -> _Method:
        return _Method(name, lambda: write(name, *arguments, **named))

    return written


def _all_later(add: Callable[[Any, type], None]) -> Callable[[Any, type], None]:
    def added(functions: Any, cls: type) -> None:
        for name, source in zip(functions.names, functions.src, strict=True):
            always = functions.unconditional_adds.get(name, False)
            if always or name not in cls.__dict__:
                setattr(cls, name, _Method(name, _one(functions, name, source)))
            elif functions.overwrite_errors.get(name):
                add(functions, cls)  # It raises what it has always raised.

    def _one(functions: Any, name: str, source: str) -> Callable[[], Any]:
        def make() -> Any:
            alone = copy.copy(functions)
            alone.names, alone.src, alone.unconditional_adds = [name], [source], {name: True}
            holder = type("holder", (), {})
            add(alone, holder)
            return vars(holder)[name]

        return make

    return added
