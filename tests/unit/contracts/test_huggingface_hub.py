"""What lmx uses of huggingface_hub beyond its documentation."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import file_download, scan_cache_dir, try_to_load_from_cache
from huggingface_hub.file_download import repo_folder_name

from lmx.protocol.errors import OperationError
from lmx.supervisor.memory.fetched import fetched_folder
from lmx.supervisor.state.home import Home
from tests.support.references.private_parts import CACHE, FETCHED, HUB, said

LIBRARY = "huggingface_hub"
CACHE_VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")


def test_the_cache_is_laid_out_as_lmx_reads_and_fills_it(tmp_path: Path) -> None:
    """A repository as lmx writes and deletes it, for the client to find."""
    words = said(LIBRARY, "The layout of the cache", (HUB, CACHE, FETCHED), "finding its files")
    commit, digest = "0" * 40, "1" * 64
    folder = tmp_path / repo_folder_name(repo_id="org/name", repo_type="model")
    assert folder.name == "models--org--name", f"{words}a repository's folder is {folder.name}"
    for name in ("blobs", "refs", f"snapshots/{commit}"):
        (folder / name).mkdir(parents=True)
    (folder / "blobs" / digest).write_bytes(b"{}")
    (folder / "refs" / "main").write_text(commit)
    link = folder / "snapshots" / commit / "config.json"
    link.symlink_to(Path("../../blobs") / digest)
    found = try_to_load_from_cache("org/name", "config.json", cache_dir=tmp_path, revision="main")
    assert found == str(link), f"{words}a file is looked for elsewhere"
    (repo,) = scan_cache_dir(tmp_path).repos
    (revision,) = repo.revisions
    (file,) = revision.files
    seen = (repo.repo_id, revision.commit_hash, set(revision.refs), file.blob_path.name)
    assert seen == ("org/name", commit, {"main"}, digest), f"{words}the client sees {seen}"


@pytest.mark.parametrize(
    ("text", "file", "use"),
    [
        ('os.path.join(cache_dir, ".locks")', HUB, "the folder of the locks"),
        ('f"{etag}.lock"', HUB, "the name of a file's lock, which both programs wait for"),
        ('os.path.join(storage_folder, "blobs", etag)', HUB, "taking a file that lmx has brought"),
        ('.incomplete"', CACHE, "leaving alone what is still being downloaded"),
    ],
)
def test_locks_and_parts_have_the_names_that_lmx_gives_them(text: str, file: str, use: str) -> None:
    words = said(LIBRARY, f"huggingface_hub.file_download: `{text}`", (file,), use)
    assert text in inspect.getsource(file_download), f"{words}it is done in another way"


def test_the_cache_is_where_lmx_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = said(LIBRARY, "constants.HF_HUB_CACHE", (FETCHED,), "where the cache is")
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    plain = {name: value for name, value in os.environ.items() if name not in CACHE_VARIABLES}
    home = Home(tmp_path / "lmx")
    # Of the process too, because variables within a path are looked up there.
    monkeypatch.setenv("LMX_TEST_FOLDER", str(tmp_path / "named"))
    plain["LMX_TEST_FOLDER"] = str(tmp_path / "named")
    for variables in (
        {"HF_HUB_CACHE": str(tmp_path / "cache")},
        {"HUGGINGFACE_HUB_CACHE": str(tmp_path / "older")},
        {"HUGGINGFACE_HUB_CACHE": "/none", "HF_HUB_CACHE": "$LMX_TEST_FOLDER/cache"},
        {"HF_HOME": str(tmp_path / "hf")},
        {"XDG_CACHE_HOME": str(tmp_path / "xdg")},
    ):
        environment = {**plain, **variables}
        reported = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        folder = Path(reported.stdout.strip()) / "models--org--name" / "snapshots" / "main"
        folder.mkdir(parents=True)
        try:
            assert fetched_folder("org/name", home, environment) == folder
        except OperationError as error:
            raise AssertionError(f"{words}with {variables} it is {reported.stdout}") from error
