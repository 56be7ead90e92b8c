"""Uploaded files that requests name by their ids: the same bytes take the same way as inline."""

import asyncio
import base64
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anthropic
import openai
import psutil
import pytest
from anthropic.types.beta import BetaFileMetadata

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import Acquire, Denied
from lmx.protocol.messages.keys import ApiKey
from lmx.protocol.messages.snapshot import Route
from lmx.protocol.messages.specs import MediaLimits
from lmx.protocol.messages.tasks import Tokenized
from lmx.protocol.states import MediaKind
from lmx.router.peers.named_files import names_a_file
from lmx.router.services import SERVICES
from tests.support.fakes.fake_peers import cold, ready
from tests.support.rigs.router_rig import INSTANCE, MODEL, Rig, router_rig

ONE, OTHER = "sk-lmx-one-of-this-test", "sk-lmx-other-of-this-test"
KEYS = (ApiKey.of_secret(ONE, "one"), ApiKey.of_secret(OTHER, "other"))
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4
WAV = b"RIFF....WAVEfmt " + bytes(2000)
MP4 = b"\0\0\0\x10ftypisom" + bytes(70)
NOTES = "# Notes\n\nGrüße\n".encode()
LIMITS = MediaLimits(max_item_bytes=100_000, max_items=4, max_held_bytes=250_000)
TEXT: Final = {"type": "text", "text": "What is it?"}


def b64(content: bytes, kind: str = "") -> str:
    text = base64.b64encode(content).decode()
    return f"data:{kind};base64,{text}" if kind else text


def sdk(rig: Rig, key: str = ONE) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key=key, max_retries=0, timeout=90)


def claude(rig: Rig, key: str = ONE) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=rig.url, api_key=key, max_retries=0, timeout=90)


async def upload(client: openai.AsyncOpenAI, content: bytes, name: str, purpose: Any) -> str:
    return (await client.files.create(file=(name, content), purpose=purpose)).id


async def chat(client: openai.AsyncOpenAI, *parts: Any, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": [TEXT, *parts]}]
    return await client.chat.completions.create(model=MODEL, messages=messages, **fields)


async def respond(client: openai.AsyncOpenAI, *parts: Any, **fields: Any) -> Any:
    items: Any = [{"role": "user", "content": [{"type": "input_text", "text": "What?"}, *parts]}]
    return await client.responses.create(model=MODEL, input=items, **fields)


def last(rig: Rig) -> tuple[Any, Any, Any]:
    """What the worker got last, without the paths that errors name."""
    stream = rig.worker.streams[-1]
    media = [replace(item, param="") for item in stream.request.media]
    return stream.request.messages, media, stream.blobs


async def test_a_file_is_what_its_bytes_are_inline() -> None:
    async with router_rig(api_keys=KEYS, media=LIMITS) as rig, sdk(rig) as client:
        # What it is shows in its bytes: names and purposes say nothing.
        png = await upload(client, PNG, "notes.md", "vision")
        wav = await upload(client, WAV, "a.png", "assistants")
        mp4 = await upload(client, MP4, "clip", "user_data")
        notes = await upload(client, NOTES, "notes.md", "user_data")
        image = {"type": "image_url", "image_url": {"url": b64(PNG)}}
        sound = {"type": "input_audio", "input_audio": {"data": b64(WAV), "format": "wav"}}
        video = {"type": "video_url", "video_url": {"url": b64(MP4)}}
        text = {"type": "file", "file": {"file_data": b64(NOTES), "filename": "notes.md"}}
        for inline, *named in (
            (image, {"type": "file", "file": {"file_id": png}},
             {"type": "image_url", "image_url": {"file_id": png}}),
            (sound, {"type": "file", "file": {"file_id": wav}},
             {"type": "input_audio", "input_audio": {"file_id": wav, "format": "wav"}}),
            (video, {"type": "file", "file": {"file_id": mp4}},
             {"type": "video_url", "video_url": {"file_id": mp4}}),
            (text, {"type": "file", "file": {"file_id": notes}}),
        ):  # fmt: skip
            await chat(client, inline)
            expected = last(rig)
            for part in named:
                await chat(client, part)
                assert last(rig) == expected, part
        # Several keep their places.
        await chat(
            client, *({"type": "file", "file": {"file_id": one}} for one in (wav, notes, png))
        )
        messages, media, blobs = last(rig)
        assert blobs == (WAV, PNG)
        assert [item.kind for item in media] == [MediaKind.AUDIO, MediaKind.IMAGE]
        assert messages[0]["content"] == [
            TEXT, {"type": "audio", "media": 0},
            {"type": "text", "text": f"<document>\n<title>notes.md</title>\n{NOTES.decode()}\n"
                                     "</document>"},
            {"type": "image", "media": 1},
        ]  # fmt: skip
        assert rig.router._runner.app[SERVICES].media.held_bytes == 0


async def test_responses_and_what_is_kept_of_them() -> None:
    async with router_rig(api_keys=KEYS, media=LIMITS) as rig, sdk(rig) as client:
        png = await upload(client, PNG, "a.png", "vision")
        notes = await upload(client, NOTES, "notes.md", "user_data")
        for inline, named in (
            ({"type": "input_image", "image_url": b64(PNG, "image/png"), "detail": "low"},
             {"type": "input_image", "file_id": png, "detail": "low"}),
            ({"type": "input_file", "file_data": b64(NOTES), "filename": "notes.md"},
             {"type": "input_file", "file_id": notes}),
        ):  # fmt: skip
            await respond(client, inline)
            expected = last(rig)
            kept = await respond(client, named)
            assert last(rig) == expected, named
        both = await respond(
            client,
            {"type": "input_image", "file_id": png},
            {"type": "input_file", "file_id": notes},
        )
        rig.worker.task_script = lambda task: [Tokenized(task.stream_id, (1, 2, 3), 256)]
        items: Any = [{"role": "user", "content": [{"type": "input_image", "file_id": png}]}]
        assert (
            await client.responses.input_tokens.count(model=MODEL, input=items)
        ).input_tokens == 3
        assert rig.worker.task_blobs == [(PNG,)]

        # What is kept names the file, and is answered for as long as there is one.
        listed = (await client.responses.input_items.list(both.id)).model_dump()["data"][0]
        assert [part.get("file_id") for part in listed["content"]][1:] == [png, notes]
        await client.responses.create(model=MODEL, input="And?", previous_response_id=both.id)
        assert last(rig)[2] == (PNG,)
        await client.files.delete(png)
        with pytest.raises(openai.NotFoundError, match=f"No such File object: {png}") as refused:
            await client.responses.create(model=MODEL, input="And?", previous_response_id=both.id)
        assert refused.value.param == "previous_response_id.content[1].file_id"
        await client.responses.create(model=MODEL, input="And?", previous_response_id=kept.id)


async def test_anthropic_s_blocks() -> None:
    async with (
        router_rig(api_keys=KEYS, media=LIMITS) as rig,
        sdk(rig) as client,
        claude(rig) as to,
    ):
        png = await upload(client, PNG, "a.png", "vision")
        notes = await upload(client, NOTES, "notes.md", "user_data")

        async def ask(*blocks: Any) -> None:
            await to.beta.messages.create(
                model=MODEL, max_tokens=9, messages=[{"role": "user", "content": blocks}],
                betas=["files-api-2025-04-14"],
            )  # fmt: skip

        inline: Any = {"type": "base64", "media_type": "image/png", "data": b64(PNG)}
        plain: Any = {"type": "text", "media_type": "text/plain", "data": NOTES.decode()}
        for kind, source, file_id in (("image", inline, png), ("document", plain, notes)):
            named = {"type": "file", "file_id": file_id}
            more = {"title": "T", "context": "C"} if kind == "document" else {}
            for wrap in (list, in_a_result):
                await ask(TEXT, *wrap([{"type": kind, "source": source, **more}]))
                expected = last(rig)
                await ask(TEXT, *wrap([{"type": kind, "source": named, **more}]))
                assert last(rig) == expected
        with pytest.raises(anthropic.NotFoundError) as refused:
            await ask({"type": "image", "source": {"type": "file", "file_id": "file-" + "0" * 24}})
        assert refused.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]


async def test_anthropic_s_own_calls_for_files() -> None:
    async with (
        router_rig(api_keys=KEYS, media=LIMITS) as rig, sdk(rig) as client, claude(rig) as to,
        claude(rig, OTHER) as stranger,
    ):  # fmt: skip
        raw = await to.beta.files.with_raw_response.upload(file=("../notes.md", NOTES))
        made = BetaFileMetadata.model_validate_json(await raw.text())
        assert not made.model_extra
        assert (made.filename, made.mime_type, made.size_bytes) == ("notes.md", "text/markdown", 17)
        assert made.downloadable and made.expires_at is None
        # Python takes a name like this one for a URL with a type of its own, or for a wrong one.
        odd = await upload(client, b"z", "data:text/plain,//[a.png", "user_data")
        shown = await to.beta.files.retrieve_metadata(odd)
        assert (shown.filename, shown.mime_type) == ("data:text/plain,//[a.png", "image/png")
        await to.beta.files.delete(odd)
        hour = await to.beta.files.upload(file=("a.bin", b"x"), expires_in_seconds=3600)
        assert hour.expires_at is not None
        assert (hour.expires_at - hour.created_at).total_seconds() == 3600
        # OpenAI's clients have the same files.
        other = await upload(client, b"y", "b.txt", "user_data")
        assert (await client.files.retrieve(made.id)).purpose == "user_data"
        assert [one.id async for one in to.beta.files.list(limit=1)] == [other, hour.id, made.id]
        chosen = [one.id async for one in to.beta.files.list(ids=[made.id, other, "file-none"])]
        assert chosen == [made.id, other]
        assert await to.beta.files.retrieve_metadata(made.id) == made
        assert await (await to.beta.files.download(made.id)).read() == NOTES
        said = await to.beta.messages.create(
            model=MODEL, max_tokens=9, betas=["files-api-2025-04-14"], messages=[{
                "role": "user",
                "content": [{"type": "document", "source": {"type": "file", "file_id": made.id}}],
            }],
        )  # fmt: skip
        assert said.role == "assistant"
        assert [one async for one in stranger.beta.files.list()] == []
        with pytest.raises(anthropic.NotFoundError):
            await stranger.beta.files.retrieve_metadata(made.id)
        deleted = await to.beta.files.delete(made.id)
        assert (deleted.id, deleted.type) == (made.id, "file_deleted")
        for refused, ask in (
            (anthropic.NotFoundError, to.beta.files.download(made.id)),
            (anthropic.BadRequestError, to.beta.files.upload(file=b"x", expires_in_seconds=5)),
            (anthropic.BadRequestError, to.get("/v1/files?page=page_x", cast_to=object)),
        ):
            with pytest.raises(refused):
                await ask


def in_a_result(blocks: Sequence[Any]) -> list[Any]:
    return [{"type": "tool_result", "tool_use_id": "toolu_1", "content": blocks}]


async def test_what_is_not_to_be_had(tmp_path: Path) -> None:
    async with (
        router_rig(api_keys=KEYS, media=LIMITS, body_limit_bytes=10_000) as rig,
        sdk(rig) as client,
        sdk(rig, OTHER) as stranger,
    ):
        png = await upload(client, PNG, "a.png", "vision")
        gone = await upload(client, PNG, "a.png", "vision")
        lines = await upload(client, NOTES, "a.jsonl", "batch")
        pdf = await upload(client, b"%PDF-1.7 ...", "a.txt", "user_data")
        large = await upload(client, PNG + bytes(100_000), "a.png", "user_data")
        long = await upload(client, b"a" * 10_001, "a.txt", "user_data")
        await client.files.delete(gone)
        strange = "file-../../../etc/passwd"
        path = "messages[0].content[1].file.file_id"
        for who, file_id, status, words in (
            (stranger, png, 404, f"No such File object: {png}"),
            (client, gone, 404, f"No such File object: {gone}"),
            (client, strange, 404, f"No such File object: {strange}"),
            (client, lines, 400, f"`{path}` names a file with the purpose 'batch'"),
            (client, pdf, 400, f"`{path}` is a PDF"),
            (client, large, 413, f"`{path}` has more than 100000 bytes"),
            (
                client,
                long,
                413,
                f"`{path}` is too large: the texts in files of a request may have 10000 bytes",
            ),
        ):
            with pytest.raises(openai.APIStatusError, match=re.escape(words)) as refused:
                await chat(who, {"type": "file", "file": {"file_id": file_id}})
            assert (refused.value.status_code, refused.value.param) == (status, path)
        for part, words in (
            ({"type": "image_url", "image_url": {"file_id": pdf}}, r"image_url.file_id` is a PDF"),
            ({"type": "file", "file": {}}, "needs `file_id` or `file_data`"),
            (
                {"type": "image_url", "image_url": {"file_id": png, "url": "x"}},
                "`url` and `file_id`",
            ),
            ({"type": "file", "file": {"file_id": png, "file_data": "x"}}, "send one of the two"),
        ):
            with pytest.raises(openai.BadRequestError, match=words):
                await chat(client, part)
        many = [{"type": "file", "file": {"file_id": png}}] * 5
        with pytest.raises(openai.BadRequestError, match=r"content\[5\].* is one too many"):
            await chat(client, *many)
        # The bytes have gone without their record.
        (Path(rig.spec.files.folder) / png).unlink()
        with pytest.raises(openai.NotFoundError, match="No such File object"):
            await chat(client, {"type": "file", "file": {"file_id": png}})
        assert not rig.worker.streams


async def test_a_request_keeps_its_files_though_they_are_deleted() -> None:
    """Also those that a second model is asked about."""
    async with router_rig(media=LIMITS) as rig, sdk(rig) as client:
        png = await upload(client, PNG, "a.png", "vision")
        notes = await upload(client, NOTES, "a.txt", "user_data")

        def acquired(_: Acquire) -> Denied:
            for one in (png, notes):
                (Path(rig.spec.files.folder) / one).unlink()
            return Denied(ErrorCode.MODEL_LOAD_FAILED, "bad weights")

        rig.supervisor.acquire_reply = acquired
        models = (cold("first"), ready(MODEL, INSTANCE))
        await rig.publish(*models, routes=(Route("both", ("first", MODEL)),))
        parts: Any = [{"type": "file", "file": {"file_id": one}} for one in (png, notes)]
        made = await client.chat.completions.create(
            model="both", messages=[{"role": "user", "content": parts}]
        )
        assert made.model == MODEL
        (stream,) = rig.worker.streams
        assert stream.blobs == (PNG,)
        assert "Grüße" in str(stream.request.messages)
        # It holds them no longer.
        open_files = [one.path for one in psutil.Process().open_files()]
        assert not [path for path in open_files if path.startswith(f"{rig.spec.files.folder}/")]


async def test_the_lines_of_a_batch_name_files_of_its_key() -> None:
    async with (
        router_rig(api_keys=KEYS, media=LIMITS) as rig,
        sdk(rig) as client,
        sdk(rig, OTHER) as stranger,
    ):
        own = await upload(client, PNG, "a.png", "vision")
        foreign = await upload(stranger, PNG, "a.png", "vision")
        lines = [
            {"custom_id": one, "method": "POST", "url": "/v1/chat/completions", "body": {
                "model": MODEL, "messages": [
                    {"role": "user", "content": [{"type": "file", "file": {"file_id": one}}]}
                ],
            }} for one in (own, foreign)
        ]  # fmt: skip
        content = b"".join(json.dumps(one).encode() + b"\n" for one in lines)
        batch = await client.batches.create(
            input_file_id=await upload(client, content, "in.jsonl", "batch"),
            endpoint="/v1/chat/completions", completion_window="24h",
        )  # fmt: skip
        async with asyncio.timeout(90):
            while (batch := await client.batches.retrieve(batch.id)).status != "completed":
                await asyncio.sleep(0.05)
        assert batch.error_file_id is not None
        error = json.loads((await client.files.content(batch.error_file_id)).content)
        assert (error["custom_id"], error["response"]["status_code"]) == (foreign, 404)
        assert f"No such File object: {foreign}" in json.dumps(error)
        (stream,) = rig.worker.streams
        assert stream.blobs == (PNG,)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"messages": [{"content": [{"type": "file", "file": {"file_id": "x"}}]}]}, True),
        ({"messages": [{"content": [{"type": "image_url", "image_url": {"file_id": "x"}}]}]}, True),
        ({"messages": [{"content": in_a_result([{"source": {"file_id": "x"}}])}]}, True),
        ({"input": [{"content": [{"type": "input_image", "file_id": "x"}]}]}, True),
        ({"input": [{"output": [{"type": "input_file", "file_id": "x"}]}]}, True),
        ({"input": [{"content": [{"type": "input_image", "file_id": None}]}]}, False),
        ({"messages": [{"content": [{"type": "tool_use", "input": {"file_id": "x"}}]}]}, False),
        ({"input": "file_id", "messages": [7, {"content": 5}, {"content": [[], "x"]}]}, False),
        ({"messages": [{"content": [{"type": [], "file_id": 5}]}]}, True),
    ],
)
def test_whether_a_file_is_named(body: dict[str, Any], found: bool) -> None:
    assert names_a_file(body) is found
