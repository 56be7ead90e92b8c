"""``keep_alive`` and ``ttl`` in requests: forms, faults, and what a worker is told."""

from typing import Any

import pytest

from lmx.protocol.errors import RequestError
from lmx.router.schema.requests.chat import parse_chat
from lmx.router.schema.requests.completions import parse_completion
from lmx.router.schema.requests.tasks import parse_embedding, parse_rerank
from tests.support.rigs.router_rig import chat_body


def reported(fields: dict[str, Any]) -> list[float | None]:
    """What each kind of request passes on."""
    _, chat, _ = parse_chat(chat_body(**fields))
    _, completions = parse_completion({"prompt": ["a", "b"], **fields})
    _, embed = parse_embedding({"input": "a", **fields})
    _, rerank = parse_rerank({"query": "a", "documents": ["b"], **fields})
    of_prompts = [prompt.keep_alive_s for prompt in completions]
    return [chat.keep_alive_s, *of_prompts, embed.keep_alive_s, rerank.keep_alive_s]


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, None),
        ({"keep_alive": None, "ttl": None}, None),
        ({"keep_alive": 0}, 0.0),
        ({"keep_alive": "0"}, 0.0),
        ({"keep_alive": 90}, 90.0),
        ({"keep_alive": 1.5}, 1.5),
        ({"keep_alive": "300"}, 300.0),
        ({"keep_alive": "5m"}, 300.0),
        ({"keep_alive": "1h30m"}, 5400.0),
        ({"keep_alive": "250ms"}, 0.25),
        ({"keep_alive": -1}, -1.0),
        ({"keep_alive": "-1"}, -1.0),
        ({"keep_alive": "-5m"}, -1.0),
        ({"keep_alive": "-1h30m"}, -1.0),
        ({"keep_alive": "forever"}, -1.0),
        ({"ttl": 0}, 0.0),
        ({"ttl": 60}, 60.0),
        ({"ttl": 60, "keep_alive": "1m"}, 60.0),
    ],
)
def test_what_a_worker_receives(fields: dict[str, Any], seconds: float | None) -> None:
    assert reported(fields) == [seconds] * 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"keep_alive": "-soon"}, "keep_alive"),
        ({"keep_alive": "-"}, "keep_alive"),
        # Megabytes of it, too, at once: 100 times as many digits took 10,000 times as long.
        ({"keep_alive": "1" * 1_000_000 + "x"}, "keep_alive"),
        ({"keep_alive": ""}, "keep_alive"),
        ({"keep_alive": "5 minutes"}, "keep_alive"),
        ({"keep_alive": True}, "keep_alive"),
        ({"keep_alive": ["5m"]}, "keep_alive"),
        ({"keep_alive": "9" * 400 + "h"}, "keep_alive"),
        ({"ttl": 60, "keep_alive": "2m"}, "ttl"),
    ],
)
def test_faults_name_their_field(fields: dict[str, Any], param: str) -> None:
    for parse, rest in (
        (parse_chat, chat_body()),
        (parse_completion, {"prompt": "a"}),
        (parse_embedding, {"input": "a"}),
        (parse_rerank, {"query": "a", "documents": ["b"]}),
    ):
        with pytest.raises(RequestError) as caught:
            parse({**rest, **fields})
        assert caught.value.param == param
        assert len(caught.value.message) < 300


def test_the_error_for_a_bad_duration_says_what_is_one() -> None:
    with pytest.raises(RequestError, match=r'"5m".*got \'soon\''):
        parse_chat(chat_body(keep_alive="soon"))
