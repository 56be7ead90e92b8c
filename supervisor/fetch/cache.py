"""The hub client's cache, looked at and cleared:

    python -m lmx.supervisor.fetch.cache scan
    python -m lmx.supervisor.fetch.cache delete ORG/NAME [COMMIT...] [--file NAME]...

On stdout is one line of JSON. Of `scan`: a list of repositories, each `{"repo_id", "path",
"size_bytes", "modified_s", "snapshots": [{"commit", "refs", "path", "missing", "gguf"}]}`, where
`missing` is what a snapshot lacks, null for a whole model, and `gguf` has each whole GGUF file by
its name, with the path under which its conversion is kept. Of `delete`: `{"freed_bytes"}`; without
a commit it deletes all of a repository, also what came of an unfinished download; with files it
deletes these of a commit. Of both, when something can't be read or deleted: `{"error"}`, and exit
status 1.

It is a program of its own so that the supervisor never loads the hub client, and so that a slow
disk holds up nobody.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.file_download import repo_folder_name

from lmx.protocol.host.regular_file import read_regular
from lmx.supervisor.memory.files import converted_file, folder_bytes, missing_part, regular_files

_REF_LIMIT_BYTES = 4096


def scan() -> list[dict[str, Any]]:
    """Return the models of the cache, by name. A repository that can't be read, or that is deleted
    meanwhile, is left out.

    The client's own scan leaves out a repository as soon as one link of it leads nowhere.
    """
    cache = Path(HF_HUB_CACHE).expanduser()
    found = []
    for folder in sorted(cache.glob("models--*--*")):
        try:
            if folder.is_dir() and not folder.is_symlink():
                found.append(_repository(folder))
        except OSError as error:
            sys.stderr.write(f"{folder} can't be read: {error}\n")
    return found


def _repository(folder: Path) -> dict[str, Any]:
    return {
        "repo_id": folder.name.removeprefix("models--").replace("--", "/"),
        "path": str(folder),
        "size_bytes": folder_bytes(folder),
        "modified_s": _modified_s(folder),
        "snapshots": _snapshots(folder),
    }


def _snapshots(folder: Path) -> list[dict[str, Any]]:
    refs = {
        path.relative_to(folder / "refs").as_posix(): commit
        for path, commit in _refs(folder).items()
    }
    return [
        {
            "commit": path.name,
            "refs": [ref for ref, commit in refs.items() if commit == path.name],
            "path": str(path),
            "missing": _missing_part(path),
            "gguf": {
                str(file.relative_to(path)): str(converted_file(file))
                for file in path.rglob("*")
                if file.suffix.lower() == ".gguf" and file.is_file()
            },
        }
        for path in sorted((folder / "snapshots").glob("*"))
        if path.is_dir()
    ]


def _missing_part(folder: Path) -> str | None:
    """Return what a snapshot lacks. One that can't be read counts as incomplete, and does not
    affect the others."""
    try:
        return missing_part(folder)
    except OSError as error:
        return f"{folder.name} (it can't be read: {error.strerror or error})"


def _modified_s(folder: Path) -> float:
    blobs = [found.st_mtime for found in regular_files(folder / "blobs")]
    return max(blobs, default=folder.stat().st_mtime)


def delete(repo_id: str, commits: list[str], names: Collection[str] = ()) -> int:
    """Delete snapshots of a repository, these files of them, or all of it; returns the bytes that
    the disk has back.

    Only a folder that is in the cache by that name is touched.
    """
    cache = Path(HF_HUB_CACHE).expanduser()
    name = repo_folder_name(repo_id=repo_id, repo_type="model")
    folder = next((path for path in cache.iterdir() if path.name == name), None)
    if folder is None or folder.is_symlink():
        return 0
    before_bytes = folder_bytes(folder)
    if names:
        for commit in commits:
            for name in names:
                (folder / "snapshots" / commit / name).unlink(missing_ok=True)
        _delete_unlinked(folder)
    elif commits:
        _delete_snapshots(folder, commits)
    else:
        shutil.rmtree(folder)
        shutil.rmtree(cache / ".locks" / name, ignore_errors=True)
    return before_bytes - (folder_bytes(folder) if folder.exists() else 0)


def _delete_snapshots(folder: Path, commits: Collection[str]) -> None:
    """Delete snapshots, the names that mean them, and what no other snapshot links to.

    The client's own way does nothing as soon as one link of the repository leads nowhere.
    """
    for commit in commits:
        shutil.rmtree(folder / "snapshots" / commit)
    for path, commit in _refs(folder).items():
        if commit in commits:
            path.unlink()
    _delete_unlinked(folder)


def _delete_unlinked(folder: Path) -> None:
    linked = {path.resolve() for path in (folder / "snapshots").rglob("*") if path.is_symlink()}
    for blob in (folder / "blobs").glob("*"):
        if blob.suffix != ".incomplete" and blob.resolve() not in linked:
            blob.unlink()


def _refs(folder: Path) -> dict[Path, str]:
    return {
        path: read_regular(path, _REF_LIMIT_BYTES).decode("utf-8", "replace").strip()
        for path in sorted((folder / "refs").rglob("*"))
        if path.is_file() and path.stat().st_size <= _REF_LIMIT_BYTES
    }


def main(argv: list[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m lmx.supervisor.fetch.cache")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("scan")
    deleting = commands.add_parser("delete")
    deleting.add_argument("repo_id")
    deleting.add_argument("commits", nargs="*")
    deleting.add_argument("--file", action="append", default=[], dest="names")
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "scan":
            answer: Any = scan()
        else:
            answer = {"freed_bytes": delete(arguments.repo_id, arguments.commits, arguments.names)}
    except OSError as error:
        answer = {"error": f"{error.filename or HF_HUB_CACHE}: {error.strerror or error}"}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 1 if isinstance(answer, dict) and "error" in answer else 0


if __name__ == "__main__":
    sys.exit(main())
