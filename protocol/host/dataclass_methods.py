"""Makes the methods of dataclasses when they are first used, instead of when a module is imported.

A dataclass writes the source text of ``__init__``, ``__eq__``, ``__repr__``, ``__hash__`` and, if
it is frozen, two more methods, and compiles each of them; one without a docstring gets its
signature as one. That is 0.5 ms for a class, and each process of lmx imports two to five hundred of
them, its libraries' included, most of which it never makes an object of. See
``docs/decisions/imports.md``.
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_WRITE_FUNCTION: Final = "_create_fn"
"""What writes and compiles a method in Python 3.11 and 3.12."""
_FUNCTIONS: Final = "_FuncBuilder"
"""What collects the methods of a class, and compiles them together, from Python 3.13 on."""
_PROCESS: Final = "_process_class"
"""What makes a class a dataclass."""


@contextmanager
def methods_at_first_use() -> Iterator[None]:
    """Give the dataclasses that are defined within the block such methods, and such docstrings.
    They behave as others do, and so do their signatures. A Python whose dataclasses are made in
    another way makes them as ever."""
    parts = vars(dataclasses)
    replaced: list[tuple[Any, str, Any]] = []
    if _WRITE_FUNCTION in parts:
        replaced.append((dataclasses, _WRITE_FUNCTION, _later(parts[_WRITE_FUNCTION])))
        for name, write in _WRITERS.items():
            if name in parts:
                replaced.append((dataclasses, name, write(parts[name])))
    elif _FUNCTIONS in parts and hasattr(parts[_FUNCTIONS], "add_fns_to_class"):
        builder = parts[_FUNCTIONS]
        replaced.append((builder, "add_fns_to_class", _all_later(builder.add_fns_to_class)))
    if replaced and _PROCESS in parts:
        replaced.append((dataclasses, _PROCESS, _described_later(parts[_PROCESS])))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for each in replaced:
        setattr(*each)
    try:
        yield
    finally:
        for each in before:
            setattr(*each)


class _Method:
    """Stands in a class for a method, until it is used: then the method takes its place."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.__name__ = name
        self.made = functools.cache(make)

    def __get__(self, instance: object, owner: type) -> Any:
        method = self.made()
        for each in owner.__mro__:
            if each.__dict__.get(self.__name__) is self:
                method.__qualname__ = f"{each.__qualname__}.{self.__name__}"
                setattr(each, self.__name__, method)
        return method if instance is None else method.__get__(instance, owner)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What wraps the method calls it: ``__repr__`` is wrapped for classes that hold
        themselves."""
        return self.made()(*arguments, **named)


def _later(write: Callable[..., Any]) -> Callable[..., Any]:
    def written(name: str, *arguments: Any, **named: Any) -> _Method:
        return _Method(name, lambda: write(name, *arguments, **named))

    return written


def _init_later(write: Callable[..., Any]) -> Callable[..., Any]:
    def written(fields: Any, ordered: Any, *arguments: Any) -> Any:
        def make() -> Any:
            method = write(fields, ordered, *arguments)
            return method.made() if isinstance(method, _Method) else method

        defaults = [_has_default(each) for each in ordered if each.init]
        # A field without a default after one with a default is an error now and not later.
        return _Method("__init__", make) if defaults == sorted(defaults) else make()

    return written


def _has_default(field: Any) -> bool:
    missing = dataclasses.MISSING
    return not (field.default is missing and field.default_factory is missing)


def _repr_later(write: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: _Method("__repr__", lambda: write(*arguments))


_WRITERS: Final[dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "_init_fn": _init_later,
    "_repr_fn": _repr_later,
}
"""What writes the longest of the source texts in Python 3.11 and 3.12, and what stands in for it:
then the text too is written at the first use."""


class _Docstring:
    """Stands in a class for the docstring that a dataclass without one gets: its signature."""

    def __init__(self) -> None:
        self.cls: type | None = None

    def __get__(self, _: object, owner: type) -> str:
        if self.cls is None:
            return " "  # It is not made yet, and shall not be given another one.
        signature = ""
        with contextlib.suppress(TypeError, ValueError):
            signature = str(inspect.signature(self.cls)).replace(" -> None", "")
        text = self.cls.__name__ + signature
        if vars(self.cls).get("__doc__") is self:
            self.cls.__doc__ = text
        return text


def _described_later(process: Callable[..., Any]) -> Callable[..., Any]:
    def processed(cls: type, *arguments: Any, **named: Any) -> Any:
        if cls.__doc__:
            return process(cls, *arguments, **named)
        docstring = _Docstring()
        setattr(cls, "__doc__", docstring)  # noqa: B010  mypy allows no other
        docstring.cls = made = process(cls, *arguments, **named)
        return made

    return processed


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
