"""Keys over the life of a real lmx: made before it runs and while it runs, by commands and by
routes, in effect at once and without a restart."""

import contextlib
import json
import os
import signal
from typing import Any

import aiohttp
import pytest

from tests.support.rigs.rig import Rig, Stream, ask, http, scripted

pytestmark = pytest.mark.long

LONG = {"tokens": 2000, "step_s": 0.02}


async def status_of(
    session: aiohttp.ClientSession, lmx: Rig, secret: str, model: str = "small"
) -> int:
    body = ask(model, {"tokens": 1})
    headers = {"Authorization": f"Bearer {secret}"}
    async with session.post(f"{lmx.url}/chat/completions", json=body, headers=headers) as response:
        await response.read()
        return response.status


async def admin(
    session: aiohttp.ClientSession, lmx: Rig, method: str, path: str, key: str = "", **body: Any
) -> tuple[int, Any]:
    key = key or (lmx.home / "admin.key").read_text().strip()
    url = lmx.url.removesuffix("/v1") + path
    async with session.request(
        method, url, headers={"X-Admin-Key": key}, json=body if method == "POST" else None
    ) as response:
        return response.status, await response.json()


async def test_a_key_from_its_making_to_its_end() -> None:
    # Others can reach it: so a key must be there, and one that lmx keeps is enough.
    server = {"host": "0.0.0.0"}
    lmx = Rig({"models": [scripted("small"), scripted("large")], "server": server})
    with contextlib.closing(lmx):
        check = ("config", "check", "--config", str(lmx.config_path))
        refused = lmx.cli(*check)
        assert refused.returncode == 4
        assert "lmx key add" in refused.stderr
        # Before lmx runs the file is changed.
        first = lmx.cli("key", "add", "laptop", "--model", "sm*")
        assert first.returncode == 0, first.stderr
        laptop = first.stdout.strip()
        assert "shown this once" in first.stderr
        assert lmx.cli("key", "add", "laptop").returncode == 1
        lmx.up()
        lmx.wait_state("small", "ready")
        router_pid = lmx.status()["router"]["pid"]
        async with http() as session:
            assert await status_of(session, lmx, laptop) == 200
            assert await status_of(session, lmx, laptop, "large") == 403
            assert await status_of(session, lmx, "") == 401
            # Who owns the machine needs no secret on it.
            answer = lmx.cli("run", "small", json.dumps({"tokens": 1}))
            assert answer.returncode == 0, answer.stderr
            assert "this machine" not in lmx.cli("key", "list").stdout
            # While it runs: each change is in effect when the command ends.
            made = lmx.cli("key", "add", "ci", "--expires", "30d", "--json")
            assert made.returncode == 0, made.stderr
            ci = json.loads(made.stdout)["secret"]
            assert await status_of(session, lmx, ci, "large") == 200
            rotated = lmx.cli("key", "rotate", "ci", "--grace", "1h").stdout.strip()
            assert [await status_of(session, lmx, key) for key in (ci, rotated)] == [200, 200]
            last = lmx.cli("key", "rotate", "ci").stdout.strip()
            # Without a grace time all former secrets end.
            found = [await status_of(session, lmx, key) for key in (ci, rotated, last)]
            assert found == [401, 401, 200]
            # A stream goes on when its key is revoked, and no other begins.
            session.headers["Authorization"] = f"Bearer {last}"
            stream = Stream(session, lmx.url, ask("small", LONG))
            await stream.has_text(1)
            assert lmx.cli("key", "revoke", "ci").returncode == 0
            session.headers.pop("Authorization")
            length = len(stream.text)
            assert [await status_of(session, lmx, key) for key in (ci, last)] == [401, 401]
            await stream.has_text(length + 1)
            await stream.hang_up()
            # By HTTP, with a key that a key of an admin makes.
            status, boss = await admin(
                session, lmx, "POST", "/admin/keys", name="boss", scopes=["admin"]
            )
            assert status == 201
            status, phone = await admin(
                session, lmx, "POST", "/admin/keys", boss["secret"], name="phone"
            )
            assert (status, await status_of(session, lmx, phone["secret"])) == (201, 200)
            path = "/admin/keys/phone/rotate"
            status, again = await admin(session, lmx, "POST", path, boss["secret"])
            assert status == 200
            both = (phone["secret"], again["secret"])
            assert [await status_of(session, lmx, key) for key in both] == [401, 200]
            # From another machine, by the same commands.
            there = ("--url", lmx.url.removesuffix("/v1"), "--key", boss["secret"], "key")
            added = lmx.cli(
                *there, "add", "far", "--tokens-per-day", "9", "--tokens-per-minute", "8"
            )
            assert added.returncode == 0, added.stderr
            assert (
                await status_of(session, lmx, lmx.cli(*there, "rotate", "far").stdout.strip())
                == 200
            )
            assert (
                lmx.cli(*there, "list", "--json").stdout == lmx.cli("key", "list", "--json").stdout
            )
            lines = lmx.cli(*there, "list").stdout
            assert "8 tokens a minute; 9 tokens a day; used today 1 request, " in lines
            (used,) = [line for line in lines.splitlines() if line.startswith("laptop ")]
            assert "used today 1 request, " in used
            assert lmx.cli(*there, "revoke", "far").returncode == 0
            # An operator's key looks on.
            viewer = lmx.cli("key", "add", "viewer", "--scope", "operator").stdout.strip()
            status, listed = await admin(session, lmx, "GET", "/admin/keys", viewer)
            names = [key["name"] for key in listed["keys"]]
            assert (status, names) == (200, ["boss", "laptop", "phone", "viewer"])
            status, refusal = await admin(session, lmx, "DELETE", "/admin/keys/boss", viewer)
            assert status == 403
            assert "scope operator" in refusal["error"]["message"]
            assert "scope admin" in refusal["error"]["message"]
            notes = {event.name for event in lmx.events("key.added", "key.rotated", "key.revoked")}
            assert notes == {"key.added", "key.rotated", "key.revoked"}
        # Another supervisor and another router know the same keys.
        os.kill(router_pid, signal.SIGKILL)
        lmx.cli("restart", "--supervisor")
        lmx.wait_serving()
        async with http() as session:
            assert await status_of(session, lmx, again["secret"]) == 200
            assert await status_of(session, lmx, phone["secret"]) == 401
            assert (await admin(session, lmx, "DELETE", "/admin/keys/phone"))[0] == 200
            assert await status_of(session, lmx, again["secret"]) == 401
            listed_text = lmx.cli("key", "list").stdout
            assert "models sm*" in listed_text
            # Without any key none is answered, also after another start.
            last_one = lmx.cli("key", "revoke", "laptop")
            assert "none is answered until there is another key" in last_one.stdout
            assert [await status_of(session, lmx, key) for key in ("", laptop)] == [401, 401]
        lmx.stop()
        lmx.up()
        assert "there is no key for requests to models" in lmx.cli(*check).stdout
        async with http() as session:
            assert await status_of(session, lmx, "") == 401
        lmx.stop()
        # What was given out is in no file and no log.
        text = b"".join(each.read_bytes() for each in lmx.home.rglob("*") if each.is_file())
        for secret in (laptop, ci, rotated, last, boss["secret"], again["secret"], viewer):
            assert secret.encode() not in text
        assert b"laptop" in text
