"""The tokens of fill-in-the-middle, by families of models, and which of them a model folder's
tokenizer has.

Sources: the tokenizers and model cards of Qwen2.5-Coder, CodeGemma, StarCoder 2, Granite,
DeepSeek-Coder, CodeLlama, Codestral and Seed-Coder.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmx.protocol.host.regular_file import read_regular

_MOST_BYTES: Final = 64 * 1024 * 1024
_ADDED: Final = b'"added_tokens"'


@dataclass(frozen=True, slots=True)
class InfillForm:
    """The tokens of a family, and the order in which they are written."""

    prefix: str
    suffix: str
    middle: str | None
    """None: the answer begins right after the text before the gap."""
    suffix_first: bool = False
    """Whether the text after the gap is written before the other one."""
    repository: str | None = None
    file: str | None = None
    """Both or none: what begins the name of the repository, and the name of each file."""
    ends: tuple[str, ...] = ()
    """What ends the answer besides the model's own end tokens, where the tokenizer has it."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The tokens without which a tokenizer is not of this family."""
        return tuple(
            one
            for one in (self.prefix, self.suffix, self.middle, self.repository, self.file)
            if one is not None
        )


_PIPES: Final = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
_PIPE_ENDS: Final = ("<|fim_pad|>", "<|endoftext|>", *_PIPES)
_PLAIN: Final = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
_PLAIN_ENDS: Final = ("<fim_pad>", "<|endoftext|>", *_PLAIN)

FORMS: Final[Mapping[str, InfillForm]] = {
    "Qwen-Coder": InfillForm(
        *_PIPES,
        repository="<|repo_name|>",
        file="<|file_sep|>",
        ends=(*_PIPE_ENDS, "<|repo_name|>", "<|file_sep|>"),
    ),
    "Granite 4": InfillForm(
        *_PIPES,
        repository="<|reponame|>",
        file="<|filename|>",
        ends=(*_PIPE_ENDS, "<|reponame|>", "<|filename|>"),
    ),
    "CodeGemma": InfillForm(*_PIPES, ends=(*_PIPE_ENDS, "<|file_separator|>")),
    "StarCoder 2": InfillForm(
        *_PLAIN,
        repository="<repo_name>",
        file="<file_sep>",
        ends=(*_PLAIN_ENDS, "<repo_name>", "<file_sep>"),
    ),
    "StarCoder, Granite": InfillForm(
        *_PLAIN,
        repository="<reponame>",
        file="<filename>",
        ends=(*_PLAIN_ENDS, "<reponame>", "<filename>"),
    ),
    "StarCoder's tokens alone": InfillForm(*_PLAIN, ends=_PLAIN_ENDS),
    "DeepSeek-Coder": InfillForm(
        "<｜fim▁begin｜>",
        "<｜fim▁hole｜>",
        "<｜fim▁end｜>",
        ends=("<｜end▁of▁sentence｜>", "<|EOT|>", "<｜fim▁begin｜>"),
    ),
    "CodeLlama": InfillForm("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),
    "Seed-Coder": InfillForm(
        "<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", suffix_first=True
    ),
    "Codestral": InfillForm(
        "[PREFIX]", "[SUFFIX]", None, suffix_first=True, ends=("[PREFIX]", "[SUFFIX]")
    ),
}
"""The families, by the models that made them known; each before those whose tokens it has too."""


def infill_form(added: Collection[str]) -> InfillForm | None:
    """Return the form of the family whose tokens are all among ``added``; None if there is none."""
    return next((form for form in FORMS.values() if all(one in added for one in form.needed)), None)


def folder_fills(folder: Path) -> bool:
    """Return whether the tokenizer of a model folder has the tokens of a family, by its files. This
    blocks for as long as its disk does. What can't be read has none."""
    names: set[str] = set()
    for file in ("tokenizer.json", "tokenizer_config.json", "added_tokens.json"):
        try:
            names.update(_added(read_regular(folder / file, _MOST_BYTES)))
        except (OSError, ValueError, RecursionError):
            continue
    return infill_form(names) is not None


def _added(content: bytes) -> Iterator[str]:
    """Yield the names of the tokens that one of a tokenizer's files adds to its vocabulary."""
    if (begin := content.find(_ADDED)) >= 0:
        # The vocabulary behind them has megabytes.
        rest = content[begin + len(_ADDED) :].lstrip(b" \t\r\n:").decode()
        found, _ = json.JSONDecoder().raw_decode(rest)
    else:
        found = json.loads(content)
        if isinstance(found, dict) and "added_tokens_decoder" in found:
            found = found["added_tokens_decoder"]
            found = list(found.values()) if isinstance(found, dict) else []
    if isinstance(found, dict):
        yield from (name for name in found if isinstance(name, str))
    for entry in found if isinstance(found, list) else ():
        if isinstance(entry, dict) and isinstance(name := entry.get("content"), str):
            yield name
