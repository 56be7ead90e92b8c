"""The files for containers, Homebrew and the shell: what they name is there, and is well formed."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmx.supervisor.config.load import load_config
from lmx.supervisor.config.schema import TimingConfig
from lmx.supervisor.config.shutdown_timeout import stop_bound_s

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    found = (line.partition(" ") for line in lines if line)
    return [(name, rest.strip()) for name, _, rest in found]


def service() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return dict(found["services"]["lmx"])


def test_the_image_is_made_of_what_is_there_and_sent() -> None:
    sent = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        source
        for name, rest in instructions()
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert copied == sent
    # The key is there by docs/start/docker.md.
    for ignored in (".gitignore", ".dockerignore"):
        assert {".env", "**/.env"} & set((ROOT / ignored).read_text().splitlines())
    assert all((ROOT / name).exists() for name in copied)


def test_the_container_is_nobodys_and_keeps_all_in_its_volume() -> None:
    said = dict(instructions())
    assert said["USER"] == "10001"
    assert said["VOLUME"] == "/data"
    variables = dict(word.split("=", 1) for word in said["ENV"].split())
    for name in ("LMX_HOME", "LMX_CACHE_DIR", "HF_HOME"):
        assert variables[name].startswith("/data/")
    compose = service()
    assert compose["volumes"] == ["data:/data"]
    assert (compose["read_only"], compose["cap_drop"]) == (True, ["ALL"])
    assert int(compose["stop_grace_period"][:-1]) > stop_bound_s(TimingConfig(), "linux")


def test_the_container_has_a_configuration_that_lmx_takes() -> None:
    key = "0123456789" * 3  # digits alone: no list of numbers
    said = service()["environment"]
    variables = {
        name: re.sub(r"\$\{LMX_API_KEY:\?[^}]*\}", key, value) for name, value in said.items()
    }
    config = load_config(None, variables | {"LMX_SERVER_HOST": "0.0.0.0"})
    assert [each.key.get_secret_value() for each in config.security.api_keys] == [key]


def test_the_health_check_is_a_program() -> None:
    _, _, command = dict(instructions())["HEALTHCHECK"].partition("CMD ")
    python, option, code = json.loads(command)
    assert (python, option) == ("python", "-c")
    compile(code, "HEALTHCHECK", "exec")
    with socket.create_server(("127.0.0.1", 0)) as lmx:
        port = str(lmx.getsockname()[1])
        asking = subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "LMX_SERVER_PORT": port}
        )
        lmx.settimeout(90)
        connection, _ = lmx.accept()
        with connection:
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        asking.kill()
        asking.wait(90)


@pytest.mark.parametrize(
    "check",
    [
        ["sh", "-n", "install.sh"],
        ["shellcheck", "install.sh"],
        ["ruby", "-c", "lmx.rb"],
        ["hadolint", "Dockerfile"],
    ],
    ids=" ".join,
)
def test_the_programs_that_read_them_find_nothing_wrong(check: list[str]) -> None:
    if shutil.which(check[0]) is None:
        pytest.skip(f"{check[0]} is not there")
    done = subprocess.run(
        check, cwd=DEPLOY, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
