"""Whole lmx with homes of their own on loopback, which are peers of each other."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import aiohttp
import yaml

from lmx.protocol.messages.keys import AddKey, KeyMade, KeyScope
from tests.support.rigs.rig import Rig, rig, scripted

MODEL = "alpha"


@contextmanager
def federated_homes(machines: Sequence[str], **settings: Any) -> Iterator[dict[str, Rig]]:
    """One lmx for each machine, all with the same model, and each a peer of all others. Settings
    are the model's."""
    with ExitStack() as opened:
        rigs: dict[str, Rig] = {}
        for name in machines:
            model = scripted(MODEL, **{"max_rows": 4, "preload": True, **settings})
            rigs[name] = opened.enter_context(rig({"server": {"name": name}, "models": [model]}))
        keys: dict[str, str] = {}
        for name, one in rigs.items():
            made: KeyMade = one.ask(AddKey(name="peers", scopes=(KeyScope.PEER,)))
            keys[name] = made.secret
        urls = {name: one.url.removesuffix("/v1") for name, one in rigs.items()}
        for name, one in rigs.items():
            config = yaml.safe_load(one.config_path.read_text())
            config["server"]["port"] = int(urls[name].rpartition(":")[2])
            config["peers"] = [
                {"name": other, "url": urls[other], "key": keys[other]}
                for other in machines
                if other != name
            ]
            one.config_path.write_text(yaml.safe_dump(config))
            one.run("reload")
        yield rigs


async def know_all(session: aiohttp.ClientSession, lmx: Rig, count: int) -> None:
    """Wait until so many peers of a machine answer."""
    headers = {"X-Admin-Key": (lmx.home / "admin.key").read_text().strip()}
    url = lmx.url.removesuffix("/v1")
    end_s = time.monotonic() + 90
    while time.monotonic() < end_s:
        async with session.get(f"{url}/admin/peers", headers=headers) as response:
            shown = (await response.json())["peers"]
        if sum(one["answers"] for one in shown) == count:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not all peers answer: {shown}")
