"""Every form in which clients send images, sounds and videos, as a worker and the reader of media
get it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import RequestError
from lmx.protocol.messages.data import Generate
from lmx.protocol.states import MediaKind
from lmx.protocol.wire.codec import decode, encode
from lmx.router.media.source import MediaSource, NamedFile, PartSource
from lmx.router.schema.requests.anthropic.messages import parse_count, parse_messages
from lmx.router.schema.requests.chat import parse_chat
from lmx.router.schema.requests.tasks import parse_tokenize

IMAGE, AUDIO, VIDEO = MediaKind.IMAGE, MediaKind.AUDIO, MediaKind.VIDEO
URL = "https://example.com/a"
DATA = "data:image/png;base64,AAAA"
BARE = "AAAA"
TEXT = {"type": "text", "text": "What is it?"}


def parsed(*parts: Any, **fields: Any) -> tuple[Any, tuple[Any, ...]]:
    _, generate, sources = parse_chat(
        {"messages": [{"role": "user", "content": list(parts)}], **fields}
    )
    assert decode(encode(generate)).message == generate
    assert generate.messages is not None
    return generate.messages[0]["content"], sources


FORMS: list[tuple[dict[str, Any], MediaKind, str]] = [
    *(
        ({"type": name, name: content}, kind, text)
        for name, kind in (
            ("image_url", IMAGE), ("input_audio", AUDIO), ("audio_url", AUDIO), ("audio", AUDIO),
            ("video_url", VIDEO), ("video", VIDEO), ("input_video", VIDEO),
        )
        for text in (URL, DATA, BARE)
        for content in (text, {"url": text}, {"data": text}, {"data": text, "format": "wav"},
                        {"url": text, "format": None, "uuid": "x"})
    ),
]  # fmt: skip


@pytest.mark.parametrize(("part", "kind", "text"), FORMS)
def test_a_form_is_taken(part: dict[str, Any], kind: MediaKind, text: str) -> None:
    content, (source,) = parsed(TEXT, part)
    assert content == [TEXT, {"type": kind.value, "media": 0}]
    assert (source.kind, source.text) == (kind, text)
    assert source.param == f"messages[0].content[1].{part['type']}"
    assert (source.fps, source.use_audio_in_video) == (1.0 if kind is VIDEO else None, True)


def test_parts_keep_their_places() -> None:
    content, sources = parsed(
        {"type": "image_url", "image_url": "one"}, TEXT, TEXT,
        {"type": "audio", "audio": "two"}, {"type": "image_url", "image_url": {"url": "three"}},
        {"type": "text", "text": "end"},
    )  # fmt: skip
    assert content == [
        {"type": "image", "media": 0},
        {"type": "text", "text": "What is it?\nWhat is it?"},
        {"type": "audio", "media": 1},
        {"type": "image", "media": 2},
        {"type": "text", "text": "end"},
    ]
    assert [source.text for source in sources] == ["one", "two", "three"]
    assert [source.param for source in sources] == [
        "messages[0].content[0].image_url",
        "messages[0].content[3].audio",
        "messages[0].content[4].image_url",
    ]


def test_media_are_numbered_through_all_messages() -> None:
    image = {"type": "image_url", "image_url": BARE}
    messages = [
        {"role": "system", "content": [TEXT]},
        {"role": "user", "content": [image, TEXT, image]},
        {"role": "assistant", "content": "a cat"},
        {"role": "tool", "tool_call_id": "1", "content": [image]},
        {"role": "user", "content": [TEXT, image]},
    ]
    _, generate, sources = parse_chat({"messages": messages})
    made: Any = generate.messages
    assert [message["content"] for message in made] == [
        "What is it?",
        [{"type": "image", "media": 0}, TEXT, {"type": "image", "media": 1}],
        "a cat",
        [{"type": "image", "media": 2}],
        [TEXT, {"type": "image", "media": 3}],
    ]
    assert [source.param for source in sources] == [
        "messages[1].content[0].image_url",
        "messages[1].content[2].image_url",
        "messages[3].content[0].image_url",
        "messages[4].content[1].image_url",
    ]


def test_text_alone_stays_what_it_was_on_the_wire() -> None:
    content, sources = parsed(TEXT, {"type": "text", "text": "Say it."})
    assert (content, sources) == ("What is it?\nSay it.", ())
    content, _ = parsed(TEXT, {"type": "refusal", "refusal": "No."})
    assert content == "What is it?\nNo."
    _, generate, _ = parse_chat({"messages": [{"role": "user", "content": [TEXT]}]})
    assert b"media" not in encode(generate)


def test_how_closely_an_image_is_seen() -> None:
    def seen(part: dict[str, Any]) -> tuple[Any, ...]:
        _, (source,) = parsed({"type": "image_url", **part})
        return source.detail, source.min_pixels, source.max_pixels

    assert seen({"image_url": URL}) == ("auto", None, None)
    assert seen({"image_url": {"url": URL, "detail": None}}) == ("auto", None, None)
    assert seen({"image_url": {"url": URL, "detail": "high"}}) == ("high", None, None)
    assert seen({"image_url": {"url": URL, "detail": "original"}}) == ("high", None, None)
    assert seen({"image_url": {"url": URL, "detail": "low"}}) == ("low", None, 512 * 512)
    assert seen({"image_url": URL, "min_pixels": 5, "max_pixels": 50}) == ("auto", 5, 50)
    low = {"url": URL, "detail": "low"}
    assert seen({"image_url": low, "max_pixels": 50}) == ("low", None, 50)
    assert seen({"image_url": low, "max_pixels": 10**6}) == ("low", None, 512 * 512)


def test_how_a_video_is_seen_and_heard() -> None:
    def seen(part: dict[str, Any], **fields: Any) -> tuple[Any, ...]:
        _, (source,) = parsed({"type": "video_url", "video_url": URL, **part}, **fields)
        return source.fps, source.max_frames, source.use_audio_in_video

    assert seen({}) == (1.0, None, True)
    assert seen({}, fps=None, use_audio_in_video=None) == (1.0, None, True)
    assert seen({}, fps=0.5, use_audio_in_video=False) == (0.5, None, False)
    assert seen({"fps": 4, "max_frames": 9, "max_pixels": 7}, fps=0.5) == (4.0, 9, True)


def test_an_answer_continues_with_text_alone() -> None:
    image = {"type": "image_url", "image_url": BARE}
    messages = [
        {"role": "user", "content": [TEXT]},
        {"role": "assistant", "content": [TEXT, image]},
    ]
    with pytest.raises(RequestError, match="no media") as caught:
        parse_chat({"messages": messages, "continue_final_message": True})
    assert caught.value.param == "messages[1]"


VIDEO_PART = {"type": "video_url", "video_url": {"url": URL}, "max_frames": 3}


@pytest.mark.parametrize(
    ("ask", "count", "part", "fields"),
    [
        (parse_chat, parse_tokenize, {"type": "image_url", "image_url": BARE}, {}),
        (parse_chat, parse_tokenize, VIDEO_PART, {"fps": 4, "use_audio_in_video": False}),
        (
            parse_messages, parse_count,
            {"type": "image", "source": {"type": "base64", "data": BARE}}, {},
        ),
    ],
)  # fmt: skip
def test_what_counts_tokens_counts_those_of_the_same_media(
    ask: Any, count: Any, part: Any, fields: dict[str, Any]
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": [part, TEXT]}], **fields}
    _, generate, sources = ask({**body, "max_tokens": 9})
    _, task, counted = count(body)
    assert counted == sources and len(sources) == 1
    assert task.messages == generate.messages


PART = st.sampled_from([
    TEXT,
    {"type": "image_url", "image_url": {"url": URL}},
    {"type": "audio", "audio": BARE},
    {"type": "video_url", "video_url": URL},
])  # fmt: skip
MESSAGE = st.lists(PART, min_size=1, max_size=4).map(
    lambda parts: {"role": "user", "content": parts}
)


@given(st.lists(MESSAGE, min_size=1, max_size=4))
def test_each_number_is_the_place_of_its_source(messages: list[dict[str, Any]]) -> None:
    _, generate, sources = parse_chat({"messages": messages})
    check_numbers(generate, sources)


def check_numbers(generate: Generate, sources: tuple[PartSource, ...]) -> None:
    assert generate.messages is not None
    found = [
        (part["type"], part["media"])
        for message in generate.messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] != "text"
    ]
    assert found == [
        ("file" if isinstance(source, NamedFile) else source.kind.value, index)
        for index, source in enumerate(sources)
    ]


# --- Anthropic's blocks


def image_block(name: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": name}}


def conversation(*turns: Any, **fields: Any) -> tuple[list[Any], tuple[PartSource, ...]]:
    _, generate, sources = parse_messages(
        {"model": "m", "max_tokens": 9, "messages": list(turns), **fields}
    )
    assert decode(encode(generate)).message == generate
    check_numbers(generate, sources)
    return [dict(message) for message in generate.messages or ()], sources


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def test_images_of_anthropic_s_form() -> None:
    by_url = {"type": "image", "source": {"type": "url", "url": URL}, "cache_control": {}}
    made, sources = conversation(user(image_block("one"), TEXT, by_url, TEXT, TEXT))
    assert made[0]["content"] == [
        {"type": "image", "media": 0}, TEXT, {"type": "image", "media": 1},
        {"type": "text", "text": "What is it?\nWhat is it?"},
    ]  # fmt: skip
    assert sources == (
        MediaSource(IMAGE, "messages[0].content[0].source.data", "one"),
        MediaSource(IMAGE, "messages[0].content[2].source.url", URL),
    )


def test_images_in_results_of_tools() -> None:
    call = {"role": "assistant", "content": [
        {"type": "tool_use", "id": "t1", "name": "look", "input": {}},
        {"type": "tool_use", "id": "t2", "name": "look", "input": {}},
    ]}  # fmt: skip
    shown = {"type": "tool_result", "tool_use_id": "t1", "content": [TEXT, image_block("one")]}
    failed = {"type": "tool_result", "tool_use_id": "t2", "is_error": True,
              "content": [image_block("two")]}  # fmt: skip
    made, sources = conversation(
        user(TEXT), call, user(image_block("three"), shown, failed, TEXT), user(image_block("4"))
    )
    assert [(message["role"], message["content"]) for message in made[2:]] == [
        ("tool", [TEXT, {"type": "image", "media": 0}]),
        ("tool", [{"type": "text", "text": "Error:"}, {"type": "image", "media": 1}]),
        ("user", [{"type": "image", "media": 2}, TEXT, {"type": "image", "media": 3}]),
    ]
    assert [source.param for source in sources] == [
        "messages[2].content[1].content[1].source.data",
        "messages[2].content[2].content[0].source.data",
        "messages[2].content[0].source.data",
        "messages[3].content[0].source.data",
    ]


def test_turns_of_one_speaker_are_one_with_their_images() -> None:
    made, _ = conversation(
        {"role": "user", "content": "Look:"}, user(image_block("one"), TEXT), user(TEXT)
    )
    assert made == [{"role": "user", "content": [
        {"type": "text", "text": "Look:"}, {"type": "image", "media": 0},
        {"type": "text", "text": "What is it?\nWhat is it?"},
    ]}]  # fmt: skip


@pytest.mark.parametrize(
    ("turn", "param"),
    [
        ({"role": "assistant", "content": [image_block("x")]}, "messages[1].content[0]"),
        (user({"type": "image", "source": {"type": "file", "file_id": ""}}),
         "messages[1].content[0].source.file_id"),
        (user({"type": "document", "source": {"type": "base64", "data": "JVBERi0="}}),
         "messages[1].content[0].source"),
        (user({"type": "image", "source": {"type": "base64", "data": ""}}),
         "messages[1].content[0].source.data"),
        (user({"type": "image"}), "messages[1].content[0].source"),
    ],
)  # fmt: skip
def test_images_that_are_refused(turn: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        conversation(user(TEXT), turn)
    assert caught.value.param == param
