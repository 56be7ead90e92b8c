"""Files of this machine in requests that a peer answers: their content goes along."""

from typing import Any, Final

import aiohttp

from lmx.protocol.messages.specs import MediaLimits
from lmx.protocol.states import MediaKind
from tests.support.fakes.fake_peers import ready
from tests.support.rigs.federation_rig import asked, federation, peer_key
from tests.support.rigs.router_rig import INSTANCE, Rig

REMOTE = "org/remote-model"
PNG: Final = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4
WAV: Final = b"RIFF....WAVEfmt " + bytes(2000)
MP4: Final = b"\0\0\0\x10ftypisom" + bytes(70)
NOTES: Final = "# Notes\n\nGr\u00fc\u00dfe\n".encode()
LIMITS: Final = MediaLimits(max_item_bytes=100_000, max_items=4, max_held_bytes=250_000)


async def upload(rig: Rig, content: bytes, name: str, purpose: str = "user_data") -> str:
    form = aiohttp.FormData()
    form.add_field("purpose", purpose)
    form.add_field("file", content, filename=name)
    async with rig.http.post(f"{rig.url}/v1/files", data=form) as response:
        return str((await response.json())["id"])


async def with_remote(b: Rig, a: Rig) -> None:
    await a.publish()
    await b.publish(ready(REMOTE, INSTANCE, created_s=1, media=tuple(MediaKind)))
    await asked(a)


def of_user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


async def test_the_content_goes_along_in_the_form_of_every_api() -> None:
    async with federation("ab", media=LIMITS) as (a, b):
        await with_remote(b, a)
        png = await upload(a, PNG, "a.png", "vision")
        wav, mp4 = await upload(a, WAV, "a.wav"), await upload(a, MP4, "a.mp4")
        notes = await upload(a, NOTES, "notes.md")
        chat, responses, messages = "/v1/chat/completions", "/v1/responses", "/v1/messages"
        cases: list[tuple[str, dict[str, Any], bytes]] = [
            (chat, {"type": "file", "file": {"file_id": file_id}}, content)
            for file_id, content in ((png, PNG), (wav, WAV), (mp4, MP4), (notes, NOTES))
        ]
        cases += [
            (chat, {"type": "image_url", "image_url": {"file_id": png, "detail": "low"}}, PNG),
            (chat, {"type": "input_audio", "input_audio": {"file_id": wav}}, WAV),
            (chat, {"type": "video", "video": {"file_id": mp4}}, MP4),
            (responses, {"type": "input_image", "file_id": png}, PNG),
            (responses, {"type": "input_file", "file_id": notes}, NOTES),
            (messages, {"type": "image", "source": {"type": "file", "file_id": png}}, PNG),
            (messages, {"type": "document", "title": "notes.md",
                        "source": {"type": "file", "file_id": notes}}, NOTES),
            (messages, {"type": "document", "source": {"type": "content", "content": [
                {"type": "image", "source": {"type": "file", "file_id": png}}]}}, PNG),
        ]  # fmt: skip
        for path, part, content in cases:
            field = "input" if path == responses else "messages"
            rest = {"max_tokens": 9} if path == messages else {"store": False}
            body = {"model": REMOTE, field: of_user(part), **rest}
            async with a.http.post(f"{a.url}{path}", json=body) as response:
                assert response.status == 200, (part, await response.text())
                assert response.headers["X-Lmx-Machine"] == "b"
            stream = b.worker.streams[-1]
            if content is NOTES:
                said = str((stream.request.messages or ())[-1]["content"])
                assert NOTES.decode() in said.replace("\\n", "\n")
                assert "<title>notes.md</title>" in said, part
            else:
                assert stream.blobs == (content,), part
        assert not a.worker.streams
        assert not a.router.peers.federation._contents.held_bytes  # type: ignore[union-attr]


async def test_a_file_that_can_not_go_along_is_refused_in_words() -> None:
    async with federation("ab", media=LIMITS, body_limit_bytes=50_000) as (a, b):
        await with_remote(b, a)
        large = await upload(a, PNG * 40, "a.png")
        small = await upload(a, PNG, "a.png")
        batch = await upload(a, b"{}", "in.jsonl", "batch")
        image = {"type": "image_url", "image_url": {"file_id": small}}
        param = "messages.0.content.0.image_url.file_id"
        cases: list[tuple[list[dict[str, Any]], str, str]] = [
            ([_image(large)], param, "server.body_limit_bytes"),
            ([_image(batch)], param, "purpose"),
            ([_image("file-" + "0" * 24)], param, "No such File"),
            ([image] * 5, "messages.0.content.4.image_url.file_id", "media.max_items"),
            ([{"type": "odd", "odd": {"file_id": small}}],
             "messages.0.content.0.odd.file_id", "on the machine b"),
        ]  # fmt: skip
        for parts, where, words in cases:
            status, found = await a.chat_json(model=REMOTE, messages=of_user(*parts))
            assert status in (400, 404, 413), found
            assert (found["error"]["param"], words in found["error"]["message"]) == (where, True)
        # A file is its key's alone, and a peer's key opens none of them.
        headers = {"Authorization": f"Bearer {peer_key('a')}"}
        body = {"model": REMOTE, "messages": of_user(image)}
        url = f"{a.url}/v1/chat/completions"
        async with a.http.post(url, json=body, headers=headers) as response:
            assert response.status == 404
        assert not b.worker.streams


def _image(file_id: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"file_id": file_id}}
