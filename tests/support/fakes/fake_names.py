"""A name service for names that end in ``.test``, in each process that is started with what
:func:`variables` returns: so the look-ups of a real router are in a test's hand.

Standard library only: it is loaded before anything else.
"""

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ANSWERS = "FAKE_NAMES"
_NEVER_S = 5.0

Answers = Mapping[str, Sequence[Sequence[str] | None]]
"""For each name, the addresses that its look-ups give, one after the other; the last for ever.
None: the look-up does not end within seconds. No addresses: there is no such host."""


def variables(folder: Path, answers: Answers) -> dict[str, str]:
    """Return the variables for processes that shall have these ``answers``. ``folder`` must be
    empty; what was looked up is noted there."""
    (folder / "sitecustomize.py").write_text(
        "from tests.support.fakes import fake_names\n\nfake_names.install()\n"
    )
    (folder / "names.json").write_text(json.dumps(answers))
    return {_ANSWERS: str(folder / "names.json"), "PYTHONPATH": str(folder)}


def looked_up(folder: Path) -> list[str]:
    """Return the names that were looked up, in order."""
    path = folder / "names.asked"
    return path.read_text().split() if path.exists() else []


def install() -> None:
    """Answer the look-ups of this process from now on."""
    reported = os.environ.get(_ANSWERS)
    if reported is None:
        return
    path = Path(reported)
    answers = json.loads(path.read_text())
    system = socket.getaddrinfo
    asked: dict[str, int] = {}

    def getaddrinfo(host: Any, port: Any, *arguments: Any, **named: Any) -> Any:
        if host not in answers:
            return system(host, port, *arguments, **named)
        with path.with_suffix(".asked").open("a") as file:
            file.write(f"{host}\n")
        place = asked[host] = asked.get(host, -1) + 1
        found = answers[host][min(place, len(answers[host]) - 1)]
        if found is None:
            time.sleep(_NEVER_S)
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "no such host")
        return [entry for text in found for entry in system(text, port, type=socket.SOCK_STREAM)]

    socket.getaddrinfo = getaddrinfo
