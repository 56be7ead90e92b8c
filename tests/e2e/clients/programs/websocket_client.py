"""OpenAI's own client over a WebSocket: three turns on one connection, an error, and one turn with
the client that is not asynchronous. Prints what came as JSON."""

import asyncio
import json
import sys
from typing import Any

from openai import AsyncOpenAI, OpenAI

ENDS = ("response.completed", "response.failed", "response.incomplete", "error")


def noted(events: list[Any]) -> dict[str, Any]:
    last = events[-1]
    return {
        "types": [event.type for event in events],
        "text": "".join(e.delta for e in events if e.type == "response.output_text.delta"),
        "code": last.error.code if last.type == "error" else None,
        "id": None if last.type == "error" else last.response.id,
    }


async def turns(url: str, key: str, model: str) -> list[dict[str, Any]]:
    found = []
    async with (
        AsyncOpenAI(base_url=url, api_key=key) as client,
        client.responses.connect() as connection,
    ):
        previous = None
        for said in ("one", "two", "three", None):
            fields: dict[str, Any] = {"input": said or [], "store": False}
            if said is None:
                previous = "resp_0"
            if previous is not None:
                fields["previous_response_id"] = previous
            await connection.response.create(model=model, **fields)
            events = [await connection.recv()]
            while events[-1].type not in ENDS:
                events.append(await connection.recv())
            found.append(noted(events))
            previous = found[-1]["id"]
    return found


def turn(url: str, key: str, model: str) -> dict[str, Any]:
    with OpenAI(base_url=url, api_key=key) as client, client.responses.connect() as connection:
        connection.response.create(model=model, input="four")
        events: list[Any] = []
        for event in connection:
            events.append(event)
            if event.type in ENDS:
                break
        stored = client.responses.retrieve(events[-1].response.id)
        return {**noted(events), "stored": stored.output_text}


url, key, model = sys.argv[1:]
print(json.dumps([*asyncio.run(turns(url, key, model)), turn(url, key, model)]))
