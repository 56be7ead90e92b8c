"""The dashboard and the alert rules of ``deploy/`` name what a running lmx measures; Prometheus
scrapes it as docs/monitoring.md says, and its alerts fire."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.support.fakes.macmon import fake_macmon
from tests.support.references.promql import Known
from tests.support.rigs.rig import ROOT, Rig, http, rig, scripted, wait_until, whole

pytestmark = pytest.mark.long

DASHBOARD = ROOT / "deploy" / "grafana-dashboard.json"
ALERTS = ROOT / "deploy" / "prometheus-alerts.yaml"
METRICS_KEY = "metrics-0123456789abcdef"
QUIET = {"Sound transcribed", "Time for a second of sound", "Guesses that were right",
         "KV caches", "KV caches, bytes", "Time of a load", "Refused by a limit"}  # fmt: skip
"""The panels that show nothing of a scripted model's answers."""

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="no prometheus and promtool on the PATH (Debian's package prometheus)",
)


@pytest.fixture(scope="module")
def lmx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    config = {
        "models": [
            scripted("good", aliases=["also"]),
            scripted("broken", options={"load_error": "the weights are spoilt"}),
        ],
        "restart": {"max_failures": 0},
        "security": {"metrics_key": METRICS_KEY},
    }
    # Where this machine measures its energy itself, that is used.
    macmon = fake_macmon(tmp_path_factory.mktemp("bin"))
    path = os.pathsep.join((str(macmon.parent), os.environ["PATH"]))
    with rig(config, {"PATH": path}) as made:
        made.wait_state("good", "ready")
        made.wait_state("broken", "quarantined")
        asyncio.run(some_requests(made))
        yield made


async def some_requests(lmx: Rig) -> None:
    async with http() as session:
        # Two seconds of work, after which there is a measured power.
        for _ in range(90):
            script = {"tokens": 200, "step_s": 0.01}
            status, answer = await whole(session, lmx.url, "good", script)
            assert status == 200
            if "energy_joules" in (timings := answer["timings"]):
                assert timings["energy_joules"] > 0
                assert timings["joules_per_token"] == pytest.approx(
                    timings["energy_joules"] / 200, rel=0.01
                )
                break
        else:
            raise AssertionError("no answer has its energy")
        assert (await whole(session, lmx.url, "broken", "hello"))[0] == 503


@pytest.fixture(scope="module")
def exposition(lmx: Rig) -> str:
    async def scrape() -> str:
        async with (
            http() as session,
            session.get(
                lmx.url.removesuffix("/v1") + "/admin/metrics",
                headers={"Authorization": f"Bearer {METRICS_KEY}"},
            ) as response,
        ):
            assert response.status == 200
            return await response.text()

    return asyncio.run(scrape())


def panels() -> Iterator[tuple[str, str]]:
    """The title and each query of every panel."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_the_dashboard_names_only_what_is_measured(exposition: str) -> None:
    known, shown = Known(exposition), list(panels())
    assert [(title, query, fault) for title, query in shown for fault in known.faults(query)] == []
    assert not list(known.faults("lmx_requests_total"))
    # And everything that is measured of lmx is shown.
    text = " ".join(query for _, query in shown)
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in known.labels}
    left = {name for name in families if not re.search(rf"\b{name}(_bucket|_sum|_count)?\b", text)}
    left = {name for name in left if name.startswith("lmx_")}
    assert left == {"lmx_build_info"}


def test_the_dashboard_s_variables_are_labels_that_there_are(exposition: str) -> None:
    known, board = Known(exposition), json.loads(DASHBOARD.read_text())
    queries = [
        each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"
    ]
    for query in queries:
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        assert list(known.faults(selector)) == []
        assert label in known.labels[re.match(r"\w+", selector)[0]]  # type: ignore[index]
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_the_alerts_name_only_what_is_measured(exposition: str) -> None:
    known = Known(exposition)
    assert [(one["alert"], fault) for one in rules() for fault in known.faults(one["expr"])] == []
    for rule in rules():
        texts = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\blmx_\w+", texts)) <= set(known.labels), rule["alert"]
        metrics = [name for name in known.labels if re.search(rf"\b{name}\b", rule["expr"])]
        labels = set.intersection(*(known.labels[name] for name in metrics))
        if grouped := re.findall(r"\bby \(([^)]*)\)", rule["expr"]):
            labels = set(re.split(r",\s*", grouped[0]))
        assert set(re.findall(r"\$labels\.(\w+)", texts)) <= labels, rule["alert"]


def test_an_alert_of_several_events_allows_for_the_extrapolation() -> None:
    # `increase` of two events is a little more than 2.
    counting = [one["expr"] for one in rules() if "increase(" in one["expr"]]
    assert len(counting) == 3
    assert [expr for expr in counting if not re.search(r" > \d+\.5$", expr)] == []


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("rate(lmx_request_total[5m])", "no lmx_request_total"),
        ('lmx_model_loaded{modell="a"}', "no label modell"),
        ('lmx_model_state{state=~"failed|broken"} == 1', "never broken"),
        ("sum by (stat) (lmx_model_state)", "groups by stat"),
        ("1 + 1", "no metric"),
    ],
)
def test_a_name_that_there_is_not_is_found(exposition: str, query: str, words: str) -> None:
    assert any(words in fault for fault in Known(exposition).faults(query))


@needs_prometheus
def test_promtool_takes_the_rules_and_the_configuration_of_the_page(tmp_path: Path) -> None:
    for what, file in (("rules", ALERTS), ("config", configuration(tmp_path, "127.0.0.1:9"))):
        done = subprocess.run(
            ["promtool", "check", what, file], capture_output=True, text=True, timeout=180
        )
        assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
async def test_prometheus_scrapes_with_the_metrics_key_and_evaluates_the_alerts(
    lmx: Rig, tmp_path: Path
) -> None:
    address = lmx.url.removeprefix("http://").removesuffix("/v1")
    with prometheus(configuration(tmp_path, address), tmp_path) as url:
        async with http() as session:
            for alert in ("LmxModelFails", "LmxDown"):
                await until_true(partial(firing, session, url, alert), partial(str, alert))
            failing = await firing(session, url, "LmxModelFails")
            assert [one["labels"]["model"] for one in failing] == ["broken"]
            assert "broken" in failing[0]["annotations"]["summary"]
            # On a busy machine a scrape may fail now and then, and the next one does not.
            down: set[str | None] = set()

            async def wrong_alone_is_down() -> bool:
                nonlocal down
                named = ("LmxDown", "LmxSupervisorDown")
                alerts = [one for name in named for one in await firing(session, url, name)]
                down = {one["labels"].get("key") for one in alerts}
                return down == {"wrong"}

            await until_true(wrong_alone_is_down, lambda: f"it alone is down: {down}")
            # Rates need two scrapes between which something happened.
            await some_requests(lmx)
            left: set[str] = set()

            async def all_have_data() -> bool:
                nonlocal left
                left = {
                    title for title, each in panels() if not await query(session, url, filled(each))
                } - QUIET
                return not left

            await until_true(all_have_data, lambda: f"data for {left}")


def filled(query: str) -> str:
    """A panel's query, as Grafana asks it with everything chosen."""
    text = query.replace("$__rate_interval", "1m")
    return text.replace("$instance", ".*").replace("$model", ".*")


def configuration(folder: Path, address: str) -> Path:
    """The configuration of docs/monitoring.md, for a test: its own places, the route that needs a
    key on loopback too, seconds in place of minutes, and a second target with a wrong key."""
    page = (ROOT / "docs" / "monitoring.md").read_text()
    (text,) = re.findall(r"```yaml\n(global:.*?)```", page, re.S)
    config = yaml.safe_load(text)
    # A scrape may last no longer than the interval: on a busy machine that is no second.
    config["global"] = {"scrape_interval": "5s", "evaluation_interval": "1s"}
    groups = yaml.safe_load(ALERTS.read_text())
    for rule in groups["groups"][0]["rules"]:
        rule["for"] = "0s"
    (folder / "alerts.yaml").write_text(yaml.safe_dump(groups))
    config["rule_files"] = [str(folder / "alerts.yaml")]
    (job,) = config["scrape_configs"]
    (folder / "key").write_text(METRICS_KEY)
    job["authorization"]["credentials_file"] = str(folder / "key")
    job["metrics_path"] = "/admin/metrics"
    job["static_configs"] = [{"targets": [address]}]
    wrong = job | {
        "job_name": "wrong",
        "authorization": {"credentials": "wrong-0123456789abcdef"},
        "static_configs": [{"targets": [address], "labels": {"job": "lmx", "key": "wrong"}}],
    }
    config["scrape_configs"].append(wrong)
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    return file


@contextmanager
def prometheus(config: Path, folder: Path) -> Iterator[str]:
    """Run Prometheus; yields its address."""
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
             "--web.listen-address=127.0.0.1:0"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder,
        )  # fmt: skip
    try:

        def listening() -> re.Match[str] | bool | None:
            assert process.poll() is None, log.read_text()
            written = log.read_text()
            return "ready to receive web requests" in written and re.search(
                r'msg="Listening on" address=(\S+)', written
            )

        found: re.Match[str] = wait_until(listening, "Prometheus listens")
        yield f"http://{found[1]}"
    finally:
        process.terminate()
        process.wait(180)


async def until_true(condition: Any, what: Callable[[], str]) -> None:
    end_s = time.monotonic() + 180
    while not await condition():
        assert time.monotonic() < end_s, f"not within 180 s: {what()}"
        await asyncio.sleep(0.1)


async def query(session: aiohttp.ClientSession, url: str, expression: str) -> list[dict[str, Any]]:
    async with session.get(f"{url}/api/v1/query", params={"query": expression}) as response:
        answer = await response.json()
        assert answer["status"] == "success", (expression, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found


async def firing(session: aiohttp.ClientSession, url: str, name: str) -> list[dict[str, Any]]:
    async with session.get(f"{url}/api/v1/alerts") as response:
        alerts = (await response.json())["data"]["alerts"]
        return [
            one for one in alerts if one["labels"]["alertname"] == name and one["state"] == "firing"
        ]
