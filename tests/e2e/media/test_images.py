"""Images through the whole of lmx, in the forms that clients send: the official SDKs, by URL, as a
data URL and in base64. The model is a small real one that knows colours."""

import asyncio
import base64
import io
import json
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest
from openai import OpenAI
from PIL import Image

from tests.support.clients.client_packages import run_python
from tests.support.clients.terminal import reading
from tests.support.faults.hostile_server import HostileServer, answer, hostile_server, redirect
from tests.support.rigs.rig import Rig, serving_too

pytestmark = [pytest.mark.engine, pytest.mark.long]

COLOURS = {"red": (255, 0, 0), "blue": (0, 0, 255), "green": (0, 200, 0)}
WHAT = {"type": "text", "text": "What is in the image?"}
ENOUGH_TOKENS = 8
"""It begins with what it sees: "The image shows a small red square"."""

PATH = "messages[0].content[0].image_url"


def picture(colour: str, form: str = "PNG") -> bytes:
    """A square of a colour on black."""
    image = Image.new("RGB", (112, 112))
    image.paste(COLOURS[colour], (28, 28, 84, 84))
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def image(colour: str) -> dict[str, Any]:
    url = f"data:image/png;base64,{in_base64(picture(colour))}"
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.fixture(scope="module")
def seeing(server: Rig, shapes_dir: Path) -> Iterator[Rig]:
    shapes = {"id": "shapes", "source": str(shapes_dir), "temperature": 0}
    with serving_too(server, shapes) as lmx:
        lmx.wait_state("shapes", "ready", deadline_s=300)
        yield lmx


@pytest.fixture(scope="module")
def pictures() -> Iterator[HostileServer]:
    """Another server that has pictures, in a thread of its own."""
    ready: Future[HostileServer] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with hostile_server() as server:
            ready.set_result(server)
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    yield ready.result(10)
    loop.call_soon_threadsafe(stop.set)
    thread.join(90)
    loop.close()


def asked(lmx: Rig, *parts: Any, **fields: Any) -> Any:
    with OpenAI(base_url=lmx.url, api_key="none", max_retries=0, timeout=300) as client:
        settings: dict[str, Any] = {
            "model": "shapes", "temperature": 0, "max_tokens": ENOUGH_TOKENS,
            "messages": [{"role": "user", "content": list(parts)}], **fields,
        }  # fmt: skip
        made = client.chat.completions.create(**settings)
        return list(made) if fields.get("stream") else made


def test_every_form_of_the_same_image_is_the_same_image(
    seeing: Rig, pictures: HostileServer
) -> None:
    red = picture("red")
    pictures.answers["/red"] = answer(red, "Content-Type: text/plain")
    pictures.answers["/to"] = redirect("/red")
    with OpenAI(base_url=seeing.url, api_key="none", max_retries=0, timeout=300) as client:
        file_id = client.files.create(file=("a.txt", red), purpose="vision").id
    texts = set()
    for reference in (
        {"url": f"data:image/png;base64,{in_base64(red)}"},
        {"url": f"{pictures.url}/red"},
        f"{pictures.url}/to",
        {"url": in_base64(red), "detail": "high"},
        {"url": in_base64(picture("red", "BMP"))},
        {"file_id": file_id},
    ):
        whole = asked(seeing, {"type": "image_url", "image_url": reference}, WHAT)
        texts.add(whole.choices[0].message.content)
        details = whole.usage.prompt_tokens_details.model_dump()
        assert 0 < details["image_tokens"] < whole.usage.prompt_tokens
    assert details["cached_tokens"] > 0, "the file is what was read before"
    (text,) = texts
    assert "red" in text
    for colour in ("blue", "green"):
        assert colour in asked(seeing, image(colour), WHAT).choices[0].message.content


def test_streamed_is_whole_and_anthropic_s_form_is_the_same(seeing: Rig) -> None:
    whole = asked(seeing, image("blue"), WHAT).choices[0].message.content
    chunks = asked(seeing, image("blue"), WHAT, stream=True)
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == whole
    with OpenAI(base_url=seeing.url, api_key="none", max_retries=0, timeout=300) as openai_client:
        file_id = openai_client.files.create(file=picture("blue"), purpose="user_data").id
    inline: Any = {"type": "base64", "media_type": "image/png", "data": in_base64(picture("blue"))}
    with anthropic.Anthropic(
        base_url=seeing.url.removesuffix("/v1"), api_key="none", max_retries=0
    ) as client:
        for source in (inline, {"type": "file", "file_id": file_id}):
            content: Any = [{"type": "image", "source": source}, WHAT]
            said: Any = client.beta.messages.create(
                model="shapes", max_tokens=ENOUGH_TOKENS, extra_body={"temperature": 0},
                messages=[{"role": "user", "content": content}], betas=["files-api-2025-04-14"],
            )  # fmt: skip
            assert said.content[0].text == whole


def test_what_counts_tokens_counts_what_the_usage_says(seeing: Rig) -> None:
    red = in_base64(picture("red"))
    turn = {"role": "user", "content": [image("red"), WHAT]}
    source = {"type": "base64", "media_type": "image/png", "data": red}
    block = {"role": "user", "content": [{"type": "image", "source": source}, WHAT]}
    parts = [
        {"type": "input_image", "image_url": f"data:image/png;base64,{red}"},
        {"type": "input_text", "text": WHAT["text"]},
    ]
    origin = seeing.url.removesuffix("/v1")

    def posted(path: str, **body: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{origin}{path}",
            json.dumps({"model": "shapes", **body}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            reported: dict[str, Any] = json.load(response)
        return reported

    used = posted("/v1/chat/completions", messages=[turn], max_tokens=1)["usage"]["prompt_tokens"]
    assert posted("/tokenize", messages=[turn])["count"] == used > 16
    reported = posted("/v1/messages", messages=[block], max_tokens=1)["usage"]
    used = reported["input_tokens"] + reported["cache_read_input_tokens"]
    assert posted("/v1/messages/count_tokens", messages=[block])["input_tokens"] == used
    asked = {"input": [{"role": "user", "content": parts}]}
    used = posted("/v1/responses", **asked, max_output_tokens=1)["usage"]["input_tokens"]
    assert posted("/v1/responses/input_tokens", **asked)["input_tokens"] == used
    none = posted("/tokenize", messages=[{"role": "user", "content": WHAT["text"]}])["count"]
    assert none < used


def test_the_terminal_s_chat_sends_a_file(seeing: Rig, tmp_path: Path) -> None:
    (tmp_path / "blue.png").write_bytes(picture("blue"))
    with reading(seeing, "chat", "shapes", terminal=True) as chat:
        chat.sees(">>> ")
        chat.type(f"/image {tmp_path}/blue.png\n")
        chat.sees(">>> ")
        chat.type(f"{WHAT['text']}\n")
        chat.sees("blue")
        chat.sees(">>> ")
        chat.type("\x04")
        assert chat.process.wait(90) == 0


def test_two_images_keep_their_places(seeing: Rig) -> None:
    what = {"type": "text", "text": "What is in the two images?"}
    for first, second in (("red", "blue"), ("blue", "red")):
        said = asked(seeing, image(first), image(second), what, max_tokens=24)
        text = said.choices[0].message.content
        assert 0 <= text.find(first) < text.find(second), text


BAD: dict[str, tuple[Any, int, str]] = {
    "half a picture": (picture("red")[:60], 400, "invalid_media"),
    "markup": (b"<svg/>", 400, "invalid_media"),
    "a path": ("/etc/passwd", 400, "invalid_media"),
    "a file": ("file:///etc/passwd", 400, "invalid_value"),
    "this machine": ("http://127.0.0.2/", 400, "media_not_fetched"),
    "a cloud's keys": ("http://169.254.169.254/", 400, "media_not_fetched"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_is_a_400_that_names_the_part(seeing: Rig, name: str) -> None:
    content, status, code = BAD[name]
    text = content if isinstance(content, str) else in_base64(content)
    with pytest.raises(openai.APIStatusError) as caught:
        asked(seeing, {"type": "image_url", "image_url": {"url": text}}, WHAT)
    assert (caught.value.status_code, caught.value.code) == (status, code)
    assert str(caught.value.param) == PATH


def test_a_model_of_text_alone_says_so_and_which_one_sees(seeing: Rig) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        asked(seeing, image("red"), WHAT, model="tiny")
    assert caught.value.param == PATH
    assert "takes images: shapes" in str(caught.value)
    assert asked(seeing, image("red"), WHAT, model="auto").model == "shapes"
    with urllib.request.urlopen(f"{seeing.url}/models") as response:
        reported = {one["id"]: one["modalities"] for one in json.load(response)["data"]}
    assert reported == {"shapes": ["text", "image"], "smollm2": ["text"], "tiny": ["text"]}


@pytest.mark.clients
def test_other_clients_forms_of_an_image(seeing: Rig, packages: Path) -> None:
    printed = run_python(
        packages, "image_clients.py", seeing.url, "none", "shapes", in_base64(picture("blue"))
    )
    for name, text in json.loads(printed.splitlines()[-1]).items():
        assert "blue" in text, name


def test_other_apis_forms_of_an_image(seeing: Rig) -> None:
    blue, found = in_base64(picture("blue")), {}
    origin = seeing.url.removesuffix("/v1")
    # Open WebUI's: the text first, and the image as a data URL without more.
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{blue}"}}
    found["Open WebUI"] = asked(seeing, WHAT, url).choices[0].message.content
    with OpenAI(base_url=seeing.url, api_key="none", max_retries=0, timeout=300) as client:
        parts: list[Any] = [
            {"type": "input_image", "image_url": f"data:image/png;base64,{blue}", "detail": "auto"},
            {"type": "input_text", "text": "What is in the image?"},
        ]
        made = client.responses.create(
            model="shapes",
            temperature=0,
            max_output_tokens=ENOUGH_TOKENS,
            input=[{"role": "user", "content": parts}],
        )
        found["responses"] = made.output_text
    turn = {"role": "user", "content": "What is in the image?", "images": [blue]}
    reported = ollama.Client(host=origin, timeout=300).chat(
        "shapes", [turn], options={"temperature": 0, "num_predict": ENOUGH_TOKENS}
    )
    found["ollama"] = reported.message.content
    for name, text in found.items():
        assert "blue" in text, name
