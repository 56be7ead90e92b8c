"""The fetch program against a hub on the loopback interface, with everything that can go wrong.

The program runs as the process that it is: the hub client reads its settings when imported.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from lmx.supervisor.config.sources import SourceError, parse_file_name
from lmx.supervisor.fetch.errors import requested_wait_s
from lmx.supervisor.fetch.file import LONGEST_WAIT_S, wait_before_retry_s
from tests.support.fakes.fake_hub import FakeHub, Fault, commit_of, fake_hub

WEIGHTS = "model.safetensors"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    WEIGHTS: bytes(range(256)) * 1200,
    "tokenizer.json": b"{}",
    "modeling_evil.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickle",
    "model-Q4_K_M.gguf": b"GGUF" * 20_000,
}
WANTED = {"config.json", WEIGHTS, "tokenizer.json"}
AGAIN = {"consolidated.safetensors", "original/model.safetensors", "original/config.json"}
LAYERS = {"1_Pooling/config.json", "2_Dense/model.safetensors"}
TOTAL_BYTES = sum(len(FILES[name]) for name in WANTED)
PART_BYTES = 160_000


@pytest.fixture(scope="module")
def running() -> Iterator[FakeHub]:
    with fake_hub() as hub:
        hub.add("org/tiny", FILES)
        hub.add("org/bare", {"config.json": b"{}"})
        hub.add("org/mute", {name: FILES[name] for name in ("config.json", WEIGHTS)})
        half = {"model-00002-of-00002.safetensors": FILES[WEIGHTS]}
        hub.add("org/half", {n: c for n, c in FILES.items() if n != WEIGHTS} | half)
        stale = json.dumps({"weight_map": {"a": "model-00001-of-00005.safetensors"}}).encode()
        hub.add("org/stale", FILES | {"model.safetensors.index.json": stale})
        index = {"weight_map": {"a": WEIGHTS, "b": "model-b.safetensors"}}
        hub.add("org/part", FILES | {"model.safetensors.index.json": json.dumps(index).encode()})
        hub.add("org/twice", FILES | {name: name.encode() for name in (*AGAIN, *LAYERS)})
        yield hub


@pytest.fixture
def hub(running: FakeHub) -> Iterator[FakeHub]:
    running.served.clear()
    running.asked.clear()
    yield running
    running.faults.clear()
    running.claimed.clear()


@dataclass
class Fetch:
    """Starts the fetch program with a cache of its own."""

    folder: Path
    endpoint: str
    extra: dict[str, str] = field(default_factory=dict)

    def command(self, source: str, *options: str) -> list[str]:
        models = str(self.folder / "models")
        return [
            *(sys.executable, "-m", "lmx.supervisor.fetch.main"),
            *("--source", source, "--models-dir", models, *options),
        ]

    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        hub = {"HF_HOME": str(self.folder / "hf"), "HF_ENDPOINT": self.endpoint}
        return {**kept, **hub, **self.extra}

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=self.environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def __call__(self, source: str, *options: str) -> tuple[int, list[dict[str, Any]]]:
        process = self.start(self.command(source, *options))
        out, err = process.communicate(timeout=300)
        assert process.returncode in (0, 1), err
        return process.returncode, [json.loads(line) for line in out.splitlines()]

    def path(self, source: str, *options: str) -> Path:
        status, lines = self(source, *options)
        assert status == 0, lines
        return Path(lines[-1]["path"])

    def reported(self, source: str, *options: str) -> dict[str, Any]:
        status, lines = self(source, *options)
        assert status == 1
        error: dict[str, Any] = lines[-1]["error"]
        return error

    def error(self, source: str, *options: str) -> tuple[str, str]:
        reported = self.reported(source, *options)
        return reported["code"], reported["message"]


@pytest.fixture
def fetch(tmp_path: Path, hub: FakeHub) -> Fetch:
    return Fetch(tmp_path, hub.endpoint)


def test_download_then_cache_then_offline(fetch: Fetch, hub: FakeHub) -> None:
    status, lines = fetch("org/tiny")
    assert status == 0, lines
    folder = Path(lines[-1]["path"])
    assert {path.name for path in folder.iterdir()} == WANTED
    assert (folder / WEIGHTS).read_bytes() == FILES[WEIGHTS]
    assert set(hub.served) == WANTED
    reported = [line for line in lines if line.get("phase") == "download"]
    assert (reported[0]["done_bytes"], reported[0]["total_bytes"]) == (0, TOTAL_BYTES)
    assert (reported[-1]["done_bytes"], reported[-1]["fraction"]) == (TOTAL_BYTES, 1.0)

    hub.served.clear()
    assert fetch.path("org/tiny@main") == folder
    assert fetch.path("org/tiny", f"--revision={commit_of('org/tiny', 'main')}") == folder
    fetch.extra = {"HF_HUB_OFFLINE": "1"}
    assert fetch.path("org/tiny") == folder
    # Nobody listens on port 9 of the loopback interface: as good as no network.
    fetch.extra = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert fetch.path("org/tiny") == folder
    assert hub.served.total() == 0

    # What is not whole is not used for want of a network.
    (folder / "tokenizer.json").unlink()
    assert "check the network" in fetch.error("org/tiny")[1]
    fetch.extra = {}
    assert fetch.path("org/tiny") == folder


def test_what_the_hub_refuses(fetch: Fetch, hub: FakeHub) -> None:
    refusals = {
        "org/gone": ("no repository org/gone", "repo_id"),
        "org/tiny@v9": ("'v9'", "revision"),
        "org/bare": ("no *.safetensors", "repo_id"),
        "org/mute": ("no tokenizer.json", "repo_id"),
        "org/half": ("no model-00001-of-00002.safetensors", "repo_id"),
    }
    for source, (part, param) in refusals.items():
        reported = fetch.reported(source)
        assert (reported["code"], reported["param"]) == ("model_source_invalid", param), reported
        assert part in reported["message"]
    for fault, part in (
        (Fault(status=401), "set HF_TOKEN"),
        (Fault(status=403, headers={"X-Error-Code": "GatedRepo"}), "accept its terms"),
    ):
        hub.faults["api"] = fault
        reported = fetch.reported("org/tiny")
        assert (reported["code"], reported["param"]) == ("model_source_invalid", "repo_id"), (
            reported
        )
        assert (part in reported["message"], reported["retry_after_s"]) == (True, None)
    for asked, wait_s in (("900", 900), (None, 300)):
        hub.faults["api"] = Fault(status=429, headers={"Retry-After": asked} if asked else {})
        reported = fetch.reported("org/tiny")
        assert (reported["code"], reported["retry_after_s"]) == ("download_failed", wait_s), (
            reported
        )
        assert f"try again in {wait_s} s" in reported["message"]
    assert hub.served[WEIGHTS] == 0


def test_an_index_of_other_files_costs_no_model(fetch: Fetch) -> None:
    assert (fetch.path("org/stale") / WEIGHTS).is_file()


def test_weights_that_the_repository_itself_lacks_are_named(fetch: Fetch) -> None:
    code, message = fetch.error("org/part")
    assert (code, "has no model-b.safetensors" in message) == ("model_source_invalid", True), (
        message
    )


def test_weights_that_are_never_loaded_are_not_downloaded(fetch: Fetch, hub: FakeHub) -> None:
    folder = fetch.path("org/twice")
    assert set(hub.served) == WANTED | LAYERS
    fetch.extra = {"HF_HUB_OFFLINE": "1"}
    assert fetch.path("org/twice") == folder


def test_what_is_out_of_order_for_a_moment(fetch: Fetch, hub: FakeHub) -> None:
    hub.faults["api"] = Fault(status=429, headers={"Retry-After": "1"}, times=1)
    hub.faults[WEIGHTS] = Fault(status=503, times=1)
    assert fetch.path("org/tiny").is_dir()


def test_a_file_that_never_comes(fetch: Fetch, hub: FakeHub) -> None:
    hub.faults[WEIGHTS] = Fault(status=500)
    code, message = fetch.error("org/tiny")
    assert (code, "out of order (500)" in message) == ("download_failed", True), message
    assert hub.asked[WEIGHTS] == 4
    fetch.extra = {"HF_HUB_OFFLINE": "1"}
    assert "HF_HUB_OFFLINE is set" in fetch.error("org/tiny")[1]


@pytest.mark.parametrize("reset", [False, True])
def test_a_cut_connection_resumes_where_it_was(fetch: Fetch, hub: FakeHub, reset: bool) -> None:
    hub.faults[WEIGHTS] = Fault(cut_after_bytes=PART_BYTES, reset=reset)
    folder = fetch.path("org/tiny")
    assert (folder / WEIGHTS).read_bytes() == FILES[WEIGHTS]
    assert hub.asked[WEIGHTS] > 1
    assert hub.served[WEIGHTS] < len(FILES[WEIGHTS]) + 2 * PART_BYTES
    assert hub.encodings == {"identity"}


def test_connections_that_bring_nothing_end_a_download(fetch: Fetch, hub: FakeHub) -> None:
    hub.faults[WEIGHTS] = Fault(cut_after_bytes=0, reset=True)
    code, message = fetch.error("org/tiny")
    assert (code, "check the network" in message) == ("download_failed", True), message
    assert hub.asked[WEIGHTS] == 6


def test_a_file_that_the_hub_refuses_for_long_is_not_waited_for(fetch: Fetch, hub: FakeHub) -> None:
    hub.faults[WEIGHTS] = Fault(status=429, headers={"Retry-After": "7200"})
    reported = fetch.reported("org/tiny")
    assert (reported["code"], reported["retry_after_s"]) == ("download_failed", 7200), reported
    assert hub.asked[WEIGHTS] == 1


@pytest.mark.parametrize(
    "wrong", [FILES[WEIGHTS][::-1], FILES[WEIGHTS][:-1], FILES[WEIGHTS] + b"more"]
)
def test_what_is_not_what_the_hub_says(fetch: Fetch, hub: FakeHub, wrong: bytes) -> None:
    hub.faults[WEIGHTS] = Fault(body=wrong)
    code, message = fetch.error("org/tiny")
    assert (code, "is not what the hub says" in message) == ("download_failed", True), message
    snapshots = fetch.folder / "hf" / "hub" / "models--org--tiny" / "snapshots"
    assert not snapshots.exists()
    hub.faults.clear()
    assert (fetch.path("org/tiny") / WEIGHTS).read_bytes() == FILES[WEIGHTS]


LARGE = hashlib.sha256(FILES[WEIGHTS]).hexdigest()
SMALL = hashlib.sha1(b"blob 2\0{}").hexdigest()


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (LARGE, "../../elsewhere"),
        (SMALL, "scratch/elsewhere"),
        (commit_of("org/tiny", "main"), "/elsewhere"),
        (commit_of("org/tiny", "main"), "A" * 64),
        (LARGE, ""),
        (SMALL, "../../elsewhere"),
    ],
)
def test_the_hub_s_words_lead_nowhere_else(
    fetch: Fetch, hub: FakeHub, said: str, name: str
) -> None:
    hub.claimed = {said: name}
    code, message = fetch.error("org/tiny")
    assert code == "download_failed"
    assert "which can't be" in message, message
    assert not [path for path in fetch.folder.rglob("*") if path.is_file()]
    assert set(hub.served) == set()


def test_the_hub_s_names_of_files_lead_nowhere_else(fetch: Fetch, hub: FakeHub) -> None:
    hub.add("org/astray", {**FILES, "../../elsewhere.json": b"{}"})
    assert "which can't be" in fetch.error("org/astray")[1]
    assert set(hub.served) == set()


def test_one_file_that_the_hub_does_not_have(fetch: Fetch, hub: FakeHub) -> None:
    for headers in ({"X-Error-Code": "EntryNotFound"}, {}):
        hub.faults[WEIGHTS] = Fault(status=404, headers=headers)
        code, message = fetch.error("org/tiny")
        assert (code, "does not have it (404)" in message) == ("download_failed", True), message
        assert WEIGHTS in message


def test_one_file(fetch: Fetch, hub: FakeHub) -> None:
    path = fetch.path("org/tiny", "--filename=model-Q4_K_M.gguf")
    assert path.read_bytes() == FILES["model-Q4_K_M.gguf"]
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert set(hub.served) == {path.name}
    for repository, hint in (
        ("org/tiny", "its GGUF files: model-Q4_K_M.gguf"),
        ("org/bare", "and no GGUF files: leave filename out to download all of it"),
    ):
        reported = fetch.reported(repository, "--filename=model-Q8_0.gguf")
        assert (reported["code"], reported["param"]) == ("model_source_invalid", "filename"), (
            reported
        )
        assert hint in reported["message"]
    for name in ("../secret.gguf", "/etc/passwd", "a//b", "a\\b", ""):
        with pytest.raises(SourceError):
            parse_file_name(name)
    for name in ("../secret.gguf", "pytorch_model.bin"):
        code, message = fetch.error("org/tiny", f"--filename={name}")
        assert code == "model_source_invalid", message
    code, _ = fetch.error(str(fetch.folder), "--filename=config.json")
    assert code == "model_source_invalid"


def test_a_model_in_parts_is_whole_only_with_all_of_them(fetch: Fetch, hub: FakeHub) -> None:
    first, second = (f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    hub.add("org/parts", {first: b"GGUF 1", second: b"GGUF 2"})
    path = fetch.path("org/parts", f"--filename={second}")
    assert path.name == first
    fetch.extra = {"HF_HUB_OFFLINE": "1"}
    assert fetch.path("org/parts", f"--filename={second}") == path
    path.unlink()
    code, _ = fetch.error("org/parts", f"--filename={second}")
    assert code == "download_failed"


def test_no_network_and_nothing_in_the_cache(fetch: Fetch) -> None:
    fetch.extra = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    code, message = fetch.error("org/tiny")
    assert (code, "check the network" in message) == ("download_failed", True), message


def test_sources_that_are_wrong(fetch: Fetch, tmp_path: Path) -> None:
    assert "neither a path nor" in fetch.error("tiny")[1]
    assert "has no config.json" in fetch.error(str(tmp_path))[1]
    assert "is not a folder" in fetch.error(str(tmp_path / "gone"))[1]
    (tmp_path / "config.json").write_text("{}")
    assert fetch(str(tmp_path)) == (0, [{"path": str(tmp_path)}])


def test_what_libraries_print_does_not_reach_stdout() -> None:
    code = (
        "import os; from lmx.supervisor.fetch.main import Outlet; outlet = Outlet();"
        "print('chatter', flush=True); os.write(1, b'more'); outlet.line({'path': '/x'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=180
    )
    assert done.stdout == '{"path": "/x"}\n'
    assert done.stderr == "chatter\nmore"


def test_a_download_does_not_wait_for_the_converters_libraries() -> None:
    code = (
        "import sys, lmx.supervisor.fetch.main;"
        "print({'gguf', 'mlx_lm', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


def wait_until_stuck(hub: FakeHub) -> None:
    deadline = time.monotonic() + 90
    while hub.served[WEIGHTS] < PART_BYTES:
        assert time.monotonic() < deadline, "the download did not begin"
        time.sleep(0.01)


def test_sigterm_stops_a_download_and_the_next_continues(fetch: Fetch, hub: FakeHub) -> None:
    hub.faults[WEIGHTS] = Fault(wait_after_bytes=PART_BYTES)
    process = fetch.start(fetch.command("org/tiny"))
    wait_until_stuck(hub)
    # What was sent is on its way for a moment longer.
    wait_for_part(fetch, PART_BYTES // 2)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=90)
    assert process.returncode == 128 + signal.SIGTERM
    assert "path" not in out

    hub.faults.clear()
    hub.served.clear()
    status, lines = fetch("org/tiny")
    assert status == 0
    first = next(line for line in lines if line.get("phase") == "download")
    assert first["total_bytes"] == TOTAL_BYTES
    assert hub.served[WEIGHTS] <= len(FILES[WEIGHTS]) - PART_BYTES // 2


def wait_for_part(fetch: Fetch, size_bytes: int) -> None:
    blobs = fetch.folder / "hf" / "hub" / "models--org--tiny" / "blobs"
    deadline = time.monotonic() + 90
    while not any(part.stat().st_size >= size_bytes for part in blobs.glob("*.incomplete")):
        assert time.monotonic() < deadline, "nothing of it was written"
        time.sleep(0.01)


def test_it_stops_with_its_parent(fetch: Fetch, hub: FakeHub) -> None:
    hub.faults[WEIGHTS] = Fault(wait_after_bytes=PART_BYTES)
    # A parent that starts the program, tells its pid, and ends when its stdin does.
    code = (
        "import subprocess, sys;"
        "print(subprocess.Popen(sys.argv[1:], stdout=2, stdin=0).pid, flush=True);"
        "sys.stdin.read()"
    )
    parent = fetch.start([sys.executable, "-c", code, *fetch.command("org/tiny")])
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    wait_until_stuck(hub)
    parent.kill()
    child.wait(timeout=90)


def test_how_long_it_waits_before_it_asks_again() -> None:
    def waits_s(status: int, headers: dict[str, str]) -> float | None:
        return wait_before_retry_s(status, requested_wait_s(headers), 2.0, LONGEST_WAIT_S)

    assert waits_s(503, {}) == 2.0
    assert waits_s(429, {"retry-after": "10"}) == 10.0
    assert waits_s(429, {"retry-after": "0"}) == 2.0
    assert waits_s(429, {"retry-after": "3600"}) is None
    assert waits_s(429, {"retry-after": "9" * 5000}) == 2.0
    assert waits_s(404, {}) is None
    assert waits_s(503, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 2.0
    assert waits_s(429, {"ratelimit": '"api";r=0;t=55'}) == 55.0
    assert waits_s(429, {"ratelimit": '"api";r=0;t=300'}) is None
    assert waits_s(503, {"ratelimit": '"api";r=9;t=55'}) == 2.0
