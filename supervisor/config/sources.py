"""Reads where a model comes from: the text that a person writes becomes one of three sources.

Nothing here looks at a network, and only :func:`refuse_folder_as_repository` looks at a disk, so a
source that is read without an error may still not exist. The fetch program finds that out and
reports it.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from lmx.protocol.states import QuantizedBits
from lmx.supervisor.config.known_models import meant_instead, repository_of

# The hub's own rule: letters, digits, '-', '_' and '.'; neither part starts or ends with '-' or
# '.', and '--' and '..' never occur, because the hub's cache folders use '--' as a separator.
_HUB_PART = r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_HUB_NAME = re.compile(_HUB_PART)
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,127}")

# '.Q4_1', '-Q4_K_M', '-UD-IQ2_XXS', '.f16': how publishers of GGUF files name the weights' form.
_QUANTISATION = re.compile(
    r"[.\-_](?:ud-)?(?:i?q\d+(?:_[0-9a-z]+)*|tq\d+_\d+|mxfp4(?:_moe)?|bf16|f16|f32|fp16|fp32)$",
    re.IGNORECASE,
)
_FLOATS = frozenset({"bf16", "f16", "f32", "fp16", "fp32"})
# One file of several: 'name-00001-of-00003.gguf'.
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$"
NAME_CHARACTERS_MOST: Final = 200
NAME_WORDS: Final = "it has letters, digits and . _ : / @ + -, and begins with a letter or a digit"
"""The names of models, aliases and groups."""

_FILE_NAME_LIMIT = 500


class SourceError(ValueError):
    """A source or a list of models cannot be read. The message says what to write instead."""


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A folder in MLX form on this machine, used where it is."""

    path: str


@dataclass(frozen=True, slots=True)
class GgufSource:
    """A GGUF file on this machine, to be converted before it can be loaded."""

    path: str


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the model hub. A `revision` of None is the hub's default branch."""

    repo_id: str
    revision: str | None = None


Source = FolderSource | GgufSource | HubSource


def parse_source(text: str) -> Source:
    """Read one source: a path, or a hub repository `org/name` with an optional `@revision`.

    A path is absolute, starts with './', '../' or '~', is '.' or '..', or ends in '.gguf'. It is
    kept as it was written: `~` is not expanded here. Raises `SourceError` for anything else.
    """
    text = text.strip()
    if not text:
        raise SourceError("a model source is empty: write a folder, a .gguf file or org/name")
    if not text.isprintable():
        raise SourceError(f"model source {text!r} has unprintable characters")
    if text.lower().endswith(".gguf"):
        return GgufSource(text)
    if text in (".", "..") or text.startswith(("/", "./", "../", "~")):
        return FolderSource(text)
    return _parse_hub(text)


def refuse_folder_as_repository(text: str, here: Path = Path()) -> None:
    """Refuse a source that names a repository while a folder with a model stands at that path from
    here. This looks at the disk. Raises `SourceError`, which says how either is written. Also for a
    text that is no source."""
    source = text.strip()
    if not isinstance(parse_source(source), HubSource) or "@" in source:
        return
    folder = here / source
    try:
        is_model = (folder / "config.json").is_file()
    except OSError:
        return
    if is_model:
        raise SourceError(
            f"{source!r} would be a repository of the hub, and there is a folder {source} here: "
            f"write './{source}' for the folder, or '{source}@main' for the repository"
        )


def _parse_hub(text: str) -> HubSource:
    repo_id, at, revision = text.partition("@")
    org, slash, name = repo_id.partition("/")
    if not slash:
        raise SourceError(
            f"model source {text!r} is neither a path nor a hub repository: write "
            f"'./{text}' for a folder, or 'org/{text}' for a repository"
        )
    if not _HUB_NAME.fullmatch(org) or not _HUB_NAME.fullmatch(name) or len(repo_id) > 96:
        raise SourceError(
            f"model source {text!r} is not a hub repository 'org/name' (letters, digits, '-', "
            f"'_' and '.', 96 characters at most); if it is a folder, write './{text}'"
        )
    if not at:
        return HubSource(repo_id)
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise SourceError(
            f"model source {text!r}: the revision {revision!r} after '@' is not a branch, tag or "
            "commit; leave '@' out for the default branch"
        )
    return HubSource(repo_id, revision)


def parse_file_name(text: str) -> str:
    """Read the name of a file in a repository, as 'name.gguf' or 'folder/name.gguf'.

    Raises `SourceError` for anything that could lead out of the repository.
    """
    parts = text.split("/")
    if (
        len(text) > _FILE_NAME_LIMIT
        or not text.isprintable()
        or "\\" in text
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise SourceError(
            f"{text!r} is not a file of a repository: write its name as the hub lists it, as in "
            "'model-Q4_K_M.gguf'"
        )
    return text


def default_model_id(source: Source) -> str:
    """The id a model is served under when none is given.

    A hub repository keeps its name exactly. A folder and a file give their own name in lower
    case, a file without the ending that names its quantisation: 'Qwen3-0.6B-Q4_K_M.gguf' is
    'qwen3-0.6b'. Raises `SourceError` when no name is left, as for '/' or '..'.
    """
    match source:
        case HubSource(repo_id=repo_id):
            return repo_id
        case FolderSource(path=path):
            name = PurePath(path).name.lower()
        case GgufSource(path=path):
            stem = _SHARD.sub("", PurePath(path).name[: -len(".gguf")])
            name = (_QUANTISATION.sub("", stem) or stem).lower()
    model_id = re.sub(r"[^a-z0-9._-]+", "-", name).strip("-.")
    if not model_id:
        raise SourceError(
            f"no model id can be made from {path!r}: give one, as in 'my-model={path}'"
        )
    return model_id


def file_model_id(repo_id: str, filename: str) -> str:
    """Return the id of a model that is one GGUF file of a repository: its own, or the repository's
    where none can be made of the file's name."""
    try:
        return default_model_id(GgufSource(filename))
    except SourceError:
        return default_model_id(HubSource(repo_id))


def quantized_name(source: str, bits: QuantizedBits) -> str:
    """Return the id of the model that a source is quantized to: 'Qwen3-8B-4bit' for
    'Qwen/Qwen3-8B'. A file of a repository is written 'org/name/file.gguf'. Raises `SourceError`
    as `default_model_id` does."""
    parsed = parse_source(source)
    path = PurePath(source)
    if isinstance(parsed, GgufSource) and len(path.parts) > 2 and not path.is_absolute():
        name = file_model_id("/".join(path.parts[:2]), path.name)
    else:
        name = default_model_id(parsed)
    name = name.rpartition("/")[2]
    return f"{name}-{'mixed' if bits is QuantizedBits.MIXED else f'{bits}bit'}"


def absolute_source(text: str, folder: Path) -> str:
    """Return a source whose path is absolute, if it is a path: from a folder, unless it says where
    it begins. Other texts, also those that are no source, stay as they are."""
    try:
        source = parse_source(text)
    except SourceError:
        return text
    if isinstance(source, HubSource) or source.path.startswith("~"):
        return text
    return os.path.normpath(folder / source.path)


def folder_path(source: str) -> Path:
    """Return the absolute path of a folder that a person named. Links are not followed."""
    return Path(os.path.abspath(Path(source).expanduser()))  # noqa: PTH100


def names_quantisation(filename: str) -> bool:
    """Return whether the name of a GGUF file says that its weights are quantized."""
    found = _QUANTISATION.search(_SHARD.sub("", PurePath(filename).stem))
    return found is not None and found[0][1:].lower() not in _FLOATS


def file_hash(path: PurePath) -> str:
    """Return a hash of a GGUF file's path. It separates what this file was converted to
    from what other files were."""
    return hashlib.sha256(str(path).encode()).hexdigest()[:8]


def parse_models_variable(text: str) -> list[tuple[str, str]]:
    """Read 'id=source,source,...' into pairs of model id and source text, in order. A source may
    be a short name, which stands for its repository and is the id if none is given.

    Empty items, as from a comma at the end, are skipped. Raises `SourceError` for an id that is
    not one, an id given twice and a source that `parse_source` refuses.
    """
    models: dict[str, str] = {}
    for raw in text.split(","):
        item = raw.strip()
        if not item:
            continue
        # An id never starts like a path, so an '=' after such a start belongs to the path.
        named = "=" in item and not item.startswith(("/", ".", "~"))
        written = item.partition("=")[2].strip() if named else item
        source_text = repository_of(written)
        try:
            source = parse_source(source_text)
        except SourceError as error:
            raise SourceError(f"{error}{meant_instead(written)}") from error
        if named:
            model_id = item.partition("=")[0].strip()
        else:
            model_id = default_model_id(source) if source_text == written else written.lower()
        if not re.fullmatch(NAME_PATTERN, model_id) or len(model_id) > NAME_CHARACTERS_MOST:
            raise SourceError(f"{model_id!r} in {item!r} is not a model id: {NAME_WORDS}")
        if model_id in models:
            raise SourceError(
                f"model id {model_id!r} is given twice: for {models[model_id]!r} and for "
                f"{source_text!r}; write 'another-id={source_text}'"
            )
        models[model_id] = source_text
    return list(models.items())
