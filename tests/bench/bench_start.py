"""How long lmx takes from its first process to its first answer over HTTP, no model loaded.

Supervisor and router start one after the other. Beside it stands an interpreter that imports the
libraries that both need: what is over that is lmx's own. ``make bench-start`` measures this
checkout; ``AGAINST=FOLDER``, another checkout with a ``.venv`` of its own, in turns with it.
"""

from __future__ import annotations

import http.client
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from checkouts import ROOT, asked, in_turns, measured_one
from report import Section

TURNS = 5
LIMIT_S = 60.0
_LIBRARIES = "import aiohttp, psutil, pydantic, structlog, yaml, zmq"
_TEXT = (
    "From the first process to the first answer over HTTP, without a model: medians of "
    f"{TURNS} turns (`make bench-start`). The other line is an interpreter that imports the "
    "libraries that the supervisor and the router need; they import them one after the other, so "
    "twice that time is the least that a start takes."
)


def measure(_model: Path) -> Section:
    """Measure this checkout; no model is needed."""
    turns = in_turns(__file__, [ROOT], TURNS)[ROOT]
    rows = [["", "s"], *([name, f"{_median(turns, name):.2f}"] for name in turns[0])]
    for row in rows[1:]:
        print(*row, flush=True)
    return Section("A start", _TEXT, rows)


def main() -> None:
    """Print the medians of the turns of each checkout."""
    if measured_one(_measure):
        return
    for checkout, turns in in_turns(__file__, asked(), TURNS).items():
        for name in turns[0]:
            values = [turn[name] for turn in turns]
            print(
                f"{checkout.name:12} {name:20} {_median(turns, name):6.2f} s "
                f"({min(values)} to {max(values)})"
            )


def _median(turns: Sequence[Mapping[str, float]], name: str) -> float:
    return statistics.median(turn[name] for turn in turns)


def _measure() -> dict[str, float]:
    from rig import Rig, scripted

    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", _LIBRARIES], check=True)
    imports_s = time.monotonic() - began_s
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    lmx = Rig({"server": {"port": port}, "models": [scripted("one")]})
    try:
        began_s = time.monotonic()
        lmx.up(wait=False)
        while not _answers(port):
            if time.monotonic() > began_s + LIMIT_S:
                raise TimeoutError(f"no answer within {LIMIT_S:g} s")
            time.sleep(0.005)
        answer_s = time.monotonic() - began_s
    finally:
        lmx.close()
    return {"first answer": round(answer_s, 3), "imports": round(imports_s, 3)}


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/v1/models")
        answer = connection.getresponse()
        return answer.status == 200 and "data" in json.loads(answer.read())
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    main()
