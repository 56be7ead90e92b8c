"""How a process gets its spec."""

from pathlib import Path

from lmx.protocol.messages.keys import ApiKey, Keyring
from lmx.supervisor.processes.child import start_child
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
