"""Lets a worker import its model libraries in less time. No mlx here: this comes before them.

transformers reads all its 1,600 files of models when it is imported, twice in each process, to find
out which names they export: 0.4 s of the processor, a quarter of a worker's start. What it found is
kept in the user's cache, for as long as the same transformers is installed.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import structlog

from lmx.protocol.host.cache_folder import cache_dir
from lmx.protocol.host.imports import quick_imports
from lmx.protocol.host.regular_file import parse_json, read_regular

log = structlog.get_logger()

_SCANNER: Final = "transformers.utils.import_utils"
_SCAN: Final = "create_import_structure_from_path"
_SPREAD: Final = "spread_import_structure"
_UNUSED: Final = frozenset({"requests", "httpcore2"})
"""What mlx-vlm and huggingface_hub fetch with, which no worker does. They and what they import are
a tenth of the time. What workers use may not be here: such a module can't be used first by two
threads at a time."""
_KEPT: Final = "transformers-"
_FORM: Final = 2
"""Raise it whenever what the file holds changes."""
_MOST_KEPT: Final = 16
"""For so many installations what they export is kept. The oldest is forgotten first."""
_REQUIRED: Final = "needs "
"""Begins a key that is a set of libraries: JSON's keys are texts."""
_MOST_BYTES: Final = 8 << 20

Exports = dict[Any, Any]
"""What a folder exports: by the names of its folders what they export, and by sets of libraries
that it takes, by the names of modules, the names in them."""


@contextmanager
def quick_library_imports() -> Iterator[None]:
    """Import the model libraries within the block. A file that can't be read or written costs the
    time alone."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        with quick_imports(), _quick_versions():
            yield
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def _quick_versions() -> Iterator[None]:
    """Within the block the versions of packages, of which transformers asks for a dozen, are read
    from the beginnings of their descriptions. Otherwise each description is parsed whole."""
    ask = importlib.metadata.version

    def ask_quickly(name: str) -> str:
        text = importlib.metadata.distribution(name).read_text("METADATA") or ""
        for line in text.partition("\n\n")[0].splitlines():
            if line.startswith("Version: "):
                return line.removeprefix("Version: ").strip()
        return ask(name)

    setattr(importlib.metadata, "version", ask_quickly)  # noqa: B010  mypy allows no other
    try:
        yield
    finally:
        setattr(importlib.metadata, "version", ask)  # noqa: B010  mypy allows no other


class _Finder(MetaPathFinder):
    """Finds transformers' own module of imports, so that its scan is replaced before its first, and
    what is not used, so that it is imported at its first use."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        replaced = name == _SCANNER or name in _UNUSED
        spec = PathFinder.find_spec(name, path) if replaced else None
        if spec is None or spec.loader is None:
            return None
        if name in _UNUSED:
            spec.loader = LazyLoader(spec.loader)
            return spec
        execute = spec.loader.exec_module

        def execute_and_replace(module: ModuleType) -> None:
            execute(module)
            scan, spread = getattr(module, _SCAN, None), getattr(module, _SPREAD, None)
            if scan is not None and spread is not None and spec.origin is not None:
                models = Path(spec.origin).parents[1] / "models"
                with contextlib.suppress(RuntimeError):  # The user has no home.
                    kept = kept_file(cache_dir(), models)
                    setattr(module, _SCAN, remembered(scan, spread, models, kept))

        setattr(spec.loader, "exec_module", execute_and_replace)  # noqa: B010  mypy allows no other
        return spec


def kept_file(folder: Path, models: Path) -> Path:
    """Return the file for what the folder ``models`` exports. Each installation has its own: those
    that are used in turns would otherwise replace each other's."""
    digest = hashlib.sha256(str(models).encode()).hexdigest()
    return folder / f"{_KEPT}{digest[:16]}.json"


def remembered(
    scan: Callable[[Any], Exports], spread: Callable[[Exports], Exports], models: Path, kept: Path
) -> Callable[[Any], Exports]:
    """Return a ``scan`` that reads the folder ``models`` once for all processes: what it exports is
    in the file ``kept``. A file of another folder or version is replaced. What it returns has been
    ``spread`` already, which transformers does with it next: another time changes nothing, and
    takes little."""
    found: list[Exports] = []

    def scan_once(path: Any) -> Exports:
        folder = Path(path)
        if models not in (folder, folder.parent) or folder.is_dir() != (folder == models):
            return scan(path)
        if not found:
            found.append(_read(kept, models) or _scanned(scan, spread, models, kept))
        return found[0]

    return scan_once


def _read(kept: Path, models: Path) -> Exports | None:
    try:
        content = parse_json(read_regular(kept, _MOST_BYTES))
        if content["of"] == _installed(models):
            exports: Exports = _decoded(content["exports"])
            return exports
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _scanned(
    scan: Callable[[Any], Exports], spread: Callable[[Exports], Exports], models: Path, kept: Path
) -> Exports:
    exports = spread(scan(models))
    partial = kept.with_name(f".{kept.name}-{os.getpid()}")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"of": _installed(models), "exports": _encoded(exports)}))
        partial.replace(kept)
        _forget_oldest(kept.parent)
    except OSError as error:
        log.info("exports.not_kept", path=str(kept), error=str(error))
    return exports


def _forget_oldest(folder: Path) -> None:
    """Keep the files of a few installations. Raises ``OSError``."""
    by_age = sorted(folder.glob(f"{_KEPT}*.json"), key=lambda each: each.lstat().st_mtime_ns)
    for each in by_age[:-_MOST_KEPT]:
        each.unlink(missing_ok=True)


def _installed(models: Path) -> list[Any]:
    return [
        _FORM,
        importlib.metadata.version("transformers"),
        str(models),
        models.stat().st_mtime_ns,
    ]


def _encoded(exports: Any) -> Any:
    if not isinstance(exports, dict):
        return sorted(exports)
    return {
        _REQUIRED + " ".join(sorted(key)) if isinstance(key, frozenset) else key: _encoded(value)
        for key, value in exports.items()
    }


def _decoded(content: Any) -> Any:
    if isinstance(content, list):
        return {str(name) for name in content}
    return {
        frozenset(key.removeprefix(_REQUIRED).split()) if key.startswith(_REQUIRED) else key: (
            _decoded(value)
        )
        for key, value in content.items()
    }
