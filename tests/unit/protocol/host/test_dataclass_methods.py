"""Dataclasses whose methods are made at their first use behave as others do."""

import copy
import dataclasses
import inspect
import operator
from collections.abc import Callable
from typing import Any

import pytest

from lmx.protocol.host.dataclass_methods import methods_at_first_use


def defined() -> tuple[type[Any], type[Any]]:
    @dataclasses.dataclass(frozen=True, slots=True, order=True)
    class Plain:
        """Has all methods."""

        number: int
        name: str = "none"
        items: tuple[str, ...] = dataclasses.field(default_factory=tuple)

    @dataclasses.dataclass
    class Base:
        number: int

    @dataclasses.dataclass(unsafe_hash=True)
    class Derived(Base):
        name: Any = 2

        def __post_init__(self) -> None:
            self.twice = 2 * self.number

    return Plain, Derived


def in_itself(_: type[Any], derived: type[Any]) -> Any:
    one = derived(1)
    one.name = one
    return repr(one)


USES: list[Callable[[type[Any], type[Any]], Any]] = [
    lambda plain, derived: (plain.__doc__, derived.__doc__, derived.__base__.__doc__),
    lambda plain, derived: (str(inspect.signature(plain)), str(inspect.signature(derived))),
    lambda plain, derived: (repr(plain(1)), repr(derived(2)), derived(2).twice),
    in_itself,
    lambda plain, _: (plain(1) == plain(1), plain(1) == plain(2), plain(1) == 1),
    lambda plain, _: (plain(1) < plain(2), plain(1) >= plain(2)),
    lambda plain, derived: (hash(plain(1)) == hash(plain(1)), hash(derived(1)) == hash(derived(1))),
    lambda plain, _: operator.lt(plain(1), 1),
    lambda plain, _: plain(),
    lambda _, derived: derived(1, 2, 3),
    lambda plain, _: setattr(plain(1), "number", 2),
    lambda plain, _: delattr(plain(1), "number"),
    lambda plain, derived: repr((copy.deepcopy(plain(1)), copy.copy(derived(1)))),
    lambda plain, _: repr(dataclasses.replace(plain(1), number=2)),
    lambda plain, derived: (plain.__init__.__qualname__, derived.__hash__.__qualname__),
    lambda plain, _: plain.__init__(object(), 1),
    lambda _, derived: type("Further", (derived,), {})(3).twice,
]


def outcome(
    use: Callable[[type[Any], type[Any]], Any], classes: tuple[type[Any], type[Any]]
) -> Any:
    try:
        return use(*classes)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("use", USES)
def test_they_behave_as_others_do(use: Callable[[type[Any], type[Any]], Any]) -> None:
    ordinary = defined()
    with methods_at_first_use():
        later = defined()
    assert outcome(use, later) == outcome(use, ordinary)
    assert outcome(use, later) == outcome(use, ordinary)


def test_a_method_takes_its_place_at_its_first_use() -> None:
    with methods_at_first_use():
        plain, _ = defined()
    assert not inspect.isfunction(vars(plain)["__init__"])
    one = plain(1)
    assert inspect.isfunction(vars(plain)["__init__"])
    assert not inspect.isfunction(vars(plain)["__eq__"])
    assert one == plain(1)
    assert inspect.isfunction(vars(plain)["__eq__"])


def test_nothing_is_overwritten_that_dataclasses_refuse_to() -> None:
    def define() -> None:
        @dataclasses.dataclass(frozen=True)
        class Refused:
            number: int

            def __setattr__(self, name: str, value: object) -> None: ...

    with methods_at_first_use(), pytest.raises(TypeError, match="Cannot overwrite attribute"):
        define()


def test_what_is_wrong_with_the_order_of_fields_is_found_when_a_class_is_defined() -> None:
    fields: Any = [("name", str, dataclasses.field(default="none")), ("number", int)]
    with methods_at_first_use(), pytest.raises(TypeError, match="non-default argument 'number'"):
        dataclasses.make_dataclass("Disordered", fields)


def test_no_method_is_made_for_a_docstring() -> None:
    with methods_at_first_use():
        _, derived = defined()
        assert not inspect.isfunction(vars(derived)["__init__"])
        assert derived.__doc__ == "Derived(number: int, name: Any = 2)"
    assert vars(derived)["__doc__"] == "Derived(number: int, name: Any = 2)"


def test_dataclasses_are_as_before_after_the_block() -> None:
    before = dict(vars(dataclasses))
    with pytest.raises(ValueError, match="x"), methods_at_first_use():
        assert dict(vars(dataclasses)) != before or not hasattr(dataclasses, "_create_fn")
        raise ValueError("x")
    assert dict(vars(dataclasses)) == before
    assert inspect.isfunction(vars(defined()[0])["__eq__"])
