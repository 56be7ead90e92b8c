"""Pure. Turns Markdown into a tree of elements, and colours code.

A tree holds texts and the elements of ``TAGS``, never HTML: what a model writes can't become
anything else. Links lead to the web or to an address of mail; a picture is a link to it, because
the page loads nothing from elsewhere.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments.lexers import get_lexer_by_name
from pygments.token import STANDARD_TYPES
from pygments.util import ClassNotFound

Node: TypeAlias = "str | list[Any]"
"""A text, or an element: its tag, its attributes, and its children."""

TAGS: Final = frozenset(
    {
        "a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li",
        "ol", "p", "pre", "s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
    }
)  # fmt: skip
"""The elements that a tree may have."""

LONGEST_COLOURED: Final = 30_000
"""Characters of code: more has no colours."""

_DEEPEST: Final = 30
"""The parser leaves out what is nested deeper, so that a block which comes near is shown as it is:
a model in a loop writes thousands of quotes within quotes."""

_MOST_ADDRESSES: Final = 16
"""Characters of addresses for each of the text: one that is written takes up to twelve, since each
byte of it may become ``%XX``. Many links may refer to one long address: a hundred kilobytes of text
would become a gigabyte."""

_WEB: Final = frozenset({"http", "https"})
_TASKS: Final = {"[ ] ": "☐", "[x] ": "☑", "[X] ": "☑"}
_MARKDOWN: Final = MarkdownIt("commonmark", {"html": False, "maxNesting": _DEEPEST}).enable(
    ["table", "strikethrough"]
)


def markdown_tree(text: str) -> list[Node]:
    """Return the elements of a text."""
    tokens = _MARKDOWN.parse(text)
    too_deep = _depth(tokens) >= _DEEPEST - 2
    if too_deep or _characters_of_addresses(tokens) > _MOST_ADDRESSES * len(text):
        return [["pre", {}, text]]
    root: list[Any] = ["", {}]
    _add_all(tokens, [root])
    return root[2:]


def _depth(tokens: Sequence[Token]) -> int:
    """Return how deep the elements are nested. The parser bounds blocks alone: emphasis within
    emphasis is counted from the text that it is in."""
    return max((token.level + _depth(token.children or ()) for token in tokens), default=0)


def _characters_of_addresses(tokens: Sequence[Token]) -> int:
    return sum(
        len(str(child.attrs.get(name, "")))
        for token in tokens
        for child in token.children or ()
        for name in ("href", "src")
    )


def _add_all(tokens: Sequence[Token], open_elements: list[list[Any]]) -> None:
    for token in tokens:
        if token.hidden:
            continue
        if token.nesting == 1:
            element: list[Any] = _opened(token)
            open_elements[-1].append(element)
            open_elements.append(element)
        elif token.nesting == -1:
            open_elements.pop()
        elif token.type == "inline":
            _add_all(token.children or (), open_elements)
        else:
            open_elements[-1].extend(_leaf(token, open_elements))


def _opened(token: Token) -> list[Any]:
    if token.tag == "a":
        href = str(token.attrs.get("href", ""))
        return ["a", {"href": href}] if _leads_out(href) else ["span", {}]
    attributes: dict[str, Any] = {}
    if token.tag == "ol" and isinstance(token.attrs.get("start"), int):
        attributes["start"] = token.attrs["start"]
    if token.tag in ("td", "th") and "style" in token.attrs:
        attributes["align"] = str(token.attrs["style"]).rpartition(":")[2]
    return [token.tag if token.tag in TAGS else "span", attributes]


def _leaf(token: Token, open_elements: Sequence[list[Any]]) -> list[Node]:
    match token.type:
        case "fence" | "code_block":
            language = token.info.split(maxsplit=1)[0] if token.info.strip() else ""
            code = token.content.removesuffix("\n")
            return [["pre", {"language": language}, *_coloured(code, language)]]
        case "code_inline":
            return [["code", {}, token.content]]
        case "softbreak":
            return ["\n"]
        case "hardbreak":
            return [["br", {}]]
        case "hr":
            return [["hr", {}]]
        case "image":
            href = str(token.attrs.get("src", ""))
            shown = token.content or href
            return [["a", {"href": href}, shown] if _leads_out(href) else shown]
        case _:
            return _text(token.content, open_elements)


def _text(text: str, open_elements: Sequence[list[Any]]) -> list[Node]:
    mark = _TASKS.get(text[:4])
    if mark is None or not _begins_item(open_elements):
        return [text] if text else []
    return [["span", {"class": "task"}, mark], " " + text[4:]]


def _begins_item(open_elements: Sequence[list[Any]]) -> bool:
    """Return whether a text is the first of a list's item, or of its first paragraph."""
    parent = open_elements[-1]
    if len(parent) > 2:
        return False
    if parent[0] == "li":
        return True
    return parent[0] == "p" and open_elements[-2][0] == "li" and len(open_elements[-2]) == 3


def _leads_out(href: str) -> bool:
    try:
        parts = urlsplit(href)
    except ValueError:
        return False
    # Without a host, a browser takes `http:path` for a path of the page's own server.
    return parts.scheme == "mailto" or (parts.scheme in _WEB and bool(parts.netloc))


def _coloured(code: str, language: str) -> list[Node]:
    """Return code as texts and spans whose classes are those that pygments has for its kinds."""
    if not language or len(code) > LONGEST_COLOURED:
        return [code]
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return [code]
    pieces = list(_pieces(lexer.get_tokens(code)))
    # Some lexers change what they read.
    if "".join(text for _, text in pieces) != code:
        return [code]
    return [["span", {"class": kind}, text] if kind else text for kind, text in pieces]


def _pieces(tokens: Any) -> Iterator[tuple[str, str]]:
    """Yield the class and the text of pieces, each as long as it can be."""
    for kind, group in groupby(tokens, key=lambda token: _class(token[0])):
        yield kind, "".join(text for _, text in group)


def _class(kind: Any) -> str:
    while kind not in STANDARD_TYPES:
        kind = kind.parent
    found: str = STANDARD_TYPES[kind]
    return "" if found in ("n", "p", "w") else found
