"""What a document's example sends: its text turned into HTTP requests. Pure.

The rules for what is no JSON: `//` comments go; `[...]` is a list that the document leaves out
(null); `...` within a list goes; "a | b" is a choice, of which "user" or else the first is taken.
"""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class Asked:
    """One request. ``body`` is its text as the document has it; ``path`` has no host."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None


_URL: Final = re.compile(r"https?://[^/]+(/.*)")


def path_of(url: str) -> str:
    """Return the path of one of the documents' URLs, whichever host and port it names."""
    match = _URL.match(url)
    assert match is not None, url
    return match[1]


def curl_requests(text: str) -> Iterator[Asked]:
    """Return the requests of a shell block's curl commands, in order.

    Raises ``ValueError`` for an option that it doesn't know.
    """
    words = shlex.split(text, comments=True)
    starts = [place for place, word in enumerate(words) if word == "curl"]
    for start, end in zip(starts, [*starts[1:], len(words)], strict=True):
        yield curl_request(words[start + 1 : end])


def curl_request(words: list[str]) -> Asked:
    """Return the request of one curl command. A form (``-F``) is a POST without a body here.

    Raises ``ValueError`` for an option that it doesn't know.
    """
    method, url, headers, body = "", "", {}, None
    rest = iter(word for word in words if word.strip())
    for word in rest:
        match word:
            case "-X":
                method = next(rest)
            case "-H":
                name, _, value = next(rest).partition(":")
                headers[name.strip()] = value.strip()
            case "-d":
                body = next(rest)
            case "-F":
                method = "POST"
                next(rest)
            case "-o":
                next(rest)
            case "-N" | "-s" | "-sS" | "-f" | "-fsS" | "-i":
                pass
            case _ if word.startswith("-"):
                raise ValueError(f"curl's {word} is not known here")
            case _:
                url = word
    return Asked(method or ("GET" if body is None else "POST"), path_of(url), headers, body)


def powershell_request(text: str) -> Asked:
    """Return the request of a block with one Invoke-RestMethod, and the hashtable of its body."""
    command = text.split("Invoke-RestMethod", 1)[1].replace("`\n", " ").split("\n", 1)[0]
    found = re.findall(r"-(\w+)\s+(\"[^\"]*\"|\S+)", command)
    options = {name: value.strip('"') for name, value in found}
    body = None
    if "Body" in options:
        tokens = re.findall(r"@\{|@\(|[}),=]|\"[^\"]*\"|[\w.]+", text[text.index("@{") :])
        body = json.dumps(_powershell_value(iter(tokens)))
    headers = {"Content-Type": options["ContentType"]} if "ContentType" in options else {}
    return Asked(options["Method"], path_of(options["Uri"]), headers, body)


def _powershell_value(tokens: Iterator[str]) -> Any:
    token = next(tokens)
    match token:
        case "@{":
            found: dict[str, Any] = {}
            while (key := next(tokens)) != "}":
                assert next(tokens) == "=", key
                found[key] = _powershell_value(tokens)
            return found
        case "@(":
            items: list[Any] = []
            while (value := _powershell_value(tokens)) is not _END:
                if value is not _COMMA:
                    items.append(value)
            return items
        case ")":
            return _END
        case ",":
            return _COMMA
        case _ if token.startswith('"'):
            return token[1:-1]
        case _:
            return json.loads(token)


_END: Final = object()
_COMMA: Final = object()


def as_json(text: str) -> Any:
    """Return the value of a JSON block, by the rules in the module's docstring."""
    plain = re.sub(r"\s+//.*", "", text)
    plain = plain.replace("[...]", "null")
    plain = re.sub(r",\s*\.\.\.", "", plain)
    # Kolosal's error: "a" | "b" | "c", without one pair of quotes around them.
    plain = re.sub(r'"(\w+)"(?: \| "\w+")+', r'"\1"', plain)
    return _chosen(json.loads(plain))


def json_lines(text: str) -> list[Any]:
    """Return the values of a block with one JSON value in each line."""
    return [json.loads(line) for line in text.split("\n")]


def events(text: str) -> list[Any]:
    """Return the data of a block of events; the end mark as its text."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def quoted_keys(text: str) -> str:
    """Return a body with quotes around the keys that have none."""
    return re.sub(r"(?m)^(\s*)(\w+):", r'\1"\2":', text)


def _chosen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _chosen(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_chosen(item) for item in value]
    if isinstance(value, str) and " | " in value:
        choices = value.split(" | ")
        return "user" if "user" in choices else choices[0]
    return value
