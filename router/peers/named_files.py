"""Finds the parts of a request that name files, which this machine keeps, and the media of which
only some models take any. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lmx.protocol.states import MediaKind

_CONTENTS = ("url", "data", "file_data", "file_url", "image_url")


@dataclass(frozen=True, slots=True)
class NamedPart:
    """A part of a message with the id of a file, which was not checked."""

    param: str
    """The path of the id in the request."""
    part: dict[str, Any]
    holder: dict[str, Any]
    """What has the id: the part, or an object in it."""

    @property
    def has_content(self) -> bool:
        """Whether there is a content besides the id: the id is not read then, or refused."""
        return any(self.holder.get(name) is not None for name in _CONTENTS)


def names_a_file(body: Mapping[str, Any]) -> bool:
    """Return whether a part of a message has the id of a file, in the form of any API. The body was
    not checked: it may have anything anywhere."""
    return next(named_parts(body), None) is not None


def named_parts(body: Mapping[str, Any]) -> Iterator[NamedPart]:
    """Yield those parts."""
    for field in ("messages", "input"):
        for path, message in _objects(body.get(field), field):
            for where, part in _parts(message, path):
                kind = str(part.get("type"))
                # Next to the type, in a field of the type's name, or as Anthropic's source.
                for inner, holder in (
                    ("", part),
                    (f".{kind}", part.get(kind)),
                    (".source", part.get("source")),
                ):
                    if isinstance(holder, dict) and holder.get("file_id") is not None:
                        yield NamedPart(f"{where}{inner}.file_id", part, holder)


_MEDIA: Final = {kind.value: kind for kind in MediaKind}


def media_of(body: Mapping[str, Any]) -> frozenset[MediaKind]:
    """Return which media a request has, in the form of any API. What a file has is not known. The
    body was not checked."""
    found: set[MediaKind] = {MediaKind.IMAGE} if body.get("images") else set()
    for field in ("messages", "input"):
        for _, message in _objects(body.get(field), ""):
            if message.get("images"):
                found.add(MediaKind.IMAGE)
            for _, part in _parts(message, ""):
                name = str(part.get("type")).removeprefix("input_").removesuffix("_url")
                if name in _MEDIA:
                    found.add(_MEDIA[name])
    return frozenset(found)


def _parts(message: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for field in ("content", "output"):
        for where, part in _objects(message.get(field), f"{path}.{field}"):
            yield where, part
            for inner_path, inner in _inside(part, where):
                yield inner_path, inner
                yield from _inside(inner, inner_path)


def _inside(part: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the parts of a tool's result, and of a document."""
    yield from _objects(part.get("content"), f"{path}.content")
    source = part.get("source")
    if isinstance(source, dict):
        yield from _objects(source.get("content"), f"{path}.source.content")


def _objects(value: object, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, list):
        yield from ((f"{path}.{n}", one) for n, one in enumerate(value) if isinstance(one, dict))
