"""Remembers that a model was right in all trials of a load, so that its next load does without.

The trials are most forward passes of a load: 26 of 34 of a plain model, 46 of 54 on a GPU. What
they find depends on the model's files, the libraries and the device. A small file in the user's
cache for each says what was found; any worker may write it, and what it replaces is the same.
A model that was not right in all of them is tried at each load, so that the log says what it can't.
"""

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from lmx.protocol.host.regular_file import parse_json, read_regular
from lmx.worker.mlx.decoding.rollback import Blocks, Undo

log = structlog.get_logger()

_MOST_BYTES: Final = 4096
_MOST_FILES: Final = 256
"""The oldest are removed."""


@dataclass(frozen=True, slots=True)
class Trials:
    """Those of one model with one set of versions. ``name`` is a digest of all that matters."""

    folder: Path
    name: str

    def recall(self) -> Blocks | None:
        """Return what the model can do with several tokens of a row; its rows can decode together
        then. Returns None if that is not known. A file that can't be understood is as none."""
        try:
            found = parse_json(read_regular(self.folder / self.name, _MOST_BYTES))
            blocks = Blocks(
                _truth(found["right"]),
                _undo(found["alone"]),
                _undo(found["together"]),
                _truth(found["apart"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.info("trials.not_recalled", reason=repr(error)[:200])
            return None
        log.info("trials.recalled", **_plain(blocks))
        return blocks

    def keep(self, blocks: Blocks) -> None:
        """Remember what was found of a model whose rows can decode together. If it can't be
        written, the next load tries again."""
        if not blocks.right:
            return
        partial = self.folder / f".{self.name}-{os.getpid()}"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial.write_text(json.dumps(_plain(blocks)))
            partial.replace(self.folder / self.name)
            self._remove_oldest()
        except OSError as error:
            log.info("trials.not_kept", reason=str(error))
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)

    def _remove_oldest(self) -> None:
        files = list(self.folder.iterdir())
        if len(files) > _MOST_FILES:
            files.sort(key=lambda path: path.lstat().st_mtime_ns)
            for path in files[: len(files) - _MOST_FILES]:
                path.unlink(missing_ok=True)


def _plain(blocks: Blocks) -> dict[str, Any]:
    return {
        name: value.name if isinstance(value, Undo) else value
        for name, value in asdict(blocks).items()
    }


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _undo(value: Any) -> Undo | None:
    return None if value is None else Undo[value]
