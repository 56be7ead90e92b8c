"""Which models on the disk can be served, and which files belong to which model. No file is read
here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.inventory import AvailableModel
from lmx.supervisor.config.known_models import repository_of
from lmx.supervisor.config.model import ModelConfig
from lmx.supervisor.config.sources import (
    FolderSource,
    GgufSource,
    HubSource,
    Source,
    folder_path,
    parse_source,
)
from lmx.supervisor.inventory.disk import CachedRepo, Conversion, Snapshot
from lmx.supervisor.inventory.download_records import Download
from lmx.supervisor.memory.files import part_names


@dataclass(frozen=True, slots=True)
class Served:
    """A model of the configuration, or an added one."""

    model_id: str
    source: Source
    file: Path | None = None
    """The GGUF file under which its conversion is kept. None for other models, and
    while the model's files were not inspected yet."""
    parts: tuple[Source, ...] = ()
    """Where its adapters and its draft model come from."""

    @classmethod
    def of(cls, model: ModelConfig, file: Path | None) -> Served:
        """Return a model with its GGUF file, as far as that is known."""
        draft = model.speculation and model.speculation.draft
        parts = (*model.adapters.values(), *([draft] if draft else []))
        return cls(model.id, parse_source(model.source), file, tuple(map(parse_source, parts)))

    @property
    def gguf(self) -> Path | None:
        """The GGUF file that the model is made from; None for other models."""
        if not isinstance(self.source, GgufSource):
            return None
        return self.file or folder_path(self.source.path)


@dataclass(frozen=True, slots=True)
class DeletionPlan:
    """What is to be deleted."""

    repo_id: str | None = None
    """The repository in the hub's cache of which something is deleted."""
    commits: tuple[str, ...] = ()
    """The commits of the repository that are deleted. Empty: the whole repository."""
    snapshots: tuple[Path, ...] = ()
    """The folders of these commits, or the files of ``names`` in the only one."""
    names: tuple[str, ...] = ()
    """The files of the only commit that are deleted. Empty: all of them."""
    folders: tuple[Path, ...] = ()
    """Folders that lmx made from ``files``, and deletes."""
    files: tuple[Path, ...] = ()
    """The GGUF files of ``folders``."""

    def includes(self, download: Download) -> bool:
        """Return whether what was downloaded is deleted. Of a whole repository it is, also what has
        arrived of it."""
        whole = bool(self.repo_id) and not self.commits
        if whole and download.repo_id == self.repo_id:
            return True
        gone = (*self.snapshots, *self.folders)
        return download.path is not None and _lies_in(download.path, gone)


def available(
    repos: Iterable[CachedRepo],
    conversions: Iterable[Conversion],
    served: Sequence[Served],
) -> tuple[AvailableModel, ...]:
    """Return the models that are complete, sorted by name."""
    found = []
    for repo in repos:
        # A file is linked there only after all of it has arrived.
        whole = [s for s in repo.snapshots if s.gguf or s.missing is None]
        if whole:
            ids = (_served_as(repo, snapshot, served) for snapshot in whole)
            model_id = next((each for each in ids if each is not None), None)
            found.append(
                AvailableModel(
                    repo.repo_id, str(repo.path), repo.size_bytes, repo.modified_s, model_id
                )
            )
    for made in conversions:
        ids = (s.model_id for s in served if _is_made_from(s, made))
        found.append(
            AvailableModel(
                made.path.name, str(made.path), made.size_bytes, made.modified_s, next(ids, None)
            )
        )
    return tuple(sorted(found, key=lambda model: model.repo_id))


def plan_deletion(
    target: Served | str,
    served: Sequence[Served],
    repos: Sequence[CachedRepo],
    conversions: Sequence[Conversion],
) -> DeletionPlan:
    """Return what is deleted with a model, or with a name that only the disk knows. Of a model
    of the hub whose files are gone, that is what an update has left: the commits of its repository
    that have no name and that no model needs.

    Raises :class:`OperationError`: MODEL_NOT_FOUND, and NOT_DELETABLE for files that lmx did not
    put there.
    """
    if isinstance(target, str):
        for repo in repos:
            if repo.repo_id in (target, repository_of(target)):
                return _of_repo(repo, repo.snapshots, conversions)
        for made in conversions:
            if made.path.name == target:
                return _of_conversion(made)
        raise OperationError(
            ErrorCode.MODEL_NOT_FOUND,
            f"no model is named {target!r}, and none on this machine is: see `lmx list`",
            param="model_id",
        )
    match target.source:
        case HubSource(repo_id, revision):
            for repo in repos:
                if repo.repo_id == repo_id:
                    of_it = [s for s in repo.snapshots if s.is_of(revision or "main")]
                    # Another program may need a commit, which has no name then.
                    of_it = of_it or [s for s in repo.snapshots if _is_left(repo, s, served)]
                    if of_it or not repo.snapshots:
                        return _of_repo(repo, of_it, conversions)
            return DeletionPlan()
        case GgufSource(path):
            return _of_file(target, path, repos, conversions)
        case FolderSource(path):
            for made in conversions:
                if folder_path(path) == made.path:
                    return _of_conversion(made)
            raise _not_ours(target.model_id, path)


def _is_made_from(served: Served, made: Conversion) -> bool:
    if isinstance(served.source, FolderSource):
        return folder_path(served.source.path) == made.path
    return made.source is not None and served.gguf == made.source


def _of_conversion(made: Conversion) -> DeletionPlan:
    files = () if made.source is None else (made.source,)
    return DeletionPlan(folders=(made.path,), files=files)


def users(
    gone: DeletionPlan, served: Iterable[Served], repos: Sequence[CachedRepo]
) -> tuple[str, ...]:
    """Return the ids of the models that need what is to be deleted."""
    return tuple(each.model_id for each in served if _needs(each, gone, repos))


def plan_and_users(
    name: str,
    target: Served | str,
    served: Sequence[Served],
    repos: Sequence[CachedRepo],
    conversions: Sequence[Conversion],
    *,
    is_added: bool,
) -> tuple[DeletionPlan, tuple[str, ...]]:
    """Return what is deleted with ``target``, which is called ``name``, and the ids of the models
    that are then without files. A model that ``is_added`` may have none: it is only forgotten.

    Raises :class:`OperationError`: MODEL_NOT_FOUND and NOT_DELETABLE.
    """
    gone = plan_deletion(target, served, repos, conversions)
    if gone == DeletionPlan() and not is_added:
        raise OperationError(
            ErrorCode.MODEL_NOT_FOUND,
            f"{name} has no files on this machine: there is nothing to delete",
            param="model_id",
        )
    own = (target.model_id,) if isinstance(target, Served) else ()
    return gone, tuple(dict.fromkeys((*own, *users(gone, served, repos))))


def _needs(served: Served, gone: DeletionPlan, repos: Sequence[CachedRepo]) -> bool:
    sources = (served.source, *served.parts)
    return any(_comes_from(source, served, gone, repos) for source in sources)


def _comes_from(
    source: Source, served: Served, gone: DeletionPlan, repos: Sequence[CachedRepo]
) -> bool:
    match source:
        case HubSource(repo_id, revision):
            if repo_id != gone.repo_id or gone.names:
                return False
            snapshots = next((r.snapshots for r in repos if r.repo_id == repo_id), ())
            mine = [s for s in snapshots if s.is_of(revision or "main")]
            return not gone.commits or any(s.commit in gone.commits for s in mine)
        case GgufSource(path):
            return _lies_in(path, gone.snapshots) or served.gguf in gone.files
        case FolderSource(path):
            return _lies_in(path, (*gone.snapshots, *gone.folders))


def _lies_in(path: str, folders: Iterable[Path]) -> bool:
    return any(folder_path(path).is_relative_to(each) for each in folders)


def _is_left(repo: CachedRepo, snapshot: Snapshot, served: Iterable[Served]) -> bool:
    """Whether no branch or tag names a snapshot, and no model needs it."""
    gone = DeletionPlan(repo.repo_id, (snapshot.commit,), (snapshot.path,))
    return not snapshot.refs and not users(gone, served, [repo])


def _of_repo(
    repo: CachedRepo, snapshots: Sequence[Snapshot], conversions: Iterable[Conversion]
) -> DeletionPlan:
    """Plan to delete these snapshots, and what was made of their GGUF files. If they are all that
    the repository has, the whole repository is deleted, and with it what has arrived of others."""
    whole = len(snapshots) == len(repo.snapshots)
    staying = {file for s in repo.snapshots if s not in snapshots for file in s.gguf.values()}
    files = {file for s in snapshots for file in s.gguf.values()} - staying
    made = {each.path: each.source for each in conversions if each.source in files}
    return DeletionPlan(
        repo.repo_id,
        () if whole else tuple(each.commit for each in snapshots),
        (repo.path,) if whole else tuple(each.path for each in snapshots),
        folders=tuple(made),
        files=tuple(file for file in made.values() if file is not None),
    )


def _of_file(
    target: Served, path: str, repos: Sequence[CachedRepo], conversions: Sequence[Conversion]
) -> DeletionPlan:
    file, resolved = folder_path(path), target.gguf
    assert resolved is not None
    folders = tuple(made.path for made in conversions if made.source == resolved)
    for repo in repos:
        for snapshot in repo.snapshots:
            if file.is_relative_to(snapshot.path):
                parts = [file.with_name(name) for name in part_names(file.name)]
                names = tuple(str(part.relative_to(snapshot.path)) for part in parts)
                if snapshot.missing is not None and snapshot.gguf.keys() <= set(names):
                    gone = _of_repo(repo, [snapshot], ())
                    return replace(gone, folders=folders, files=(resolved,))
                # Other models are in the same commit.
                return DeletionPlan(
                    repo.repo_id, (snapshot.commit,), tuple(parts), names, folders, (resolved,)
                )
    if not folders:
        raise _not_ours(target.model_id, path)
    return DeletionPlan(folders=folders, files=(resolved,))


def _not_ours(model_id: str, path: str) -> OperationError:
    return OperationError(
        ErrorCode.NOT_DELETABLE,
        f"{model_id} is {path}: lmx deletes only what it downloaded or converted; delete those "
        "files yourself",
        param="model_id",
    )


def adapter_not_deletable(name: str, model: ModelConfig) -> OperationError:
    """Return the error of a deletion of one of a model's adapters."""
    return OperationError(
        ErrorCode.NOT_DELETABLE,
        f"{name} is an adapter of {model.id}: take it out of the configuration, then "
        f"delete {model.adapters[name]}, which only you can do if it is a folder",
        param="model_id",
    )


def _served_as(repo: CachedRepo, snapshot: Snapshot, served: Iterable[Served]) -> str | None:
    for each in served:
        match each.source:
            case HubSource(repo_id, revision):
                found = repo_id == repo.repo_id and snapshot.is_of(revision or "main")
            case GgufSource(path) | FolderSource(path):
                found = _lies_in(path, (snapshot.path,))
        if found:
            return each.model_id
    return None
