"""lmx compared with other servers of MLX models on this machine: `make bench-peers`.

Each server is started, measured row by row and stopped, in turns with the others; another one is
first in each turn. What was measured is kept in the cache folder with lmx's commit, so that a run
that was ended is resumed: ``--again`` begins from the start, also for a newer lmx, and
``--minutes`` ends it after that time.
Writes docs/benchmarks-peers.md, with ratios to lmx of the same turn, and its plot.
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import OperationError
from lmx.protocol.host.cache_folder import cache_dir
from lmx.supervisor.cli.bench.plot import Bar, Panel, number_text, svg
from lmx.supervisor.cli.bench.scenarios import in_order
from lmx.supervisor.cli.bench.traffic import session, warm_up
from lmx.supervisor.state.atomic_write import atomic_write
from tests.bench.peers.rows import ROWS, NotPossibleError, Server, wait_for_first_answer
from tests.bench.peers.servers import (
    LMX,
    NOT_INSTALLED,
    PEERS,
    ROOT,
    Models,
    NotInstalledError,
    Peer,
    interpreter,
    started,
)

PAGE: Final = ROOT / "docs" / "benchmarks-peers.md"
PLOT: Final = PAGE.with_suffix(".svg")
CONTEXT_TOKENS: Final = 65_536
_START_S: Final = 120.0
_REQUEST_S: Final = 180.0
_TEXT: Final = """\
# lmx compared with other servers

Written by `make bench-peers PEERS="--turns {turns} --long {long}"`, and not by hand. It installs
each server in an environment of its own, starts one after the other with its defaults, asks all of
them the same with the traffic of `lmx bench`, and does it again in each turn, with another one
first. The first column is lmx; the others are what a server needs where lmx needs 1, in the same
turn: the median of the turns, with the least and most of several. More than 1 is more than lmx
needs; **bold is where lmx is behind** by more than a tenth. A text says why there is no number, or
what became of the other turns; where lmx has no number, the other's own is shown as "alone".

Machine: {machine}, no GPU; all compute with mlx {mlx} and OpenBLAS.
The model has three thin layers, a token for each byte and random weights, so that the servers are
measured and not the model. Long prompts have {long:,} tokens. Turns: {turns}. {commits}
The machine had a load of {load}: times by the clock vary with it, and processor time says more.
For the swaps lmx has room for one of the two models, and `memory.min_residency_s` is 0. The system
prompt that changes ends with `<total_tokens>N tokens left</total_tokens>`, as coding agents write
it: lmx knows this line by a rule. One that it does not know costs it as much as the others.
"""
Results = dict[str, Any]
"""By "turn peer row": the figures by their names, or a text that says why there are none. And
``commits``: by the same keys, of which commit of lmx they are."""

_NOT_INSTALLED: Final = "not installed: "
"""So begins a text that is not kept: the next run may install it."""


def main() -> None:
    """Measure what is not measured yet, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--long", type=int, default=45_000, help="tokens of a long prompt")
    parser.add_argument("--again", action="store_true")
    chosen = parser.parse_args()
    kept = cache_dir() / "peers" / "results.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    results: Results = {}
    if kept.exists() and not chosen.again:
        results = json.loads(kept.read_text())
    if results.setdefault("long", chosen.long) != chosen.long:
        parser.error(f"the kept results are of {results['long']} tokens: --long, or --again")
    if results.setdefault("mlx", version("mlx")) != version("mlx"):
        parser.error(f"the kept results are of mlx {results['mlx']}: --again")
    results.setdefault("loads", [os.getloadavg()[0]])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the server is ended too
    end_s = time.monotonic() + 60 * chosen.minutes
    commit, before = _commit(), len(results)
    with tempfile.TemporaryDirectory() as folder:
        models = {name: _model(Path(folder) / name) for name in ("m", "other")}
        for turn in range(chosen.turns):
            for place in in_order(len(PEERS), turn):
                _measure(PEERS[place], turn, models, results, kept, end_s)
    if len(results) == before:
        print(f"nothing was measured of {commit}: --again measures again what is kept", flush=True)
    PAGE.write_text(page(results))
    PLOT.write_text(plot(results))


def _commit() -> str:
    """Return the commit of this checkout, and whether it was changed since; the version where
    there is no repository."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--abbrev=8", "--dirty"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return version("lmx")


def _keep(results: Results, key: str, found: Any, kept: Path) -> None:
    results[key] = found
    results.setdefault("commits", {})[key] = _commit()
    results["loads"].append(round(os.getloadavg()[0], 1))
    lasting = {name: value for name, value in results.items()
               if not (isinstance(value, str) and value.startswith(_NOT_INSTALLED))}  # fmt: skip
    atomic_write(kept, json.dumps(lasting, indent=1))
    print(f"turn {key}: {found}", flush=True)


def _model(folder: Path) -> Path:
    """Make the tiny model, with tensors named as the hub's are, for all servers."""
    from tests.bench.bench_start import name_as_published
    from tests.support.models.tiny_models import make_tiny_model

    model = make_tiny_model(folder, "llama", CONTEXT_TOKENS)
    name_as_published(model / "model.safetensors")
    return model


def _measure(
    peer: Peer, turn: int, models: Models, results: Results, kept: Path, end_s: float
) -> None:
    todo = [name for name in ROWS if f"{turn} {peer.name} {name}" not in results]
    if not todo or time.monotonic() > end_s:
        return
    try:
        python = interpreter(peer)
    except NotInstalledError as error:
        results |= {f"{turn} {peer.name} {name}": f"{_NOT_INSTALLED}{error}" for name in todo}
        return
    shared = [name for name in todo if not ROWS[name].is_fresh]
    groups = [shared, *([name] for name in todo if ROWS[name].is_fresh)]
    for group in filter(None, groups):
        if time.monotonic() > end_s:
            return
        count = ROWS[group[0]].models if peer.swaps else 1
        served = dict(list(models.items())[:count])
        with started(peer, python, served) as running:
            asyncio.run(_rows(peer, running, served, group, turn, results, kept, end_s))


async def _rows(
    peer: Peer,
    running: Any,
    models: Models,
    names: Sequence[str],
    turn: int,
    results: Results,
    kept: Path,
    end_s: float,
) -> None:
    async with session() as http:
        seed = f"{turn} {peer.name} {time.time()}"
        server = Server(peer, running, http, models, results["long"], seed, _REQUEST_S)
        try:
            await wait_for_first_answer(server, _START_S)
            target = server.target()
            await warm_up(http, target, f"{seed} warm-up")
            server.tokens_per_word, server.has_usage = target.tokens_per_word, target.has_usage
        except (NotPossibleError, OperationError) as error:
            for name in names:
                _keep(results, f"{turn} {peer.name} {name}", str(error), kept)
            return
        for name in names:
            if time.monotonic() > end_s:
                return
            found: Any
            try:
                async with asyncio.timeout(ROWS[name].deadline_s):
                    found = await ROWS[name].measure(server)
            except NotPossibleError as error:
                found = str(error)
            except TimeoutError:
                found = f"not within {ROWS[name].deadline_s:g} s"
            _keep(results, f"{turn} {peer.name} {name}", found, kept)


def figures(results: Results) -> dict[str, dict[str, list[Any]]]:
    """Return by figure and peer what each turn has: a number, or a text. A row that failed has its
    text under the figures that it has elsewhere."""
    known: dict[str, list[str]] = {}
    for key, found in results.items():
        if key[0].isdigit() and isinstance(found, Mapping):
            known.setdefault(key.split(" ", 2)[2], []).extend(found)
    table: dict[str, dict[str, list[Any]]] = {}
    for row in ROWS:
        for figure in dict.fromkeys(known.get(row, ())):
            for peer in PEERS:
                for turn in range(_turns(results)):
                    found = results.get(f"{turn} {peer.name} {row}")
                    value = found.get(figure) if isinstance(found, Mapping) else found
                    table.setdefault(figure, {}).setdefault(peer.name, []).append(value)
    return table


def _turns(results: Results) -> int:
    return 1 + max((int(key.split()[0]) for key in results if key[0].isdigit()), default=-1)


def ratios(own: Sequence[Any], others: Sequence[Any]) -> list[float]:
    """Return what others need for what lmx needs 1, in each turn in which both have a number."""
    return [
        other / mine for mine, other in zip(own, others, strict=True)
        if isinstance(mine, int | float) and isinstance(other, int | float) and mine > 0
    ]  # fmt: skip


def page(results: Results) -> str:
    """Return the document."""
    table = figures(results)
    names = [peer.name for peer in PEERS]
    text = _TEXT.format(
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        mlx=results["mlx"], long=results["long"], turns=_turns(results),
        commits=_commit_words(results),
        load=" to ".join(f"{each:.0f}" for each in (min(results["loads"]), max(results["loads"]))),
    )  # fmt: skip
    heads = ["less is better", *names]
    lines = [text, f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for figure, cells in table.items():
        own = cells[LMX]
        shown = [_cell(own, cells[name]) for name in names[1:]]
        lines.append(f"| {figure} | {_own(own)} | {' | '.join(shown)} |")
    lines += ["", f"![What the others need where lmx needs 1]({PLOT.name})", "", "Servers: "
              + "; ".join(_server_words(peer) for peer in PEERS[1:]) + "."]  # fmt: skip
    lines += [f"Not here: {name}: {reason}." for name, reason in NOT_INSTALLED.items()]
    return "\n".join(lines) + "\n"


def _server_words(peer: Peer) -> str:
    return f"{peer.name} ({', '.join(peer.requirements) or 'as in constraints.txt'})"


def _commit_words(results: Results) -> str:
    """Return of which commits lmx's rows are: all of them in one sentence, or by their names."""
    commits = results.get("commits", {})
    rows: dict[str, list[str]] = {}
    for row in ROWS:
        keys = [key for turn in range(_turns(results)) if (key := f"{turn} {LMX} {row}") in results]
        for commit in dict.fromkeys(commits.get(key, "not noted") for key in keys):
            rows.setdefault(commit, []).append(row)
    if len(rows) < 2:
        return f"lmx's commit: {next(iter(rows), 'not noted')}."
    most = max(rows, key=lambda commit: len(rows[commit]))
    others = "; ".join(f"{commit}: {', '.join(rows[commit])}" for commit in rows if commit != most)
    return f"lmx was not the same for all rows. Its commits: {others}; all other rows: {most}."


def _own(values: Sequence[Any]) -> str:
    numbers = [value for value in values if isinstance(value, int | float)]
    if not numbers:
        return _text(values)
    return number_text(statistics.median(numbers)) + _other_turns(numbers, values)


def _cell(own: Sequence[Any], values: Sequence[Any]) -> str:
    found = ratios(own, values)
    if not found:
        numbers = [value for value in values if isinstance(value, int | float)]
        return f"{_own(values)} alone" if numbers else _text(values)
    median = statistics.median(found)
    words = f"{median:.2f}" + (f" ({min(found):.2f}-{max(found):.2f})" if len(found) > 1 else "")
    words += _other_turns(found, values)
    return f"**{words}**" if median < 0.9 else words


def _other_turns(found: Sequence[float], values: Sequence[Any]) -> str:
    if all(value is None or isinstance(value, int | float) for value in values):
        return ""
    return f" ({len(found)} of {len(values)} turns; other: {_text(values)})"


def _text(values: Sequence[Any]) -> str:
    return next((value for value in values if isinstance(value, str)), "not measured")


def plot(results: Results) -> str:
    """Return the ratios as bars; those of more than ten are drawn as ten."""
    groups = []
    for figure, cells in figures(results).items():
        bars = []
        for peer in PEERS[1:]:
            found = [min(each, 10.0) for each in ratios(cells[LMX], cells[peer.name])]
            if found:
                bars.append(Bar(peer.name, statistics.median(found), min(found), max(found)))
        if bars:
            groups.append((figure, bars))
    return svg([Panel("what a server needs where lmx needs 1 (10: ten or more)", groups)],
               "lmx compared with other servers")  # fmt: skip


if __name__ == "__main__":
    main()
