"""How long lmx takes from its first process to its first answer over HTTP, no model loaded.

Supervisor and router start one after the other. Beside it stands an interpreter that imports the
libraries that both need: what is over that is lmx's own. ``make bench-start`` measures this
checkout; ``AGAINST=FOLDER``, another checkout with a ``.venv`` of its own, in turns with it.
"""

import http.client
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.rigs.checkouts import ROOT, asked, in_turns, measured_one, median_of, print_medians
from tests.bench.rigs.report import Section

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
    rows = [["", "median"], *([name, f"{median_of(turns, name):.2f}"] for name in turns[0])]
    for row in rows[1:]:
        print(*row, flush=True)
    return Section("A start", _TEXT, rows)


def main() -> None:
    """Print the medians of the turns of each checkout."""
    if measured_one(_measure):
        return
    print_medians(in_turns(__file__, asked(), TURNS), digits=2)


def _measure() -> dict[str, float]:
    from tests.support.rigs.rig import Rig, scripted

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
    return {"first answer, s": round(answer_s, 3), "imports, s": round(imports_s, 3)}


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
