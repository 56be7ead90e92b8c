"""Requests of all families under way on models of all kinds, and one process gets a blow: worker,
router, supervisor, decoder, renderer or reader of model files, killed, stopped, or only slow. What
was not its own is answered to the byte as it is alone, and nothing is shot that was only slow."""

import os
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.clients.api_families import session
from tests.support.faults.blows import draw_blows
from tests.support.faults.kill_rounds import (
    SPARE,
    Alone,
    Round,
    Weight,
    play_round,
    server_url,
    wait_well,
    weigh,
)
from tests.support.models.tiny_zoo import make_zoo
from tests.support.rigs.busy import LOAD, busy_machine
from tests.support.rigs.rig import DEFAULTS, rig

pytestmark = pytest.mark.soak

ROUNDS = int(os.environ.get("LMX_TEST_ROUNDS", "40"))
SEED = int(os.environ.get("LMX_TEST_SEED", "1"))


@pytest.mark.timeout(3600 + 600 * ROUNDS)
async def test_nobody_else_is_hurt(tmp_path: Path) -> None:
    models = make_zoo(tmp_path)
    models.append({**models[1], "id": SPARE, "preload": False})
    config = {
        "models": models,
        "timing": DEFAULTS,
        # What is hit in many rounds comes back soon after each.
        "restart": {"max_failures": 1000, "backoff_max_s": 1.0},
    }
    draw, rounds = random.Random(SEED), []
    with busy_machine(), rig(config, background=True) as lmx:
        wait_well(lmx)
        async with session() as client:
            alone = Alone(client, server_url(lmx))
            for number, blow in enumerate(draw_blows(SEED, ROUNDS), 1):
                rounds.append(await play_round(lmx, client, alone, blow, draw))
                print(f"{number}. {rounds[-1]}", flush=True)
                if number == 1:
                    before = weigh(lmx)
        after = weigh(lmx)
    report(rounds, before, after)
    assert [wrong for one in rounds for wrong in one.wrongs] == []
    for name, count in after.descriptors.items():
        assert count <= before.descriptors[name] + 16, "descriptors are lost"
    for name, mib in after.memory_mib.items():
        assert mib <= 1.5 * before.memory_mib[name] + 32, "memory is lost"


def report(rounds: Sequence[Round], before: Weight, after: Weight) -> None:
    """Print the figures, and a line for a table in the documents."""
    answers = [answer for one in rounds for answer in one.answers]
    equal = sum(one.equal for one in rounds)
    hurt = sum(one.hurt_others for one in rounds)
    back_s: dict[str, list[float]] = defaultdict(list)
    for one in rounds:
        back_s[f"{one.blow.target} {one.blow.how}"].append(one.back_s)
    print("endings:", dict(Counter(answer.ending for answer in answers).most_common()))
    for what, times_s in sorted(back_s.items()):
        middle_s = statistics.median(times_s)
        print(f"back after {what}: median {middle_s:.1f} s, most {max(times_s):.1f} s")
    print(f"descriptors: {before.descriptors} -> {after.descriptors}")
    print(f"memory, MiB: {before.memory_mib} -> {after.memory_mib}")
    own = len(answers) - equal - hurt
    print(f"| {LOAD or 'idle'} | {len(rounds)} | {len(answers)} | {equal} | {own} | {hurt} |")
