"""The wire format is what it was: golden bytes of every message.

``golden/`` holds a sample of each message, which is made from the types of its fields. The bytes
change only with the protocol: a diff there is a change of the wire format, and says in review what
PROTOCOL.md must say too. Write them again with::

    python -m tests.wire.test_golden
"""

import dataclasses
import importlib
import pkgutil
import types
import typing
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pytest

import lmx.protocol
from lmx.protocol.wire.codec import decode, encode, registered

GOLDEN: Final = Path(__file__).parent / "golden"
CORRELATION: Final = 41
"""Of every golden message: a number that is not the default."""

# Every module of the protocol, so that a message in a new one is not overlooked.
for _module in pkgutil.walk_packages(lmx.protocol.__path__, "lmx.protocol."):
    importlib.import_module(_module.name)
KINDS: Final = sorted(registered())


def sample(cls: type) -> Any:
    """Return a message, or a dataclass inside of one, with no field at its default."""
    hints = typing.get_type_hints(cls)
    return cls(
        **{field.name: _value(hints[field.name], field) for field in dataclasses.fields(cls)}
    )


def _value(hint: Any, field: dataclasses.Field[Any]) -> Any:
    """Return a value of a type. It depends on the field's name, so that two fields that change
    places have other bytes."""
    args = typing.get_args(hint)
    match typing.get_origin(hint):
        case types.UnionType | typing.Union:
            return _value(next(arg for arg in args if arg is not types.NoneType), field)
        case origin if origin is tuple:
            return (_value(args[0], field),)
        case origin if origin is dict:
            return {_value(args[0], field): _value(args[1], field)}
    number = sum(field.name.encode())
    if hint is bool:
        return field.default is not True
    if hint is int or hint is float:
        return hint(number if number != field.default else number + 1)
    if hint is bytes:
        return field.name.encode()
    if hint is str or hint is Any:
        return f"{field.name} ß🌍"
    if issubclass(hint, StrEnum):
        return next(member for member in reversed(hint) if member != field.default)
    return sample(hint)


def golden(kind: str) -> Path:
    return GOLDEN / f"{kind}.bin"


def write_golden() -> None:
    """Write ``golden/<Kind>.bin`` for every message, and remove those of no message."""
    for stale in GOLDEN.glob("*.bin"):
        stale.unlink()
    for kind, cls in registered().items():
        golden(kind).write_bytes(encode(sample(cls), CORRELATION))


def test_every_message_has_one_golden_file() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.bin")) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_golden_bytes(kind: str) -> None:
    message = sample(registered()[kind])
    assert encode(message, CORRELATION) == golden(kind).read_bytes()
    envelope = decode(golden(kind).read_bytes())
    assert envelope.message == message
    assert envelope.correlation == CORRELATION


@pytest.mark.parametrize("kind", KINDS)
def test_samples_leave_no_field_at_its_default(kind: str) -> None:
    """A field at its default would hide that it is not carried."""
    message = sample(registered()[kind])
    for field in dataclasses.fields(message):
        assert getattr(message, field.name) != field.default, field.name


if __name__ == "__main__":
    write_golden()
