"""How a process gets its spec."""

from pathlib import Path

import pytest

from lmx.protocol.errors import OperationError
from lmx.protocol.messages.keys import ApiKey, Keyring
from lmx.supervisor.inventory import disk
from lmx.supervisor.processes.child import start_child
from lmx.supervisor.processes.preview import look_now
from lmx.supervisor.state.home import Home


def test_a_long_spec_does_not_wait_for_the_child_to_read_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.prepare()
    keys = Keyring.of(tuple(ApiKey.of_secret(f"secret {n}", f"key {n}") for n in range(1000)))
    # A module that never reads its stdin.
    names = ("--bind", "127.0.0.1", "0")
    child = start_child("http.server", names, keys, home, tmp_path / "log")
    child.kill()
    child.wait()


async def test_the_programs_with_the_hubs_client_have_its_token_and_no_key_of_lmx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, told = tmp_path / "program", '"$LMX_SECURITY_ADMIN_KEY|$HF_TOKEN"'
    monkeypatch.setattr("sys.executable", str(program))
    monkeypatch.setenv("LMX_SECURITY_ADMIN_KEY", "sk-of-lmx")
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    program.write_text(f'#!/bin/sh\ncat <<END\n{{"error": {told}}}\nEND\n')
    program.chmod(0o755)
    with pytest.raises(OperationError, match=r": \|hf_token$"):
        await disk.scan_hub()
    error = f'{{"code": "download_failed", "message": {told}}}'
    program.write_text(f'#!/bin/sh\ncat <<END\n{{"error": {error}}}\nEND\n')
    with pytest.raises(OperationError, match=r"^\|hf_token$"):
        look_now(Home(tmp_path), "org/m", ())
