"""Errors of answers as the official SDK shows them, and its retries: against models that act by a
script. Which error each status is, the test of its sister for Node has."""

import json
import threading
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.support.rigs.rig import Rig, wait_until

SENTENCE = "The quick brown fox jumps over the lazy dog."


def says(directive: Any) -> list[ChatCompletionMessageParam]:
    text = directive if isinstance(directive, str) else json.dumps(directive)
    return [{"role": "user", "content": text}]


def test_a_form_that_turns_out_to_be_too_much_is_the_request_s_fault(
    scripted_client: OpenAI,
) -> None:
    create, messages = scripted_client.chat.completions.create, says({"form_at": 3})
    with pytest.raises(openai.BadRequestError, match="the script says so") as whole:
        create(model="scripted", messages=messages)
    assert whole.value.code == "structure_not_enforceable"
    with pytest.raises(openai.APIError) as cut:
        list(create(model="scripted", messages=messages, stream=True))
    assert (cut.value.code, cut.value.type) == (
        "structure_not_enforceable",
        "invalid_request_error",
    )


def test_an_error_after_the_stream_began_is_raised(scripted_client: OpenAI) -> None:
    stream = scripted_client.chat.completions.create(
        model="scripted", messages=says({"fail_at": 3}), stream=True
    )
    came: list[str | None] = []
    with pytest.raises(openai.APIError) as broken:
        came.extend(chunk.choices[0].delta.content for chunk in stream)
    assert came[0] == "" and any(came), "what came before is kept"
    assert broken.value.code == "engine_error"


@pytest.mark.parametrize("max_retries", [0, 4])
def test_a_full_queue(
    scripted_client: OpenAI, scripted_server: Rig, tmp_path: Path, max_retries: int
) -> None:
    """The other answer ends once a request was refused, which comes again after a second."""
    refused = tmp_path / "refused"
    script = {"tokens": 3900, "step_s": 0.05, "until": str(refused)}
    busy = scripted_client.chat.completions.create(
        model="narrow", messages=says(script), stream=True
    )
    next(iter(busy))

    def refusals() -> int:
        answers = scripted_server.log_events("router", "http.request")
        return sum(answer["status"] == 429 for answer in answers)

    def end_after_refusal(before: int) -> None:
        wait_until(lambda: refusals() > before, "a request is refused")
        refused.touch()

    ending = threading.Thread(target=end_after_refusal, args=(refusals(),), daemon=True)
    ending.start()
    asking = scripted_client.with_options(max_retries=max_retries).chat.completions
    if max_retries == 0:
        with pytest.raises(openai.RateLimitError) as full:
            asking.create(model="narrow", messages=says("x"))
        assert full.value.code == "queue_full"
        assert int(full.value.response.headers["retry-after"]) >= 1
    else:
        raw = asking.with_raw_response.create(model="narrow", messages=says("x"))
        assert raw.retries_taken >= 1
        assert raw.parse().choices[0].message.content == SENTENCE
    ending.join()
    assert list(busy)[-1].choices[0].finish_reason == "stop"


def test_a_model_that_cannot_be_loaded_now(scripted_client: OpenAI) -> None:
    """503 with Retry-After: without retries an error, with them an answer."""
    with pytest.raises(openai.InternalServerError) as failed:
        scripted_client.chat.completions.create(model="stumbling", messages=says("x"))
    assert failed.value.status_code == 503
    assert int(failed.value.response.headers["retry-after"]) >= 1
    again = scripted_client.with_options(max_retries=3).chat.completions.create(
        model="stumbling", messages=says("x")
    )
    assert again.choices[0].message.content == SENTENCE
