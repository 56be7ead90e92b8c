"""A program that reads models' files. It takes one question a line on stdin, and prints one answer
a line on stdout:

    python -m lmx.supervisor.memory.inspect_main

It is a program of its own because the files may come from anywhere, on a disk that may never
answer. Whatever goes wrong costs only the one answer. It ends when its stdin does. Beside the
worker it is the only program that imports an engine's module, to ask it how much memory a model
takes.

A line is JSON. `{"model": <Question>}` is answered with `{"inspection": <Inspection>}`.
`{"whole": path}` is answered with `{"whole": bool}`: whether a file is there, with all parts of its
model. A bug here or in an engine is answered with `{"error": text}`.
"""

import contextlib
import errno
import hashlib
import json
import os
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.protocol.host import rdma
from lmx.protocol.host.regular_file import parse_json, read_regular
from lmx.protocol.host.stdout import take_stdout
from lmx.protocol.models.adapter import read_adapter_config
from lmx.protocol.models.checkpoint import (
    CONFIG_LIMIT_BYTES,
    CheckpointConfig,
    count,
    drafter_folder,
    read_checkpoint_config,
    weight_files,
)
from lmx.protocol.models.default_engine import MLX_ENGINE
from lmx.protocol.models.engine import estimate_function
from lmx.protocol.models.infill import folder_fills
from lmx.protocol.models.kind import read_kind, speech_family
from lmx.protocol.models.media import media_kinds
from lmx.protocol.models.ranks import parallel_of
from lmx.protocol.models.safetensors import read_tensors
from lmx.protocol.models.voices import voice_files
from lmx.protocol.states import MediaKind, ModelKind
from lmx.protocol.wire import codec
from lmx.supervisor.config.sources import (
    FolderSource,
    GgufSource,
    Source,
    folder_path,
    parse_source,
)
from lmx.supervisor.memory.fetched import fetched_folder
from lmx.supervisor.memory.files import (
    STAMP_NAME,
    content_stamp,
    converted_file,
    missing_part,
    part_names,
    read_stamp,
)
from lmx.supervisor.memory.inspection import (
    MOST_BYTES,
    Inspection,
    ModelFacts,
    ModelFiles,
    Question,
    figures_problem,
    shown,
)
from lmx.supervisor.memory.quantized import quantized_words
from lmx.supervisor.state.home import Home

_ENCODER_FILE: Final = "sentence_bert_config.json"

_MOST_MEMORY_BYTES: Final = 4 * 1024**3
_CPU_S: Final = 30
"""The processor time that one answer may take. The supervisor waits less than this, unless the
machine is busy with something else."""


def inspect(question: Question, home: Home) -> Inspection:
    """Read a model's files. This blocks for as long as their disk does. Whatever is in the files,
    it raises nothing because of it."""
    found = Inspection(question)
    try:
        found = _located(found, home)
        if not found.whole:
            return found
        return _read(found, home)
    except LmxError as error:
        return replace(found, problem=shown(error.message))
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        where = found.path or question.source
        why = f"{error or type(error)}{privacy_hint(error)}"
        return replace(found, problem=shown(f"{where} can't be read: {why}"))


def privacy_hint(error: BaseException, platform: str = sys.platform) -> str:
    """Return what to do about a file that macOS keeps from this program; an empty text for any
    other error. Pure.

    It refuses without a dialog, and only to programs that launchd runs, so that the same model
    loads from a terminal.
    """
    if platform != "darwin" or not isinstance(error, OSError) or error.errno != errno.EPERM:
        return ""
    return (
        ". macOS keeps Documents, Desktop, Downloads and other disks from programs that launchd "
        "runs: move it, e.g. to ~/models, or allow it in System Settings > Privacy & Security"
    )


def _located(found: Inspection, home: Home) -> Inspection:
    question = found.question
    source = parse_source(question.source)
    problem = _source_problem(source)
    found = replace(found, source_problem=None if problem is None else shown(problem))
    if isinstance(source, GgufSource):
        found = replace(found, gguf_path=str(converted_file(folder_path(source.path))))
    if question.path is not None:
        missing = _outdated(Path(question.path), source)
        return replace(found, path=question.path, missing=missing)
    if isinstance(source, FolderSource):
        return replace(found, path=str(folder_path(source.path)))
    folder = fetched_folder(question.source, home, os.environ)
    if folder is None:
        return found
    missing = missing_part(folder)
    return replace(found, path=str(folder), missing=None if missing is None else shown(missing))


def _outdated(folder: Path, source: Source) -> str | None:
    """Return what a folder that was fetched before lacks by now, so that it must be fetched again:
    itself, or what its GGUF file has now. None: nothing, as far as can be seen."""
    if isinstance(source, FolderSource):
        return None
    if not folder.is_dir():
        return "the folder"
    stamp = read_stamp(folder)
    if stamp is None or not isinstance(source, GgufSource):
        return None
    file = converted_file(folder_path(source.path))
    try:
        content = content_stamp(file.with_name(name) for name in part_names(file.name))
    except OSError:
        return None  # The file is gone, and its conversion is all that is left.
    same = content.items() <= stamp.items()
    return None if same else shown(f"what was written to {file.name} since")


def _source_problem(source: Source) -> str | None:
    """Return what is wrong with the source of a model that is about to be added."""
    form = "name a folder in MLX form, a .gguf file or a repository org/name"
    match source:
        case FolderSource(path) if folder_path(path).is_file():
            return f"{path} is a file, and not a .gguf one: {form}"
        case FolderSource(path) if not folder_path(path).is_dir():
            return f"there is no folder {path}: check the path on the machine that runs lmx"
        case FolderSource(path) if not (folder_path(path) / "config.json").exists():
            return f"{path} has no config.json: {form}"
        case GgufSource(path) if not folder_path(path).is_file():
            return f"there is no file {path}: check the path on the machine that runs lmx"
        case _:
            return None


def _read(found: Inspection, home: Home) -> Inspection:
    question = found.question
    assert found.path is not None
    folder = Path(found.path)
    kind = question.kind or read_kind(folder)
    found = replace(found, kind=kind)
    config = read_checkpoint_config(_model_folder(folder))
    files = read_model_files(folder, kind, question.engine, config)
    created_s = max(0, int((folder / "config.json").stat().st_mtime))
    facts = ModelFacts(
        config.family,
        config.context_tokens,
        created_s,
        _media(folder, kind, config),
        sum(file.stat().st_size for file in folder.iterdir() if file.is_file()),
        tuple(voice_files(folder, speech_family(config) or "")) if kind is ModelKind.SPEECH else (),
        _quantized(folder),
        kind is ModelKind.CHAT and folder_fills(folder),
    )
    found = _with_adapters(replace(found, facts=facts, files=files), home)
    if question.engine == MLX_ENGINE and not weight_files(folder, kind):
        # Other engines say at the load what they lack.
        what = "a model's folder has *.safetensors next to config.json"
        return replace(found, problem=shown(f"no weights found in {folder}: {what}"))
    if question.ranks > 1:
        try:
            parallel_of(config, kind, question.ranks, question.parallel)
        except OperationError as error:
            return replace(found, problem=shown(error.message))
    if question.rdma_devices and (why := rdma.missing(question.rdma_devices, rdma.read_devices())):
        return replace(found, problem=why)
    if question.draft is None:
        return with_found_draft(found, folder)
    try:
        draft = read_model_files(Path(question.draft), ModelKind.CHAT, question.engine)
    except OperationError as error:
        return replace(found, problem=shown(f"speculation.draft: {error.message}"))
    return replace(found, draft_files=draft)


def _quantized(folder: Path) -> str | None:
    try:
        stamp = parse_json(read_regular(folder / STAMP_NAME, CONFIG_LIMIT_BYTES))
        words = quantized_words(str(stamp["source"]), stamp["result"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return None if words is None else shown(words)


def with_found_draft(found: Inspection, folder: Path) -> Inspection:
    """Return the answer with what is there to draft the model's tokens. What can't be read takes
    nothing: the worker does without it."""
    question, files = found.question, found.files
    assert files is not None
    if not question.finds_draft or found.kind is not ModelKind.CHAT:
        return found
    if (drafter := drafter_folder(folder)) is not None:
        with contextlib.suppress(OperationError):
            draft = read_model_files(drafter, ModelKind.CHAT, question.engine)
            return replace(found, draft_files=draft)
    heads = any("mtp" in tensor.name.split(".") for tensor in read_tensors(folder, found.kind))
    return replace(found, files=replace(files, own_heads=heads))


def _media(folder: Path, kind: ModelKind, config: CheckpointConfig) -> tuple[MediaKind, ...]:
    if kind is not ModelKind.CHAT:
        return ()
    taken = media_kinds(config, (tensor.name for tensor in read_tensors(folder, kind)))
    return tuple(each for each in MediaKind if each in taken)


def _with_adapters(found: Inspection, home: Home) -> Inspection:
    """Return the answer with what the adapters' files say. One that can't be used takes nothing,
    and the model does without it. Nothing is said of one that was not fetched yet."""
    files = found.files
    assert files is not None
    problems: list[str | None] = []
    paths = [fetched_folder(each, home, os.environ) for each in found.question.adapters]
    for path in paths:
        try:
            if found.kind is not ModelKind.CHAT:
                raise _refused("adapters are for models that write, and this one doesn't")
            if path is None:
                problems.append(None)
                continue
            weights = read_adapter_config(path).weights
            stat = weights.stat()
        except (OperationError, OSError) as error:
            why = error.message if isinstance(error, OperationError) else str(error)
            problems.append(shown(why))
            continue
        parts = [files.revision, str(weights), stat.st_size, stat.st_mtime_ns]
        files = replace(
            files,
            adapters_bytes=min(files.adapters_bytes + stat.st_size, MOST_BYTES),
            revision=hashlib.sha256(json.dumps(parts).encode()).hexdigest(),
        )
        problems.append(None)
    return replace(
        found,
        files=files,
        adapter_problems=tuple(problems),
        adapter_paths=tuple(None if path is None else str(path) for path in paths),
    )


def read_model_files(
    folder: Path, kind: ModelKind, engine: str, config: CheckpointConfig | None = None
) -> ModelFiles:
    """Read a model folder, and ask the engine how much memory the model takes. ``config`` is the
    content of the folder's config.json if it was read before.

    This blocks for as long as the folder's disk does. Raises :class:`OperationError` when it is not
    a model folder, whatever is wrong with it, and when the engine can't estimate the memory.
    """
    try:
        estimate = estimate_function(engine)
        config = config or read_checkpoint_config(_model_folder(folder))
        memory = estimate(folder, config, kind)
        problem = figures_problem(memory)
        if problem is not None:
            raise _refused(f"{folder / 'config.json'} makes no sense: {problem}")
        revision = _revision(folder, weight_files(folder, kind))
        return ModelFiles(memory, _longest_text(folder, config, kind), revision)
    except (OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, PermissionError):
            raise _refused(
                f"{error.filename or folder} can't be read ({error.strerror}): give it to the user "
                "that runs lmx, or `chmod u+r` it"
            ) from error
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, OSError):
            why = f"{error.strerror or error}{privacy_hint(error)}"
        raise _refused(f"{folder} can't be read as a model ({why}): fetch it again") from error


def _longest_text(folder: Path, config: CheckpointConfig, kind: ModelKind) -> int | None:
    """Return how many tokens a model takes: an encoder no more than it was trained with, if
    sentence-transformers' file says so. Raises ``ValueError`` for one that is not JSON."""
    file = folder / _ENCODER_FILE
    if kind not in (ModelKind.EMBEDDING, ModelKind.RERANK) or not file.is_file():
        return config.context_tokens
    found = parse_json(read_regular(file, CONFIG_LIMIT_BYTES))
    trained = count(found, "max_seq_length") if isinstance(found, dict) else 0
    limits = [tokens for tokens in (trained, config.context_tokens) if tokens]
    return min(limits, default=None)


def _model_folder(folder: Path) -> Path:
    if folder.is_dir():
        return folder
    raise _refused(
        f"{folder} {'is not a folder' if folder.exists() else 'does not exist'}: "
        "give a folder with config.json and *.safetensors, "
        "a .gguf file, or a Hugging Face repo id"
    )


def _refused(message: str) -> OperationError:
    return OperationError(ErrorCode.MODEL_SOURCE_INVALID, message)


def _revision(folder: Path, shards: list[Path]) -> str:
    config = hashlib.sha256(read_regular(folder / "config.json", CONFIG_LIMIT_BYTES)).hexdigest()
    files = [(file.name, file.stat()) for file in shards]
    if folder.parent.name == "snapshots":
        # The folder is in the hub's cache. Its name is the revision, and it holds links, whose
        # files another download may have made again.
        parts = [folder.name, config, [(name, stat.st_size) for name, stat in files]]
    else:
        sizes = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]
        parts = [str(folder), config, sizes]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _answer(line: str, home: Home) -> dict[str, Any]:
    asked = json.loads(line)
    if "model" in asked:
        question = codec.from_map(Question, asked["model"], "question")
        return {"inspection": codec.to_map(inspect(question, home))}
    file = Path(asked["whole"])
    return {"whole": all(file.with_name(part).is_file() for part in part_names(file.name))}


def _limit() -> None:
    """Set limits, so that a file which makes this process grow or compute without end also ends the
    process.

    macOS has no limit of memory that fits: it counts all that is mapped, of which a process has
    gigabytes before its first line runs, and refuses or ends what is healthy.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_cpu() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    with contextlib.suppress(OSError, ValueError):
        limit_s = int(used.ru_utime + used.ru_stime) + _CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, hard))


def main() -> int:
    """Run the program; returns its exit status."""
    _limit()
    answers = take_stdout()
    home = Home.from_environment(os.environ)
    for line in sys.stdin:
        _limit_cpu()
        try:
            answer = _answer(line, home)
        except Exception as error:
            answer = {"error": shown(f"{type(error).__name__}: {error}")}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
