"""The five documents whose examples lmx runs, and every example in them, found and classified.

They are no part of the repository: ``API_DOCUMENTS`` names their folder, else it is
``shared/seeds`` beside the checkout. Reads files and decides what each block is; sends nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.support.clients.asyncapi_examples import asyncapi_examples

ROOT: Final = Path(__file__).resolve().parents[3]

KOLOSAL: Final = "kolosal-server-api.md"
OPTA: Final = "opta-lmx-api.md"
OVMS: Final = "ovms-chat-completions.md"
KIAPI: Final = "kiapi-chat-openapi.json"
MOONSHOT: Final = "moonshot-streaming-asyncapi.txt"


class Kind(StrEnum):
    """What an example is."""

    CURL = "curl"
    BODY = "body"
    """A request's JSON body."""
    PYTHON = "python"
    POWERSHELL = "powershell"
    ROUTE = "route"
    """A method and a path."""
    HEADERS = "headers"
    ANSWER = "answer"
    """A JSON answer to the request before it, or to its route."""
    STREAM = "stream"
    """The events of a streamed answer."""
    CHUNK = "chunk"
    """One chunk, or the end mark, of a streamed answer."""
    ERROR = "error"
    PART = "part"
    """A piece of an answer: a message, a delta, a usage."""
    MEDIA = "media"
    """Content parts of a message, one in each line."""
    METRICS = "metrics"
    VALUE = "value"
    """What one field of a schema may hold: not a request, not an answer."""
    DIAGRAM = "diagram"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Example:
    """``line`` counts from 1; of the JSON document it is the line of the text inside.

    ``route`` is the method and path that the text around it speaks of. ``label`` is the line
    before it. ``request`` is the last request before it that is about the same route.
    """

    document: str
    line: int
    kind: Kind
    text: str
    label: str = ""
    route: tuple[str, str] | None = None
    request: Example | None = None

    @property
    def name(self) -> str:
        """For the test's id."""
        return f"{self.document.split('-', 1)[0]}-{self.line}-{self.kind}"


WHY_SKIPPED: Final = "the five documents are not here: name their folder with API_DOCUMENTS"


def documents_folder() -> Path | None:
    """Return where the documents are, if anywhere."""
    named = os.environ.get("API_DOCUMENTS")
    folder = Path(named) if named else ROOT.parent / "shared" / "seeds"
    return folder if (folder / OPTA).is_file() else None


def examples(folder: Path) -> list[Example]:
    """Return every example of the five documents."""
    found: list[Example] = []
    for document in (KOLOSAL, OPTA, OVMS):
        found += _of_markdown(document, (folder / document).read_text())
    kiapi = json.loads((folder / KIAPI).read_text())
    found += _of_markdown(KIAPI, kiapi["info"]["description"])
    found += _of_schemas(kiapi["components"]["schemas"])
    found += _of_asyncapi((folder / MOONSHOT).read_text())
    return found


_LABELS: Final = (
    (re.compile(r"Request Body|^#### Request$"), Kind.BODY),
    (re.compile(r"^### \d{3} |error:|Error Response|error responses|All errors"), Kind.ERROR),
    (re.compile(r"Message Object|Delta Object|Usage Statistics"), Kind.PART),
    (re.compile(r"^Formats:|^Aliases accepting"), Kind.MEDIA),
    (re.compile(r"Response|Example response|if degraded"), Kind.ANSWER),
)
"""What the line before a JSON block says of it; the first that fits."""

_LANGUAGES: Final = {
    "mermaid": Kind.DIAGRAM,
    "bash": Kind.CURL,
    "sh": Kind.CURL,
    "python": Kind.PYTHON,
    "{code} python": Kind.PYTHON,
    "powershell": Kind.POWERSHELL,
}

_METHODS: Final = "GET|POST|DELETE"
_ROUTE_LINES: Final = re.compile(rf"(?:^#+ .*|^\*\*)({_METHODS})(?:\*\*)? `?(/[\w/{{}}]+)")
_HTTP_LINE: Final = re.compile(rf"^({_METHODS}) (/\S+)")
_CURL_URL: Final = re.compile(r"https?://[^/\s]+(/[^\s'\"]*)")


def _of_markdown(document: str, text: str) -> Iterator[Example]:
    route: tuple[str, str] | None = None
    request: Example | None = None
    label = ""
    lines = iter(enumerate(text.split("\n"), 1))
    for number, line in lines:
        if line.startswith("```"):
            inside = []
            for _, inner in lines:
                if inner.startswith("```"):
                    break
                inside.append(inner)
            block = "\n".join(inside)
            kind = _kind(line[3:].strip(), block, label)
            if kind is Kind.ROUTE:
                route, request = _found(_HTTP_LINE, block), None
            if kind is Kind.CURL and (url := _CURL_URL.search(block)):
                method = re.search(rf"-X ({_METHODS})", block)
                route = (method[1] if method else "POST", url[1])
            example = Example(document, number, kind, block, label, route, request)
            if kind in (Kind.CURL, Kind.BODY):
                request = example
            yield example
        elif spoken := _found(_ROUTE_LINES, line):
            route, request = spoken, None
            label = line
        elif line.strip():
            label = line


def _kind(language: str, block: str, label: str) -> Kind:
    if language == "http":
        return Kind.ROUTE if _HTTP_LINE.match(block) else Kind.HEADERS
    if language in _LANGUAGES:
        return _LANGUAGES[language]
    if language == "json":
        return next((kind for fits, kind in _LABELS if fits.search(label)), Kind.UNKNOWN)
    starts = (("curl ", Kind.CURL), ("data: ", Kind.STREAM), ("# TYPE ", Kind.METRICS))
    return next((kind for start, kind in starts if block.startswith(start)), Kind.UNKNOWN)


def _found(pattern: re.Pattern[str], text: str) -> tuple[str, str] | None:
    match = pattern.search(text)
    return (match[1], match[2]) if match else None


def _of_schemas(schemas: dict[str, dict[str, object]]) -> Iterator[Example]:
    """The examples in an OpenAPI document's schemas: whole bodies, and values of fields."""
    for place, (name, schema) in enumerate(schemas.items(), 1):
        for body in _list(schema.get("examples")):
            route = ("POST", "/v1/chat/completions")
            yield Example(KIAPI, 1000 + place, Kind.BODY, json.dumps(body), name, route)
        properties = schema.get("properties")
        assert isinstance(properties, dict)
        for field, value in properties.items():
            for example in _list(value.get("examples")):
                label = f"{name}.{field}"
                yield Example(KIAPI, 1000 + place, Kind.VALUE, json.dumps(example), label)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _of_asyncapi(text: str) -> Iterator[Example]:
    route = ("POST", "/v1/chat/completions")
    for line, name, payload in asyncapi_examples(text):
        kind = Kind.BODY if "request" in name else Kind.CHUNK
        yield Example(MOONSHOT, line, kind, json.dumps(payload), name, route)
