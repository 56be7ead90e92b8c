"""``LMX_HOME``, the folder in which lmx keeps all that it writes. This module only names paths."""

from __future__ import annotations

import contextlib
import ctypes
import os
import plistlib
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.log_files import process_log, slug, worker_log
from lmx.protocol.host.quarantine_file import quarantine_file
from lmx.protocol.wire.endpoints import RunDirectory


class _Place:
    """A path below the home, as an attribute."""

    def __init__(self, below: str) -> None:
        self._below = below

    def __get__(self, home: Home, _owner: type) -> Path:
        return home.path / self._below


COMMAND_MARK: Final = "command "
"""What stands before the pid in the lock's file if a command holds the lock, and no supervisor."""


class LockHolder(NamedTuple):
    """A process that holds the lock."""

    pid: int
    is_command: bool
    """Whether it is a command, and not this one."""


def lock_holder(descriptor: int) -> LockHolder | None:
    """Return who holds a lock that is held, None if its file does not say it. The file may still
    say who held it before: a pid counts only while its process lives."""
    mark = os.pread(descriptor, 32, 0).decode("ascii", "replace")
    digits = mark.removeprefix(COMMAND_MARK).strip()
    if not digits.isascii() or not digits.isdecimal():
        return None
    pid = int(digits)
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass  # it is another user's
    return LockHolder(pid, mark.startswith(COMMAND_MARK) and pid != os.getpid())


@dataclass(frozen=True, slots=True)
class Home:
    """The folders below ``LMX_HOME`` (default ``~/.lmx``)."""

    path: Path

    lock = _Place("lock")
    """The lock that the supervisor holds. It is not in ``run``, because people remove that."""
    state = _Place("state")
    """The folder of the records of running processes, and of what must be remembered."""
    admin_key = _Place("admin.key")
    """The key of the routes below /admin."""
    measured = _Place("state/measured.json")
    """The memory that models were measured to take."""
    pins = _Place("state/pins.json")
    """The models that an operator pinned or unpinned."""
    holds = _Place("state/held.json")
    """The models that an operator drained."""
    keys = _Place("state/keys.json")
    """The keys that operators made, without their secrets."""
    peers = _Place("state/peers.json")
    """The peers that were stored while lmx ran, with the keys that are sent to them."""
    certificate = _Place("state/certificate.pem")
    """The certificate that this machine shows to its peers, and its key."""
    added_models = _Place("state/models.json")
    """The models that were added or downloaded while lmx ran."""
    launch = _Place("state/launch.json")
    """With what configuration the lmx that runs was started."""
    launched = _Place("state/launch")
    """For programs that `lmx launch` starts: a folder for each, with files that it is given."""
    events = _Place("state/events.jsonl")
    """The latest events, also of earlier supervisors."""
    downloads = _Place("state/downloads.json")
    """The downloads and their results."""
    jobs = _Place("state/jobs.sqlite")
    """The router's records of generations."""
    files = _Place("files")
    """The folder of the files that clients upload, and of the results of batches."""
    logs = _Place("logs")
    """The folder of the logs, with a file for each process."""
    models = _Place("models")
    """The folder of the models that lmx imported."""
    cache = _Place("cache")
    """The folder of what can be computed again."""
    temporary = _Place("tmp")
    """The ``TMPDIR`` of workers and of the router."""
    default_config = _Place("lmx.yaml")
    """The configuration file if neither ``--config`` nor ``LMX_CONFIG`` names another one."""
    fetch_log = _Place("logs/fetch.log")
    """What the libraries say that download and convert models."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Home:
        """Return the home that ``LMX_HOME`` names, as an absolute path. Raises
        :class:`OperationError` (config_invalid) if there is no such folder in principle."""
        chosen = environment.get("LMX_HOME") or "~/.lmx"
        if "\0" in chosen:
            raise OperationError(ErrorCode.CONFIG_INVALID, "LMX_HOME is not the name of a folder")
        try:
            chosen.encode()
        except UnicodeEncodeError as error:
            # It is part of messages, logs and JSON, which are UTF-8.
            raise OperationError(
                ErrorCode.CONFIG_INVALID,
                f"LMX_HOME ({chosen!a}) is not UTF-8: set it to a folder whose name is",
            ) from error
        try:
            return cls(Path(os.path.abspath(Path(chosen).expanduser())))  # noqa: PTH100
        except (RuntimeError, OSError) as error:
            # No HOME, a user that is not there, or a working directory that was removed.
            raise OperationError(
                ErrorCode.CONFIG_INVALID,
                f"{chosen} names no folder here ({error}): set LMX_HOME to the absolute path of "
                "a folder of your own",
            ) from error

    def check(self) -> None:
        """Look whether commands can work with this home. Changes nothing. A home that is not there
        yet is no problem.

        Raises :class:`OperationError` (config_invalid).
        """
        self.run.check_length()
        try:
            mode = self.path.stat().st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unusable(self.path, error.strerror or str(error)) from error
        if not stat.S_ISDIR(mode):
            raise _unusable(self.path, "it is no folder")
        if not os.access(self.path, os.R_OK | os.X_OK):
            raise _unusable(self.path, "you may not look into it")

    @property
    def run(self) -> RunDirectory:
        """The folder of the sockets. It is private to the user."""
        return RunDirectory(self.path / "run")

    def prefix_cache(self, model_id: str) -> Path:
        """Return the folder of a model's computed prompts. Its worker makes the folder."""
        return self.cache / "prefix" / slug(model_id)

    def worker_log(self, model_id: str) -> Path:
        """Return the log file of a model's workers. They write to it one after the other."""
        return worker_log(self.logs, model_id)

    @property
    def spare_log(self) -> Path:
        """What the last spare worker wrote before it had a model."""
        return process_log(self.logs, "spare")

    @property
    def router_log(self) -> Path:
        """The router's log."""
        return process_log(self.logs, "router")

    @property
    def supervisor_log(self) -> Path:
        """The supervisor's own log."""
        return process_log(self.logs, "supervisor")

    @property
    def has_keys(self) -> bool:
        """Whether there is a file of keys: then requests to models need one wherever others can
        reach them, also when none is left in it."""
        return os.path.lexists(self.keys)

    def prepare(self) -> list[str]:
        """Make the folders, which only their owner can read. What is there and is not a folder is
        set aside, but for a link of the models to a disk that may come. Returns a sentence for
        people about each such thing.

        Raises :class:`OperationError` when other users can change what is in the home.
        """
        self.run.check_length()
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise _unusable(self.path, error.strerror or str(error)) from error
        _check_private(self.path)
        notices = []
        private = (self.state, self.logs, self.cache, self.temporary, self.run.path)
        for folder in (*private, self.models):
            if folder == self.models and _leads_nowhere(folder):
                notices.append(f"{folder} is a link to {folder.readlink()}, which is not there now")
                continue
            if os.path.lexists(folder) and not folder.is_dir():
                aside = quarantine_file(folder)
                notices.append(f"{folder} was no folder: it was set aside as {aside.name}")
            folder.mkdir(exist_ok=True, mode=0o700)
        for folder in private:
            # An earlier version may have made it otherwise, and the disk may take no change now.
            with contextlib.suppress(OSError):
                if folder.stat().st_mode & 0o077:
                    folder.chmod(0o700)
        self.run.prepare()
        return notices


def _unusable(folder: Path, why: str) -> OperationError:
    return OperationError(
        ErrorCode.CONFIG_INVALID,
        f"{folder} can't be the home of lmx ({why}): set LMX_HOME to a folder of your own",
    )


def _leads_nowhere(folder: Path) -> bool:
    """Return whether this is a link to what is not there, as to a disk that is not mounted."""
    return folder.is_symlink() and not folder.exists()


def make_models_folder(folder: Path) -> None:
    """Make the folder of the models if it is not there. Raises ``OSError``, and
    :class:`OperationError` (insufficient_disk) if it is on a disk that is not mounted."""
    if _leads_nowhere(folder):
        raise OperationError(
            ErrorCode.INSUFFICIENT_DISK,
            f"{folder} is a link to {folder.readlink()}, which is not there: mount it",
        )
    folder.mkdir(parents=True, exist_ok=True)


def _check_private(folder: Path) -> None:
    info = folder.stat()
    if info.st_uid != os.geteuid():
        raise _unusable(folder, "it belongs to another user")
    if info.st_mode & 0o022:
        raise OperationError(
            ErrorCode.CONFIG_INVALID,
            f"{folder} can be changed by other users, and lmx trusts what is in it: set LMX_HOME "
            "to a folder of your own, or run `chmod go-w` on it",
        )


_NAME: Final = b"com.apple.metadata:com_apple_backup_excludeItem"
_VALUE: Final = plistlib.dumps("com.apple.backupd", fmt=plistlib.FMT_BINARY)
"""What ``tmutil addexclusion`` writes."""


def keep_out_of_backups(folder: Path) -> None:
    """Have Time Machine leave a folder out, as far as the file system can note that, and make the
    folder if it is not there. Does nothing on other machines. Raises ``OSError``."""
    if sys.platform != "darwin" or _leads_nowhere(folder):
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    call = getattr(ctypes.CDLL(None), "setxattr", None)
    if call is not None:
        # The last two arguments: from its first byte on, and no special way.
        call(bytes(folder), _NAME, _VALUE, ctypes.c_size_t(len(_VALUE)), 0, 0)
