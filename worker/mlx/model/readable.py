"""A model folder in the form that both libraries read.

Tools write folders that the libraries take for something else: a config.json of transformers 5, one
with a byte order mark, files of weights that no index names. Such a folder is read through another
one, of links, that says the same in the libraries' words. It holds until the process ends, because
weights are read when they are first used.
"""

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import structlog
from mlx_lm.utils import MODEL_REMAPPING

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.regular_file import parse_json, read_regular
from lmx.protocol.models.checkpoint import (
    CONFIG_LIMIT_BYTES,
    INDEX_NAME,
    TEXT_SECTIONS,
    CheckpointConfig,
    indexed_names,
    weight_files,
)
from lmx.protocol.states import ModelKind
from lmx.worker.mlx.memory.windows import with_windows
from lmx.worker.mlx.model.inexact import allowed
from lmx.worker.mlx.model.rope import factors_for, with_needed_scaling, with_rope

log = structlog.get_logger()

_ROPE_KEYS: Final = (
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "rope_local_base_freq",
    "swa_rope_theta",
    "rotary_emb_base",
    "rotary_pct",
)
_PREFIX: Final = "lmx-folder-"
"""The process's number follows it."""
_TEMPLATE_FILES: Final = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True, slots=True)
class FolderChanges:
    """What the configuration puts in the place of a folder's own."""

    chat_template: str | None = None
    """A chat template: its text, or the file that has it."""
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    """Values for its tokenizer_config.json."""
    context_tokens: int | None = None
    """The longest text that it is to take. None: as long as it was made for."""
    allow_inexact: bool = False
    """Whether it is read although its model will be computed wrongly."""


class Readable(NamedTuple):
    """A folder in the form that both libraries read."""

    folder: Path
    config: Mapping[str, Any]
    """What its config.json says."""

    remarks: tuple[str, ...]
    """Why its answers may differ from what the model was made for."""


def readable(folder: Path, given: CheckpointConfig, changes: FolderChanges) -> Readable:
    """Return a folder that says the same as ``folder``, with ``changes``, to both libraries.

    ``given`` is what its config.json says. It is ``folder`` itself where nothing differs. Raises
    :class:`OperationError` for one that says what no library reads, and ``OSError``.
    """
    config, remarks = _in_their_words(given, changes)
    wanted = {file.name for file in weight_files(folder, ModelKind.CHAT)}
    present = {file.name for file in folder.glob("*.safetensors")}
    named = indexed_names(folder)
    if named & present and (missing := sorted(named - present)):
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{folder} has no {missing[0]}, which its {INDEX_NAME} names: fetch the model again.",
        )
    others = present - wanted
    if (folder / INDEX_NAME).exists() and not wanted <= named:
        others.add(INDEX_NAME)
    written: dict[str, Any] = {}
    if config != given.whole or given.has_mark:
        written["config.json"] = config
    written |= _changed(folder, changes)
    if changes.chat_template is not None:
        others.update(_TEMPLATE_FILES)
    if not written and not others:
        return Readable(folder, config, remarks)
    log.info("model.folder_adapted", written=sorted(written), left_out=sorted(others))
    return Readable(_linked(folder, others, written), config, remarks)


def _in_their_words(
    given: CheckpointConfig, changes: FolderChanges
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the config.json that the libraries read, and remarks."""
    reads = _keys_of_class(given.whole)
    context_tokens = changes.context_tokens or given.context_tokens or 0
    remarks: list[str] = []

    def read(section: Mapping[str, Any]) -> dict[str, Any]:
        made, unscaled = with_rope(_with_experts(section), reads)
        made, unordered = with_windows(made, context_tokens)
        for ignored in filter(None, (unscaled, unordered)):
            problem = f"config.json {ignored}, which the engine's class of this type can't compute."
            remarks.append(allowed(problem, changes.allow_inexact))
        made, differing = factors_for(made, context_tokens)
        if differing:
            remarks.append(
                f"Texts of up to {differing} tokens are computed with the rotary embeddings that "
                f"the model has for longer ones. With context_length: {differing} they are not."
            )
        for name in TEXT_SECTIONS:
            if isinstance(inner := made.get(name), Mapping):
                made[name] = read(inner)
        return made

    return with_needed_scaling(read(given.whole)), tuple(remarks)


def _with_experts(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the section with what transformers 5 calls ``num_local_experts`` by its other name
    too, which the classes of Qwen's types read."""
    count = section.get("num_local_experts")
    return section if count is None else {"num_experts": count, **section}


def _keys_of_class(config: Mapping[str, Any]) -> Collection[str]:
    """Return the keys of config.json that the class of this type reads, in either library; as far
    as its source shows."""
    name = str(config.get("model_type"))
    name = MODEL_REMAPPING.get(name, name)
    if not name.isidentifier():
        return frozenset()
    found: set[str] = set()
    for module in (f"mlx_lm.models.{name}", f"mlx_vlm.models.{name}.config"):
        try:
            spec = find_spec(module)
        except ModuleNotFoundError:
            continue
        if spec is None or spec.origin is None:
            continue
        source = Path(spec.origin).read_text(encoding="utf-8")
        # What a class derives from other keys it may refuse as one.
        found |= {key for key in _ROPE_KEYS if key in source and f"def {key}(" not in source}
    return found


def _changed(folder: Path, changes: FolderChanges) -> dict[str, Any]:
    written: dict[str, Any] = {}
    if changes.chat_template is not None:
        written["chat_template.jinja"] = _template(changes.chat_template)
    if changes.tokenizer_config:
        file = folder / "tokenizer_config.json"
        own = parse_json(read_regular(file, CONFIG_LIMIT_BYTES)) if file.exists() else {}
        written["tokenizer_config.json"] = {**own, **changes.tokenizer_config}
    return written


def _template(given: str) -> str:
    if "{" in given:
        return given
    try:
        return read_regular(Path(given).expanduser(), CONFIG_LIMIT_BYTES).decode()
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        raise OperationError(
            ErrorCode.CONFIG_INVALID, f"chat_template: {given} can't be read: {error}."
        ) from error


def _linked(folder: Path, left_out: Collection[str], written: Mapping[str, Any]) -> Path:
    # A worker that is killed, or ends at once, leaves its own.
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = left.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdecimal() and len(pid) < 10 and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    for entry in folder.iterdir():
        if entry.name not in left_out and entry.name not in written:
            (made / entry.name).symlink_to(entry.resolve())
    for name, content in written.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (made / name).write_text(text, encoding="utf-8")
    return made
