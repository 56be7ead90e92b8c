"""The page of `make bench-peers`: ratios of the same turn, and words where there is no number."""

import asyncio
import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from tests.bench import bench_peers
from tests.bench.bench_peers import figures, page, plot, ratios
from tests.bench.peers.rows import ROWS, Server
from tests.bench.peers.servers import PEERS

RESULTS: dict[str, Any] = {
    "long": 6000,
    "mlx": "0.1.2",
    "loads": [9.0, 21.2],
    "0 lmx start": {"start, s": 2.0},
    "0 mlx_lm.server start": {"start, s": 1.0},
    "0 vllm-mlx start": "it did not start",
    "1 lmx start": {"start, s": 4.0},
    "1 mlx_lm.server start": {"start, s": 3.2},
    "1 mlx_lm.server killed": "never: the server is gone",
    "1 lmx killed": {"served again, s": 5.0},
    "0 lmx idle": "too late",
    "1 lmx idle": {"memory, MiB": 1234.4},
    "0 mlx_lm.server idle": {"memory, MiB": 300.0},
    "1 mlx_vlm.server idle": {"memory, MiB": 617.2},
    "0 mlx_vlm.server idle": "2 of 3 requests: timeout",
    "commits": {"0 lmx start": "aaaa", "1 lmx start": "aaaa", "1 lmx killed": "aaaa",
                "0 lmx idle": "aaaa", "1 lmx idle": "bbbb"},
}  # fmt: skip


def test_ratios_are_of_the_same_turn() -> None:
    assert ratios([2.0, None, 4.0], [1.0, 7.0, "late"]) == [0.5]
    assert figures(RESULTS)["start, s"]["lmx"] == [2.0, 4.0]


def test_the_page_says_where_lmx_is_behind_and_why_there_is_no_number() -> None:
    lines = {line.split(" | ")[0]: line for line in page(RESULTS).splitlines()}
    start = lines["| start, s"].strip("| ").split(" | ")
    assert start[:3] == ["start, s", "3", "**0.65 (0.50-0.80)**"]
    assert "it did not start" in start
    assert lines["| served again, s"].split(" | ")[1:3] == ["5", "never: the server is gone"]
    assert "6,000 tokens. Turns: 2." in page(RESULTS)
    assert "load of 9 to 21" in page(RESULTS).replace("\n", " ")
    assert ET.fromstring(plot(RESULTS)) is not None


def test_each_row_and_each_peer_has_a_name_of_its_own() -> None:
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    assert not [name for name in (*ROWS, *(peer.name for peer in PEERS)) if name.strip() != name]


def test_the_page_hides_no_turn_that_failed() -> None:
    lines = {line.split(" | ")[0]: line for line in page(RESULTS).splitlines()}
    assert lines["| memory, MiB"].strip("| ").split(" | ")[1:4] == [
        "1,234 (1 of 2 turns; other: too late)",
        "300 alone",
        "**0.50 (1 of 2 turns; other: 2 of 3 requests: timeout)**",
    ]


def test_the_page_says_of_which_commits_the_rows_are() -> None:
    words = "Its commits: bbbb: idle; all other rows: aaaa."
    assert words in page(RESULTS)
    assert "lmx's commit: aaaa." in page(
        {**RESULTS, "1 lmx idle": None, "commits": dict.fromkeys(RESULTS["commits"], "aaaa")}
    )
    assert 'PEERS="--turns 2 --long 6000"' in page(RESULTS)


def test_a_phase_without_tokens_has_a_row_on_the_page_of_a_device() -> None:
    from tests.bench.bench_device import _row

    figures = {"errors": {"timeout": 3}, "requests": 3, **dict.fromkeys(
        ("tokens_per_s", "first_token_s", "next_token_s", "cpu_ms_per_token"))}  # fmt: skip
    measured = {"phase": "1 client", "server": "lmx", "figures": [figures]}
    assert _row(measured) == "| 1 client | lmx | 3 of 3 | - | - | - | - |\n"
    spread = {"median": 5.0, "least": 4.0, "most": 6.0}
    figures |= {"tokens_per_s": spread, "first_token_s": {"p50": 0.5, "p95": 1.0}}
    assert "| 5 (4-6) | 500, 1000 | - | - |" in _row(measured)


def test_percentiles_of_a_mixed_day_count_each_value_once() -> None:
    from tests.bench.bench_mixed import _cells

    assert _cells([0.2, 0.1])[0] == "150.0"


def test_a_server_that_refuses_to_warm_up_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def starts(*_: Any) -> None:
        pass

    async def refuses(*_: Any) -> None:
        raise OperationError(ErrorCode.PROTOCOL_ERROR, "it can't be measured")

    monkeypatch.setattr(bench_peers, "wait_for_first_answer", starts)
    monkeypatch.setattr(bench_peers, "warm_up", refuses)
    kept = tmp_path / "results.json"
    results: dict[str, Any] = {"long": 5, "loads": [], "0 other idle": "not installed: no network"}
    running = SimpleNamespace(url="http://127.0.0.1:9")
    rows = bench_peers._rows(
        PEERS[0], running, {"m": tmp_path}, ["idle"], 0, results, kept, math.inf
    )
    asyncio.run(rows)
    found = json.loads(kept.read_text())
    assert found["0 lmx idle"] == "it can't be measured"
    assert found["commits"]["0 lmx idle"]
    assert "0 other idle" not in found, "the next run may install it"


def test_what_a_server_can_not_count_is_known_for_all_rows() -> None:
    running = cast("Any", SimpleNamespace(url="http://127.0.0.1:9"))
    server = Server(PEERS[0], running, cast("Any", None), {"m": Path("m")}, 5, "seed", 1.0)
    assert server.target().has_usage
    server.has_usage = False
    assert not server.target().has_usage
