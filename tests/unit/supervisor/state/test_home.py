"""The folder that all of lmx is in: what it may be called, and who may look into it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.sockets.connections import Door
from lmx.supervisor.state.home import Home


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_only_the_owner_looks_into_it_whatever_the_umask(tmp_path: Path) -> None:
    home = Home(tmp_path / "h")
    home.path.mkdir(mode=0o755)
    home.logs.mkdir(mode=0o755)
    home.prepare()
    door = Door(home.run.control_socket, b"ROUTER", lambda _peer, _message: None)
    try:
        for path in (home.state, home.logs, home.cache, home.temporary, home.run.path):
            assert path.stat().st_mode & 0o777 == 0o700, path
        assert home.run.control_socket.stat().st_mode & 0o077 == 0
    finally:
        door._listener.close()


def test_a_name_that_is_not_utf_8_is_refused_in_words() -> None:
    name = os.fsdecode(b"/tmp/\xff")
    with pytest.raises(OperationError, match="not UTF-8") as caught:
        Home.from_environment({"LMX_HOME": name})
    assert caught.value.code is ErrorCode.CONFIG_INVALID
    assert caught.value.message.isascii()


def test_models_on_a_disk_that_is_not_there_yet_are_left_to_it(tmp_path: Path) -> None:
    home, disk = Home(tmp_path / "h"), tmp_path / "disk"
    home.path.mkdir(mode=0o700)
    home.models.symlink_to(disk)
    (notice,) = home.prepare()
    assert str(disk) in notice
    assert home.models.is_symlink()
    disk.mkdir()
    assert home.prepare() == []
    assert home.models.samefile(disk)
