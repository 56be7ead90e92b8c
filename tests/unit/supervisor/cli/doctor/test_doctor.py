"""``doctor``: each check on good and on bad machines, which are made of answers."""

import json
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner

from lmx.protocol.errors import OperationError, ProtocolError
from lmx.protocol.messages.keys import ApiKey, KeyScope
from lmx.supervisor.cli.doctor import examine as examining
from lmx.supervisor.cli.doctor import mac, machine, setup
from lmx.supervisor.cli.doctor.examine import Examination, examine
from lmx.supervisor.cli.doctor.lines import Line, Name, Verdict, as_json, as_text, healthy
from lmx.supervisor.cli.doctor.system import System
from lmx.supervisor.cli.main import main
from lmx.supervisor.config.load import load_config
from lmx.supervisor.config.schema import Config, ServerConfig
from lmx.supervisor.decisions.memory_reading import KernelPressure, MemoryReading
from lmx.supervisor.service.launch import Launch
from lmx.supervisor.sockets.client import ControlClient, status_of
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import ProcessRecord, Records, RouterRecord, WorkerRecord
from tests.support.fakes.fake_machine import GIB, PMSET, Linux, Mac, line_of
from tests.support.fakes.fake_supervisor import model_line

OK, NOTE, WARNING, BAD = Verdict
SECRET = "a-very-secret-key-of-32-characters"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    place = Home(tmp_path / "h")
    place.prepare()
    return place


def examined(system: System, home: Home, text: str | None = None) -> Examination:
    """Examine with a configuration file of this text."""
    path = None if text is None else home.path.parent / "lmx.yaml"
    if path is not None:
        path.write_text(text or "")
    try:
        config = load_config(path, system.environment, keys_kept=home.has_keys)
    except OperationError:
        config = None
    return examine(system, home, path, config)


def test_a_mac_on_which_all_is_well(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "_INSTALLED", Path("/opt/lmx"))
    found = examined(Mac(home.path.parent), home)
    lines = found.lines
    assert found.title == "lmx 0.1.0, macOS 26.1 arm64, Python 3.13.1"
    assert found.folders == [home.path, Path("/opt/lmx")]
    wrong = [line for line in lines if line.verdict is not OK and line.name != "service"]
    assert wrong == []
    assert healthy(lines)
    assert "models 47.0 GiB" in line_of(lines, "gpu").measured
    assert line_of(lines, "pressure").measured == (
        "normal; 71% left by the kernel's count; Memory Used 24.0 GiB, by another count 52.0 GiB"
    )


def test_what_the_workers_remark_of_their_models_is_shown() -> None:
    models = [model_line("a"), model_line("b", remarks=["config.json sets x."])]
    lines = setup.check_loaded(models)
    assert [(line.measured, line.verdict) for line in lines] == [
        ("b: config.json sets x.", WARNING)
    ]


def test_keys_that_lmx_keeps_are_counted_and_two_of_one_name_are_a_warning() -> None:
    config = Config.model_validate({
        "server": {"host": "0.0.0.0"},
        "security": {"api_keys": [{"key": "a-key-of-the-configuration", "name": "home"}]},
    })  # fmt: skip
    stored = [ApiKey.of_secret(f"the-secret-of-{name}", name) for name in ("ci", "home")]
    stored.append(ApiKey.of_secret("for-metrics-alone", "grafana", scopes=(KeyScope.METRICS,)))
    counted, same = setup.check_keys(config, stored)
    assert (counted.measured, counted.verdict) == ("the network, 3 keys", OK)
    assert ("'home'" in same.measured, same.verdict) == (True, WARNING)
    assert [line.measured for line in setup.check_keys(Config(), stored[:1])] == [
        "only this machine, 1 keys"
    ]


def test_what_is_wrong_is_said_with_what_mends_it(home: Home) -> None:
    config = Config.model_validate({
        "server": {"host": "0.0.0.0", "allow_lan_without_key": True},
        "memory": {"budget_bytes": 60 * GIB},
    })  # fmt: skip
    reading = MemoryReading(64 * GIB, 40 * GIB, 22 * GIB, kernel_pressure=KernelPressure.WARNING)
    backups = mac.check_backups("[Included]  /a\n[Excluded]  /b\n", ["/a", "/b c"])
    firewall = mac.check_firewall(1, config)
    sleep = mac.check_sleep(PMSET, config, battery=True)
    wrong = [
        (machine.check_python((3, 15, 0)), BAD),
        (machine.check_blas(None), WARNING),
        (machine.check_files(256, "darwin"), WARNING),
        (machine.check_memory(reading), WARNING),
        (mac.check_release("13.6", "arm64"), BAD),
        (mac.check_release("26.1", "x86_64"), BAD),
        (mac.check_gpu(config, reading, 48 * GIB, 0), WARNING),
        (mac.check_pressure(reading, 20, 10 * GIB), WARNING),
        (mac.check_wired(reading, running=False), WARNING),
        (mac.check_backlog(128), NOTE),
        (sleep, NOTE),
        (backups, NOTE),
        (firewall, WARNING),
        (setup.check_keys(config, ())[0], WARNING),
        (setup.check_port(config, running=False, taken=True), BAD),
        (setup.check_processes(running=False, left=[7, 8]), WARNING),
        (mac.check_guarded([Path("/Users/me/Downloads/m")], Path("/Users/me")), WARNING),
    ]
    for line, verdict in wrong:
        assert (line.verdict, bool(line.fix)) == (verdict, True), line
    assert backups.fix == "tmutil addexclusion /a '/b c'"
    assert os.path.realpath(sys.executable) in firewall.fix
    assert not healthy([line for line, _ in wrong])
    assert mac.check_release("14.8", "arm64").verdict is NOTE
    assert "on battery" in sleep.measured
    assert mac.check_wired(reading, running=True).verdict is OK
    assert mac.check_guarded([Path("/Users/me/models")], Path("/Users/me")).verdict is OK


def test_panics_and_kills_of_the_last_month(home: Home) -> None:
    system = Mac(home.path, **{"*.panic": [Path("/a.panic")]})
    panics, kills = mac.check_reports(system)
    assert (panics.verdict, kills.verdict) == (WARNING, OK)
    assert "memory.wire: never" in panics.fix


def test_reports_that_only_administrators_may_see_are_not_called_none(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Mac(home.path)
    monkeypatch.setattr(system, "refused", lambda folder: folder.name == "DiagnosticReports")
    assert [line.verdict for line in mac.check_reports(system)] == [NOTE, NOTE]


@pytest.mark.parametrize(
    ("loaded", "verdict", "words"),
    [
        ((), NOTE, "launchd has none"),
        (("gui/501/com.lmx.supervisor",), OK, "an agent"),
        (("system/com.lmx.supervisor",), OK, "a daemon"),
    ],
)
def test_a_service_of_launchd_is_an_agent_or_a_daemon(
    home: Home, monkeypatch: pytest.MonkeyPatch, loaded: Sequence[str], verdict: Verdict, words: str
) -> None:
    system = Mac(home.path)
    run = system.run

    def launchctl(*command: str, limit_s: float = 10.0) -> str | None:
        if command[0] != "/bin/launchctl":
            return run(*command)
        return "state = running" if command[2] in loaded else None

    monkeypatch.setattr(system, "run", launchctl)
    line = setup.check_service(system)
    assert line.verdict is verdict
    assert words in line.measured


def test_packages_of_another_version(home: Home) -> None:
    assert machine.pinned(Mac(home.path).requirements(), "linux") == [("mlx", "9")]
    line = machine.check_packages(Linux(home.path))
    assert line.verdict is BAD
    assert "mlx 0.32.4 instead of 9" in line.measured


def test_on_linux_nothing_of_a_mac_is_asked(home: Home) -> None:
    system = Linux(home.path)
    found = examined(system, home)
    assert found.title.startswith("lmx 0.1.0, Linux")
    names = {line.name for line in found.lines}
    assert {"blas", "files", "disk", "port", "processes", "config", "models"} <= names
    assert names.isdisjoint({"gpu", "macos", "wired", "firewall"})
    assert {command[0] for command in system.asked} == {"systemctl"}


def test_a_configuration_that_is_not_valid_is_not_shown(home: Home) -> None:
    text = f"security: {{api_keys: [{{key: {SECRET}, nmae: x}}]}}\n"
    lines = examined(Linux(home.path), home, text).lines
    assert line_of(lines, "config").verdict is BAD
    assert SECRET not in as_text("t", lines, "/root")


@pytest.mark.parametrize("kind", [Linux, Mac])
def test_a_configuration_s_keys_are_not_shown(home: Home, kind: type[Linux | Mac]) -> None:
    text = (
        f"server: {{host: 0.0.0.0}}\nsecurity: {{api_keys: [{{key: {SECRET}, name: x}}]}}\n"
        "models: [{id: m, source: /nowhere/m}]\n"
    )
    found = examined(kind(home.path), home, text)
    assert Path("/nowhere/m") in found.folders
    assert line_of(found.lines, "config").verdict is OK
    reported = json.dumps(as_json(found.title, found.lines, "/root"))
    assert SECRET not in reported + as_text(found.title, found.lines, "/root")


def test_a_folder_that_is_no_model_is_named(home: Home, tmp_path: Path) -> None:
    text = f"models: [{{id: m, source: {tmp_path / 'none'}}}]\n"
    lines = examined(Linux(home.path), home, text).lines
    (reported,) = [line for line in lines if line.name == "models" and line.verdict is not OK]
    assert (reported.verdict, "m can't be loaded" in reported.measured) == (BAD, True)


def test_keys_that_others_can_read_are_a_warning(home: Home, tmp_path: Path) -> None:
    path, text = tmp_path / "lmx.yaml", f"security: {{api_keys: [{SECRET}]}}\n"
    path.touch()
    for mode, expected in ((0o644, [Verdict.WARNING]), (0o600, [])):
        path.chmod(mode)
        lines = examined(Linux(home.path), home, text).lines
        found = [line for line in lines if line.assumption == "only their user can read them"]
        assert [line.verdict for line in found] == expected
        assert all(line.fix == f"chmod 600 {path}" for line in found)


@pytest.mark.parametrize(
    ("left", "verdict"),
    [
        ([], BAD),
        ([WorkerRecord(4242, "1", "a", 1)], BAD),
        ([RouterRecord(4242, "r1", "127.0.0.1", Config().server.port + 1)], BAD),
        ([RouterRecord(4242, "r1", "127.0.0.1", Config().server.port)], OK),
    ],
)
def test_the_port_of_a_router_that_is_left_is_lmx_s(
    home: Home, monkeypatch: pytest.MonkeyPatch, left: Sequence[ProcessRecord], verdict: Verdict
) -> None:
    monkeypatch.setattr(Records, "orphans", lambda _: left)
    monkeypatch.setattr(Linux, "port_taken", lambda *_: True)
    lines = setup.check_setup(Linux(home.path), home, None, Config(), running=False)
    port = line_of(lines, "port")
    assert port.verdict is verdict
    assert ("another program" in port.measured) is (verdict is BAD)


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"HF_HUB_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, "/c"),
        ({"HF_HOME": "/h"}, "/h/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
    ],
)
def test_the_disk_is_the_one_that_models_are_downloaded_to(
    home: Home, variables: Mapping[str, str], place: str
) -> None:
    _, hub = machine.check_disks(Mac(home.path, environment=variables), home)
    assert hub.measured == f"100.0 GiB free at {place}"


def test_a_port_of_another_program_is_seen() -> None:
    system = System()
    with socket.create_server(("127.0.0.1", 0)) as other:
        server = ServerConfig(port=other.getsockname()[1])
        assert system.port_taken(server)
    assert not system.port_taken(server)
    nowhere = ServerConfig(host="ü..local", port=server.port)
    assert not system.port_taken(nowhere), "no machine has that name"


def test_a_folder_that_the_system_keeps_closed(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    assert System().refused(closed) is (os.geteuid() != 0)
    assert not System().refused(tmp_path / "none")
    assert System().run("/no/such/program") is None


def test_the_report_has_no_name_of_a_user() -> None:
    lines = [Line("disk", "room", "5 GiB free at /Users/mary/.lmx", BAD, "free some")]
    text = as_text("lmx", lines, "/Users/mary")
    assert "mary" not in text
    assert "-> free some" in text
    assert "1 bad" in text
    reported = as_json("lmx", lines, "/Users/mary")
    assert reported == {
        "system": "lmx",
        "healthy": False,
        "checks": [
            {
                "name": "disk",
                "assumption": "room",
                "measured": "5 GiB free at ~/.lmx",
                "verdict": "bad",
                "fix": "free some",
            }
        ],
    }, "programs rely on this shape"


def test_each_check_has_a_row_in_the_document() -> None:
    page = Path(__file__).parents[5] / "docs" / "start" / "doctor.md"
    rows = re.findall(r"(?m)^\| `(\w+)`(?:, `(\w+)`)* \|", page.read_text())
    names = re.findall(r"`(\w+)`", "".join(re.findall(r"(?m)^\|( `.*?) \|", page.read_text())))
    assert rows and sorted(names) == sorted(get_args(Name))


def test_the_configuration_of_the_lmx_that_runs_is_judged_and_read_once(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = tmp_path / "used.yaml"
    used.write_text("server: {port: 0}\n")
    home.default_config.write_text("server: {nonsense: 1}\n")
    read: list[Path | None] = []

    def counted(path: Path | None, environment: Mapping[str, str], **kept: Any) -> Config:
        read.append(path)
        return load_config(path, environment, **kept)

    monkeypatch.setattr("lmx.supervisor.config.load.load_config", counted)
    monkeypatch.setattr(
        "lmx.supervisor.service.launch.running_launch",
        lambda _: Launch(str(used), {"LMX_SERVER_HOST": "127.0.0.1"}, {}),
    )
    monkeypatch.setenv("LMX_HOME", str(home.path))
    monkeypatch.delenv("LMX_CONFIG", raising=False)
    monkeypatch.setenv("LMX_SERVER_HOST", "of this shell")
    done = CliRunner().invoke(main, ["doctor", "--json"])
    lines = {line["name"]: line for line in json.loads(done.stdout)["checks"]}
    assert lines["config"]["measured"].endswith("/used.yaml, 0 models")
    assert lines["port"]["measured"].startswith("127.0.0.1:0")
    assert read == [used]


def test_the_command_says_what_is_bad_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMX_HOME", str(tmp_path / "h"))
    monkeypatch.setenv("LMX_SERVER_PORT", "0")
    (tmp_path / "bad.yaml").write_text("server: {nonsense: 1}\n")
    good = CliRunner().invoke(main, ["doctor", "--json"])
    reported = json.loads(good.stdout)
    assert good.exit_code == (0 if reported["healthy"] else 1)
    assert {line["name"] for line in reported["checks"]} >= {"python", "packages", "port", "keys"}
    bad = CliRunner().invoke(main, ["doctor", "--config", str(tmp_path / "bad.yaml")])
    assert bad.exit_code == 1
    assert "BAD  config" in bad.stdout


def test_an_lmx_of_another_version_is_one_that_says_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: Any) -> Any:
        raise ProtocolError("of another version")

    monkeypatch.setattr(ControlClient, "ask", refuse)
    assert (status_of(home), setup._peers(home)) == (None, ())
