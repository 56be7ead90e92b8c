"""Anthropic's batches of messages, by the official library's own calls."""

import asyncio
import json
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types.messages import DeletedMessageBatch, MessageBatch
from anthropic.types.messages.message_batch_individual_response import (
    MessageBatchIndividualResponse,
)

from lmx.protocol.messages.keys import ApiKey
from lmx.protocol.messages.specs import FilesSpec
from tests.support.clients.sdk_types import extras_of
from tests.support.fakes.fake_peers import FakeStream, until
from tests.support.rigs.router_rig import MODEL, TEXTS, Rig, router_rig
from tests.unit.router.batches.test_batches import unread

ONE, OTHER = "sk-lmx-one-of-this-test", "sk-lmx-other-of-this-test"
KEYS = (ApiKey.of_secret(ONE, "one"), ApiKey.of_secret(OTHER, "other"))


def sdk(rig: Rig, key: str = ONE) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=rig.url, api_key=key, max_retries=0, timeout=90)


def one(custom_id: str, **params: Any) -> Any:
    body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    return {"custom_id": custom_id, "params": {**body, **params}}


def strictly(model: Any, raw: str) -> Any:
    """An answer as the library's type, and nothing beyond it."""
    made = model.model_validate_json(raw)
    assert not list(extras_of(made))
    return made


async def ended(client: anthropic.AsyncAnthropic, batch_id: str) -> MessageBatch:
    async with asyncio.timeout(90):
        while True:
            raw = await client.messages.batches.with_raw_response.retrieve(batch_id)
            batch: MessageBatch = strictly(MessageBatch, await raw.text())
            if batch.processing_status == "ended":
                return batch
            counts = batch.request_counts
            assert counts.processing == sum(counts.to_dict().values())  # type: ignore[arg-type]
            await asyncio.sleep(0.05)


async def test_the_library_s_own_calls() -> None:
    async with router_rig(api_keys=KEYS) as rig, sdk(rig) as client, sdk(rig, OTHER) as stranger:
        raw = await client.messages.batches.with_raw_response.create(
            requests=[one("a"), one("bad", temperature=99), one("gone", model="none"), one("b")]
        )
        batch = strictly(MessageBatch, await raw.text())
        assert batch.processing_status == "in_progress"
        assert batch.request_counts.processing == 4
        done = await ended(client, batch.id)
        assert done.request_counts.to_dict() == {
            "processing": 0, "succeeded": 2, "errored": 2, "canceled": 0, "expired": 0,
        }  # fmt: skip
        results = [found async for found in await client.messages.batches.results(batch.id)]
        assert [(found.custom_id, found.result.type) for found in results] == [
            ("a", "succeeded"), ("bad", "errored"), ("gone", "errored"), ("b", "succeeded"),
        ]  # fmt: skip
        first, bad, gone, _ = (found.result for found in results)
        assert first.type == "succeeded"
        assert first.message.content[0].to_dict()["text"] == "".join(TEXTS)
        assert bad.type == "errored" and bad.error.error.type == "invalid_request_error"
        assert gone.type == "errored" and gone.error.error.type == "not_found_error"
        async with rig.http.get(
            f"{rig.url}{done.results_url}", headers={"X-Api-Key": ONE}
        ) as response:
            for line in (await response.text()).splitlines():
                MessageBatchIndividualResponse.model_validate_json(line)

        # To another key, and by the other API, none of it exists.
        for call in (
            stranger.messages.batches.retrieve,
            stranger.messages.batches.cancel,
            stranger.messages.batches.delete,
            stranger.messages.batches.results,
        ):
            with pytest.raises(anthropic.NotFoundError):
                await call(batch.id)
        _, body = await rig.json("GET", "/v1/batches", headers={"Authorization": f"Bearer {ONE}"})
        assert body["data"] == []
        second = await client.messages.batches.create(requests=[one("a")])
        third = await client.messages.batches.create(requests=[one("a")])
        listed = [found.id async for found in client.messages.batches.list(limit=1)]
        assert listed == [third.id, second.id, batch.id]
        page = await client.messages.batches.list(before_id=batch.id, limit=1)
        assert ([found.id for found in page.data], page.has_more) == ([second.id], True)

        deleted = await client.messages.batches.with_raw_response.delete(batch.id)
        assert strictly(DeletedMessageBatch, await deleted.text()).id == batch.id
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(batch.id)


async def test_cancelling() -> None:
    waiting: list[FakeStream] = []

    async def script(stream: FakeStream) -> None:
        await stream.accept()
        waiting.append(stream)
        await until(lambda: stream.cancelled)

    async with router_rig(script) as rig, sdk(rig) as client:
        batch = await client.messages.batches.create(requests=[one("a"), one("b")])
        await until(lambda: bool(waiting))
        with pytest.raises(anthropic.ConflictError):
            await client.messages.batches.delete(batch.id)
        stopped = await client.messages.batches.cancel(batch.id)
        assert stopped.processing_status == "canceling" and stopped.cancel_initiated_at
        done = await ended(client, batch.id)
        assert done.request_counts.canceled == 2
        results = [found async for found in await client.messages.batches.results(batch.id)]
        assert [found.result.type for found in results] == ["canceled", "canceled"]
        assert (await client.messages.batches.cancel(batch.id)).processing_status == "ended"


async def test_it_is_cancelled_before_its_requests_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go = unread(monkeypatch)
    async with router_rig() as rig, sdk(rig) as client:
        batch = await client.messages.batches.create(requests=[one("a"), one("b")])
        stopped = await client.messages.batches.cancel(batch.id)
        assert stopped.processing_status == "canceling"
        go.set()
        assert (await ended(client, batch.id)).request_counts.canceled == 2
        results = [found async for found in await client.messages.batches.results(batch.id)]
        assert [found.result.type for found in results] == ["canceled", "canceled"]


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "requests"),
        ([one("a"), one("a")], r"requests\[1\].custom_id"),
        ([one("a", stream=True)], r"requests\[0\].params.stream"),
        ([one("a", background=True)], r"requests\[0\].params.background"),
        ([one("a"), one("b", model=5)], r"requests\[1\].params.model"),
        ([one("a b")], r"requests\[0\].custom_id"),
        ([one("a"), one("b", junk=2**70)], r"requests\[1\].params"),
        ([one("x" * 65)], r"requests\[0\].custom_id"),
        ([{"custom_id": "a"}], r"requests\[0\].params"),
    ],
)
async def test_what_is_refused(requests: Any, message: str) -> None:
    async with router_rig() as rig, sdk(rig) as client:
        with pytest.raises(anthropic.BadRequestError, match=message):
            await client.messages.batches.create(requests=json.loads(json.dumps(requests)))
        assert [found async for found in client.messages.batches.list()] == []


async def test_its_requests_count_to_the_files_of_their_key(tmp_path: Path) -> None:
    spec = FilesSpec(str(tmp_path / "files"), 10_000, 6_000, 100_000)
    async with router_rig(files=spec, api_keys=KEYS) as rig, sdk(rig) as client:
        first = await client.messages.batches.create(requests=[one("a")])
        with pytest.raises(anthropic.APIStatusError, match="max_key_bytes") as refused:
            await client.messages.batches.create(requests=[one("b")])
        assert refused.value.status_code == 413
        await ended(client, first.id)
        assert len(list(Path(spec.folder).iterdir())) == 1, "nothing is left of what was refused"
        async with sdk(rig, OTHER) as other:
            await other.messages.batches.create(requests=[one("c")])
