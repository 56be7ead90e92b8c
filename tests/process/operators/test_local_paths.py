"""Where models lie on this machine is told to operators alone: not in answers, errors, events,
records and headers of any route that the admin key is not needed for."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lmx.router.server.routes import ROUTES
from tests.support.rigs.rig import Rig, rig, scripted

pytestmark = pytest.mark.long

MARKER = "zq7-Geheim"
KEY = "an-inference-key-of-the-tests"
BROKEN = ("gone", "damaged", "refuses", "forbids", "crashes")
HI = {"role": "user", "content": "hi"}
ASKED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {"messages": [HI]}),
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/messages", {"messages": [HI], "max_tokens": 9}),
    ("/v1/responses", {"input": "hi"}),
    ("/api/chat", {"messages": [HI]}),
    ("/api/generate", {"prompt": "hi"}),
)


@pytest.fixture(scope="module")
def lmx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("models") / f"My {MARKER}"

    def place(name: str) -> Path:
        return folder / f"{name} {MARKER}"

    for name in ("fine", "damaged", "refuses", "forbids", "crashes"):
        place(name).mkdir(parents=True)
        (place(name) / "config.json").write_text("{" if name == "damaged" else "{}")

    def model(name: str, **options: Any) -> dict[str, Any]:
        preload = name == "fine"
        return scripted(name, source=str(place(name)), options=options, preload=preload)

    def said(name: str) -> str:
        return f"{place(name)} can't be read: '{folder}/x.safetensors' ({folder}/config.json)"

    models = [
        model("fine"),
        {"id": "gone", "source": str(place("gone")), "preload": False},
        {"id": "damaged", "source": str(place("damaged")), "preload": False},
        model("refuses", load_error=said("refuses")),
        model("forbids", load_permanent=said("forbids")),
        model("crashes", load_crash=True),
    ]
    with rig({"models": models, "security": {"api_keys": [KEY]}}) as made:
        made.wait_state("fine", "ready")
        yield made


def everything(response: httpx.Response) -> str:
    return f"{response.headers}\n{response.text}\n{json.loads(json.dumps(response.text))}"


def test_no_client_learns_a_path(lmx: Rig) -> None:
    base = lmx.url.removesuffix("/v1")
    reported: dict[str, str] = {}
    with httpx.Client(base_url=base, timeout=300, headers={"X-Api-Key": KEY}) as client:
        for name in (*BROKEN, "fine"):
            for path, fields in ASKED:
                for stream in (False, True):
                    body = {"model": name, "stream": stream, **fields}
                    response = client.post(path, json=body)
                    reported[f"{name} {path} {stream}"] = everything(response)
                    if name in BROKEN:
                        assert response.status_code >= 500 or stream, response.text
            for path, body in (
                ("/api/show", {"model": name}),
                ("/tokenize", {"model": name, "prompt": "hi"}),
                ("/v1/embeddings", {"model": name, "input": "hi"}),
            ):
                reported[f"{name} {path}"] = everything(client.post(path, json=body))
        for record in client.get("/v1/jobs").json()["data"]:
            reported[record["id"]] = everything(client.get(f"/v1/jobs/{record['id']}"))
        for route in ROUTES:
            if route.method == "GET" and not route.access.for_operators:
                path = re.sub(r"\{.*?\}", "fine", route.path)
                reported[path] = everything(client.get(path))
                reported[f"{path} without a key"] = everything(
                    httpx.get(f"{base}{path}", timeout=300, headers={"Accept": "text/html"})
                )
    assert [where for where, text in reported.items() if MARKER in text] == []
    # The test sees what there is to see.
    assert "[path]" in reported["gone /v1/chat/completions False"]
    assert "refuses" in reported["/health"] and "fine" in reported["/health"]
    for path in ("/health", "/healthz", "/v1/health", "/status", "/"):
        text = reported[f"{path} without a key"]
        assert not [name for name in (*BROKEN, "fine") if name in text], text
    # Operators are told.
    key = {"X-Admin-Key": (lmx.home / "admin.key").read_text().strip()}
    loaded = httpx.post(
        f"{base}/admin/models/load", json={"model_id": "gone"}, headers=key, timeout=300
    )
    assert MARKER in loaded.text
