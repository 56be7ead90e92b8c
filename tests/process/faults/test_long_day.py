"""All families at once on models of all kinds, in the memory of five of seven: clients leave and
read slowly, rows outgrow their KV caches, an operator loads, kills, pins and restarts. No answer
differs from the one that is given alone by more than rounding, and nothing is shot that was only
slow."""

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.support.clients.api_families import session
from tests.support.faults.chaos_watch import Watch
from tests.support.faults.kill_rounds import server_url, shots, wait_well, weigh
from tests.support.faults.long_day import BUDGET_MIB, CODES, compare, day_config, live
from tests.support.faults.memory_over_time import MemorySamples, plot, slope
from tests.support.models.tiny_zoo import TEXT, make_zoo
from tests.support.rigs.busy import LOAD, busy_machine
from tests.support.rigs.rig import DEFAULTS, rig

pytestmark = pytest.mark.soak

SEED = int(os.environ.get("LMX_TEST_SEED", "1"))
MINUTES = float(os.environ.get("LMX_TEST_MINUTES", "20"))
PLOT = Path(os.environ["LMX_TEST_PLOT"]) if "LMX_TEST_PLOT" in os.environ else None
"""Where the memory of the router and of the supervisor over the day is drawn."""
FLAT_FROM_MINUTES = 60
"""In a process that is younger caches still fill: its slope is printed, and says nothing yet."""


@pytest.mark.timeout(7200 + 600 * MINUTES)
async def test_a_long_day(tmp_path: Path) -> None:
    config = day_config(make_zoo(tmp_path)) | {"timing": DEFAULTS}
    with busy_machine(), rig(config, background=True) as lmx:
        lmx.wait_state(TEXT[0], "ready", deadline_s=900)
        before = weigh(lmx)
        with Watch(lmx, every_s=0.5) as watch, MemorySamples(lmx) as memory:
            async with session() as client:
                day = await live(lmx, client, server_url(lmx), SEED, 60 * MINUTES)
                wait_well(lmx, "ready", "cold")
                endings = Counter(answer.ending for answer in day.answers)
                print("endings:", dict(endings.most_common()), flush=True)
                found = await compare(client, server_url(lmx), day.answers)
                wait_well(lmx, "ready", "cold")
        after = weigh(lmx)
        preempted = sum(
            "background" not in event["reason"]
            for m in TEXT
            for event in lmx.log_events(f"worker-{m}", "row.preempted")
        )
        status, events = lmx.status(), lmx.log_events("supervisor")
    print("commands:", dict(day.commands), *day.refused_commands, sep="\n  ")
    print("differ from the answer alone:", *found.wrong, sep="\n  ")
    print(f"rounded, of {found.long_answers} long ones:", *found.rounded, sep="\n  ")
    print(f"{watch.looks} looks, at most {watch.most_bytes >> 20} of {BUDGET_MIB} MiB reserved")
    print(f"router and supervisor: {before} -> {after}")
    slopes, lived_minutes = {}, {}
    for name, points in memory.longest().items():
        slopes[name] = slope(points)
        lived_minutes[name] = (points[-1][0] - points[0][0]) / 60
        print(f"memory of the {name}: {slopes[name]}, over {lived_minutes[name]:.0f} minutes")
    if PLOT is not None:
        PLOT.write_text(plot(memory.longest(), f"{len(day.answers)} requests, {MINUTES:g} minutes"))
    swaps = status["supervisor"]["swaps_total"]
    print(
        f"| {LOAD or 'idle'} | {MINUTES:g} | {len(day.answers)} | {endings['answer']} | {swaps} | "
        f"{preempted} | {day.commands.total()} | {found.asked} | {len(found.rounded)} | "
        f"{len(found.wrong)} |"
    )
    assert memory.failure is None
    old = [name for name in slopes if lived_minutes[name] > FLAT_FROM_MINUTES]
    assert [name for name in old if slopes[name].rises] == []
    assert found.wrong == []
    assert not found.too_many_rounded
    kinds = {"answer", "left", "refused", "error_event"}
    assert [str(a) for a in day.answers if a.kind not in kinds or {a.code} - CODES - {None}] == []
    assert shots(events) == []
    assert (watch.failure, watch.wrongs) == (None, [])
    # A model that takes more than was estimated exceeds the budget until another one is unloaded.
    # What was planned, or is reserved since a model takes less, never does.
    planned = {e["instance"]: e["reserved_bytes"] for e in events if e["event"] == "worker.spawned"}
    for look in watch.over_budget:
        assert sum(min(planned[name], now) for name, now in look.items()) <= BUDGET_MIB << 20
    assert watch.most_bytes <= 1.02 * (BUDGET_MIB << 20)
    assert watch.looks > 10 * MINUTES, "too few looks to prove anything"
    assert preempted > 0
    assert swaps > 0
