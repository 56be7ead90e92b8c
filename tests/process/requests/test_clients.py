"""What clients do amiss: they leave, send nonsense, send too much. Nobody else notices."""

import asyncio

import pytest

from tests.support.rigs.rig import Rig, Stream, ask, http, wait_until

LONG = {"tokens": 100, "step_s": 0.02}


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("where", "directive"),
    [("decode", {"tokens": 100_000, "step_s": 0.05}), ("prefill", {"tokens": 5, "prefill_s": 60})],
)
async def test_a_client_that_leaves_frees_its_row_within_one_step(
    server: Rig, where: str, directive: dict[str, float], streaming: bool
) -> None:
    # What is reported of earlier requests is a beat old.
    wait_until(lambda: server.worker("alpha")["requests_active"] == 0, "no row is taken")
    before = len(server.log_events("worker-alpha", "stream.cancelled"))
    async with http() as session:
        stream = Stream(session, server.url, ask("alpha", directive, stream=streaming))
        await asyncio.to_thread(
            wait_until, lambda: server.worker("alpha")["requests_active"] == 1, "a row is taken"
        )
        await stream.hang_up()
    wait_until(lambda: server.worker("alpha")["requests_active"] == 0, "the row is free")
    (cancelled,) = server.log_events("worker-alpha", "stream.cancelled")[before:]
    assert cancelled["where"] == where
    assert cancelled["step_when_freed"] - cancelled["step_at_cancel"] <= 1
    wait_until(
        lambda: any(
            entry["request_id"] == cancelled["request_id"]
            for entry in server.log_events("router", "http.request")
        ),
        "the router has noted its end",
    )


@pytest.mark.parametrize(
    "messages",
    [
        f"[{'0,' * 7_000_000}0]",
        f'[{{"role": "user", "content": "{"x" * 15_000_000}"}}]',
        f"[{','.join(['{}'] * 4_000_000)}]",
    ],
    ids=["numbers", "one text", "empty objects"],
)
async def test_a_body_just_under_the_limit_does_not_hold_up_the_router(
    server: Rig, messages: str
) -> None:
    """Refused, while a stream goes on; and the memory comes back."""
    router = server.status()["router"]["pid"]
    async with http() as session:
        stream = Stream(session, server.url, ask("alpha", LONG))
        await stream.has_text(20)
        body = f'{{"model": "alpha", "messages": {messages}}}'
        headers = {"Content-Type": "application/json"}
        url = f"{server.url}/chat/completions"
        async with session.post(url, data=body, headers=headers) as response:
            assert response.status == 400
        await stream.ended()
        assert (stream.text, stream.errors) == ("word " * 100, [])
    after = server.status()["router"]
    assert (after["pid"], after["restarts"]) == (router, 0)
    wait_until(lambda: server.status()["router"]["memory_bytes"] < 100_000_000, "under 100 MB")
