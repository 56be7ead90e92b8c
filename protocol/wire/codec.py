"""Turns typed messages into bytes and back: a msgpack array with magic, version, kind and fields.

    [ "lmx", 1, "Generate", correlation, {field: value, ...} ]

Messages are frozen dataclasses that are registered with :func:`message`. Decoding checks the type
of every field, ignores unknown fields and fills in defaults, so that a field with a default can be
added without a new version. Encoding leaves out fields that are at their default, which saves half
of a token's bytes; :func:`untrimmed` dataclasses are sent with all their fields. If a field is
marked :data:`FLAT`, the fields of its dataclass are sent in the map of its owner. Text for people
(:data:`lmx.protocol.free_text.FreeText`) is cut to its longest length, on both sides. Decoding
never runs code from the wire, and never builds anything but registered dataclasses, enums and plain
values.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgpack

from lmx.protocol.errors import ProtocolError
from lmx.protocol.free_text import Clamped, clamp

MAGIC: Final = "lmx"
VERSION: Final = 1
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""The sockets (ZMQ_MAXMSGSIZE) and :func:`decode` refuse larger frames."""

FLAT: Final = {"flat": True}
"""Metadata of a field (``field(metadata=FLAT)``) that holds a dataclass. On the wire the fields of
that dataclass are among those of the owner, so that fields can move into a value of their own, or
out of it, without a change of the wire."""

_MOST_LEVELS: Final = 100
"""How deeply values may be nested. msgpack itself gives up at some hundred levels."""

_T = TypeVar("_T")
_Pack = Callable[[Any], Any]
_Unpack = Callable[[Any, str], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Envelope:
    """A decoded message."""

    message: Any
    correlation: int
    """The number that pairs a reply with its question; 0 without a question."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Schema:
    to_map: _Pack
    from_map: _Unpack


_messages: dict[str, type] = {}
_schemas: dict[type, _Schema] = {}
_untrimmed: set[type] = set()


def message(cls: type[_T]) -> type[_T]:
    """Register a frozen dataclass as a message. The name of the class is its kind on the wire."""
    if cls.__name__ in _messages:
        raise TypeError(f"two messages are named {cls.__name__}")
    _messages[cls.__name__] = cls
    return cls


def untrimmed(cls: type[_T]) -> type[_T]:
    """Mark a dataclass, so that all its fields are sent, also those at their default. It is for
    maps that people and programs see, and that a peer of another version reads by key."""
    _untrimmed.add(cls)
    return cls


def registered() -> dict[str, type]:
    """Return every message class by kind (a copy)."""
    return dict(_messages)


def encode(value: Any, correlation: int = 0) -> bytes:
    """Return the wire form of a registered message.

    Raises ``TypeError`` when ``value`` is not a registered message, or holds a value that msgpack
    can't encode. That is a bug of the caller, and not bad input.
    """
    cls = type(value)
    if _messages.get(cls.__name__) is not cls:
        raise TypeError(f"{cls.__name__} is not a registered message")
    packed = msgpack.packb([MAGIC, VERSION, cls.__name__, correlation, to_map(value)])
    return typing.cast("bytes", packed)


def encode_any(value: Any, correlation: int = 0) -> bytes:
    """Return the wire form of a registered message, whatever its fields hold.

    It is for replies, which contain what others wrote. Text that is not Unicode, numbers beyond 64
    bits, values that are nested a thousand levels deep and objects that can't be encoded are
    replaced. The rest is sent as it is.
    """
    try:
        return encode(value, correlation)
    except (TypeError, ValueError, OverflowError, RecursionError):
        cls = type(value)
        if _messages.get(cls.__name__) is not cls:
            raise
        body = plain(to_map(value))
        packed = msgpack.packb([MAGIC, VERSION, cls.__name__, plain(correlation), body])
        return typing.cast("bytes", packed)


def plain(value: Any, levels: int = _MOST_LEVELS) -> Any:
    """Return a value all of whose parts can be encoded: see :func:`encode_any`."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode("utf-8")
        case None | bool() | float() | bytes():
            return value
        case int():
            return min(max(value, -(2**63)), 2**64 - 1)
        case _ if levels == 0:
            return "..."
        case dict():
            return {
                str(plain(str(name), 0)): plain(inner, levels - 1) for name, inner in value.items()
            }
        case list() | tuple() | set() | frozenset():
            return [plain(inner, levels - 1) for inner in value]
        case _:
            return plain(str(value), 0)


def decode(payload: bytes) -> Envelope:
    """Return the message in ``payload``.

    Raises :class:`ProtocolError` for anything that is not a well-formed message of this
    version; the text names the kind and the field.
    """
    if len(payload) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"message of {len(payload)} bytes is over {MAX_MESSAGE_BYTES}")
    try:
        parts = msgpack.unpackb(payload, strict_map_key=True)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise ProtocolError(f"not msgpack: {error}") from error
    if not isinstance(parts, list) or len(parts) < 5 or parts[0] != MAGIC:
        raise ProtocolError("not an lmx message: expected ['lmx', version, kind, ...]")
    _, version, kind, correlation, body = parts[:5]
    if version != VERSION:
        raise ProtocolError(
            f"message version {version!r}, this process speaks {VERSION}: "
            "restart lmx so that all its processes are of one release"
        )
    cls = _messages.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ProtocolError(f"unknown message kind {kind!r}")
    if not isinstance(correlation, int) or isinstance(correlation, bool):
        raise ProtocolError(f"{kind}: correlation must be an integer")
    return Envelope(from_map(cls, body, kind), correlation)


def to_map(value: Any) -> dict[str, Any]:
    """Return a dataclass as a map of plain values, as it is sent inside a message."""
    out: dict[str, Any] = _schema(type(value)).to_map(value)
    return out


def from_map(cls: type[_T], body: Any, path: str) -> _T:
    """Build ``cls`` from a map of plain values. Errors name it by ``path``."""
    value: _T = _schema(cls).from_map(body, path)
    return value


def _schema(cls: type) -> _Schema:
    found = _schemas.get(cls)
    if found is None:
        found = _schemas[cls] = _build_schema(cls)
    return found


def _build_schema(cls: type) -> _Schema:
    hints = typing.get_type_hints(cls, include_extras=True)
    defaults: dict[str, Any] = {}
    packers: list[tuple[str, _Pack]] = []
    unpackers: dict[str, _Unpack] = {}
    plain: dict[str, type] = {}
    required: list[str] = []
    flat: list[tuple[str, _Unpack]] = []
    for field in dataclasses.fields(cls):
        name, hint = field.name, hints[field.name]
        pack, unpack = _converters(hint)
        if pack is not None:
            packers.append((name, pack))
        has_default = field.default is not dataclasses.MISSING
        # Nothing is MISSING itself, so a field without a default is always sent.
        trimmed = has_default and cls not in _untrimmed
        defaults[name] = field.default if trimmed else dataclasses.MISSING
        if field.metadata.get("flat"):
            flat.append((name, unpack))
            continue
        unpackers[name] = unpack
        if hint in _SCALARS:
            plain[name] = hint
        if not has_default and field.default_factory is dataclasses.MISSING:
            required.append(name)
    build = _map_builder(defaults, packers)
    if flat:
        build = _flattened(build, tuple(name for name, _ in flat))
    return _Schema(build, _map_reader(cls, plain, unpackers, required, flat))


def _map_reader(
    cls: type,
    plain: Mapping[str, type],
    unpackers: Mapping[str, _Unpack],
    required: Sequence[str],
    flat: Sequence[tuple[str, _Unpack]],
) -> _Unpack:
    """Return what makes a dataclass of a map. A value of exactly the type in ``plain`` needs no
    unpacking."""

    def read(body: Any, path: str) -> Any:
        if not isinstance(body, dict):
            raise ProtocolError(f"{path}: expected a map, got {type(body).__name__}")
        values: dict[str, Any] = {}
        # The hot path of every token: most fields of a delta are left out, the others are plain.
        for name, value in body.items():
            if type(value) is plain.get(name):
                values[name] = value
            elif name in unpackers:  # Otherwise a newer version has it.
                values[name] = unpackers[name](value, f"{path}.{name}")
        for name in required:
            if name not in values:
                raise ProtocolError(f"{path}.{name} is missing")
        for name, unpack in flat:
            values[name] = unpack(body, path)
        return cls(**values)

    return read


def _flattened(build: _Pack, names: tuple[str, ...]) -> _Pack:
    def flattened(value: Any) -> dict[str, Any]:
        out: dict[str, Any] = build(value)
        for name in names:
            # A field that is at its default was left out.
            out |= out.pop(name, {})
        return out

    return flattened


def _map_builder(defaults: Mapping[str, Any], packers: Sequence[tuple[str, _Pack]]) -> _Pack:
    """Return what makes a map of a dataclass's fields, without those that are at their default.

    It is compiled for the class, as dataclasses compile ``__init__``: one line for each field. This
    is the hot path of every token, and a loop over the fields of a delta took 1.5 us where this
    takes 0.35.
    """
    pack = dict(packers)
    names: dict[str, Any] = {}
    lines = ["def build(value):", "    out = {}"]
    for name, default in defaults.items():
        names[f"default_{name}"], names[f"pack_{name}"] = default, pack.get(name)
        packed = f"pack_{name}(inner)" if name in pack else "inner"
        lines += [
            f"    inner = value.{name}",
            f"    if inner is not default_{name}:",
            f"        out[{name!r}] = {packed}",
        ]
    exec("\n".join([*lines, "    return out"]), names)  # noqa: S102 - Of the names of fields alone.
    return typing.cast("_Pack", names["build"])


def _converters(hint: Any) -> tuple[_Pack | None, _Unpack]:
    """Return (pack, unpack) for a type. pack is None if the value is sent as it is."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated and Clamped() in hint.__metadata__:
        return clamp, _clamped
    if origin in (typing.Union, types.UnionType):
        return _optional(hint)
    if origin is tuple:
        return _sequence(typing.get_args(hint)[0])
    if origin is dict or hint is dict:
        return None, _checked(dict, "a map")
    if hint is Any:
        return None, lambda value, path: value
    if isinstance(hint, type):
        if issubclass(hint, StrEnum):
            return None, _enum(hint)
        if dataclasses.is_dataclass(hint):
            schema = _schema(hint)
            return schema.to_map, schema.from_map
        if hint in _SCALARS:
            return None, _SCALARS[hint]
    raise TypeError(f"messages can't carry {hint!r}")


def _optional(hint: Any) -> tuple[_Pack | None, _Unpack]:
    inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    if len(inner) != 1:
        raise TypeError(f"messages can't carry the union {hint!r}")
    pack, unpack = _converters(inner[0])
    return (
        None if pack is None else lambda value: None if value is None else pack(value),
        lambda value, path: None if value is None else unpack(value, path),
    )


def _sequence(item: Any) -> tuple[_Pack | None, _Unpack]:
    pack, unpack = _converters(item)
    # Millions of tokens may come at once. Checking each one by itself took a second for two
    # million.
    plain = frozenset({item}) if item in _SCALARS else None

    def unpack_items(value: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ProtocolError(f"{path}: expected an array, got {type(value).__name__}")
        if plain is not None and plain.issuperset(map(type, value)):
            return tuple(value)
        try:
            return tuple([unpack(entry, path) for entry in value])
        except ProtocolError:
            # Once more, to name the entry: its place in each path would cost every token.
            return tuple(unpack(entry, f"{path}[{index}]") for index, entry in enumerate(value))

    return (None if pack is None else lambda value: [pack(entry) for entry in value]), unpack_items


def _enum(cls: type[StrEnum]) -> _Unpack:
    def unpack(value: Any, path: str) -> StrEnum:
        try:
            return cls(value)
        except ValueError as error:
            raise ProtocolError(f"{path}: {value!r} is not a {cls.__name__}") from error

    return unpack


def _checked(cls: type, what: str) -> _Unpack:
    def unpack(value: Any, path: str) -> Any:
        if not isinstance(value, cls) or (isinstance(value, bool) and cls is not bool):
            raise ProtocolError(f"{path}: expected {what}, got {type(value).__name__}")
        return value

    return unpack


def _clamped(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise ProtocolError(f"{path}: expected a string, got {type(value).__name__}")
    return clamp(value)


def _number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProtocolError(f"{path}: expected a number, got {type(value).__name__}")
    return float(value)


_SCALARS: dict[Any, _Unpack] = {
    str: _checked(str, "a string"),
    int: _checked(int, "an integer"),
    bool: _checked(bool, "a boolean"),
    bytes: _checked(bytes, "bytes"),
    float: _number,
}
