"""Names of requests that are not a model's own: routes, and patterns of names. Values only; the
router decides which model answers (:mod:`lmx.router.supervisor.routing`)."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Final

from pydantic import AfterValidator, ConfigDict, Field

from lmx.protocol.messages.snapshot import ROUTE_NAMES
from lmx.supervisor.config.needs import Needs
from lmx.supervisor.config.values import Name, Names, Section

Pattern = Annotated[
    str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9*?][A-Za-z0-9._:/@+*?-]*$")
]
"""A name in which ``*`` stands for any text and ``?`` for one character."""

_TEXTS: Final = ("", "~", "~~", "~~~~~~~~")
"""What stands for the ``*`` of a pattern to see whether another one takes all its names. No
pattern has this character."""


class OrderedPatterns(dict[str, str]):
    """Patterns in their order, which counts: the same ones in another order are not equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and list(self.items()) == list(other.items())

    def __ne__(self, other: object) -> bool:
        return not self == other


class RoutingConfig(Section):
    """Every key but `patterns` is a name that stands for the first of several models that is
    loaded, else for the first that there is room for: `code: [qwen-coder, qwen]`. `auto`, `code`,
    `reasoning` and `chat` are all chat models, the default first, unless they are listed here. A
    name of no model is left out until one is added or downloaded."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [{"auto": ["qwen", "gemma"], "code": ["qwen-coder", "qwen"]}]
        },
    )
    __pydantic_extra__: dict[Name, Names] = Field(init=False)

    patterns: Annotated[dict[Pattern, Name], AfterValidator(OrderedPatterns), Needs.NOTHING] = (
        Field(default_factory=dict, examples=[{"claude-*": "auto", "gpt-*": "code"}])
    )
    """Names that no model and no route has, such as those of a cloud's models, and the model, alias
    or route that answers instead; the first pattern that matches counts. `*` is any text and `?`
    any character; a pattern that begins with `*` needs quotes. Without any, a request for a name
    that does not exist gets a 404."""

    @property
    def routes(self) -> Mapping[str, tuple[str, ...]]:
        """The models of each name that routes, in their order."""
        return self.__pydantic_extra__

    def gaps(self, models: set[str]) -> tuple[str, ...]:
        """Say which names are no model's, and which patterns never count. ``models`` are the names
        of all models."""
        gaps = [
            f"routing.{name} names {model!r}, which is no configured model: it is left out until "
            "one is added"
            for name, listed in self.routes.items()
            for model in listed
            if model not in models
        ]
        known = {*models, *self.routes, *ROUTE_NAMES}
        gaps += [
            f"routing.patterns.{pattern} leads to {name!r}, which is no configured model and no "
            "name in routing: its requests get a 404 until a model of that name is added"
            for pattern, name in self.patterns.items()
            if name not in known
        ]
        patterns = list(self.patterns)
        for place, pattern in enumerate(patterns):
            before = next((one for one in patterns[:place] if _takes_all(one, pattern)), None)
            if before is not None:
                gaps.append(
                    f"routing.patterns.{pattern} never counts: {before} stands before it and "
                    "matches all of its names"
                )
        return tuple(gaps)


def _takes_all(pattern: str, other: str) -> bool:
    """Return whether every name that ``other`` matches is matched by ``pattern``."""
    return all(fnmatchcase(other.replace("*", text).replace("?", "~"), pattern) for text in _TEXTS)
