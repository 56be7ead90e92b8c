"""What lm-evaluation-harness asks of a server: the likelihood of a text after another, word for
word as its models ``local-completions`` and ``local-chat-completions`` ask (0.4.13).

The likelihoods are those of the model's own logits. `make lm-eval` runs the package itself.
"""

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import mlx.core as mx
import pytest

from tests.support.clients.client_packages import python_packages, run_python
from tests.support.models.tiny_models import make_tiny_model, make_tokenizer
from tests.support.rigs.engine_rig import Plain
from tests.support.rigs.rig import PATIENT, Rig, rig

pytestmark = pytest.mark.engine

END = 256
"""The end token, which the harness puts before a text whose every token is scored."""

PAIRS = (
    ("The capital of France is", " Paris"),
    ("The capital of France is", " a large city in the north"),
    ("Question: is 7 prime?\nAnswer:", " yes"),
    ("ÄÖ", "ü and more"),
    ("x", "y"),
)


class Likelihood(NamedTuple):
    """What the harness makes of an answer."""

    logprob: float
    is_greedy: bool


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """The model of the server, alone: its folders are the same each time."""
    return Plain(make_tiny_model(tmp_path_factory.mktemp("plain"), "llama", 8192))


def asked(server: Rig, path: str, body: dict[str, Any]) -> Any:
    """Ask as the harness does where no key is set."""
    headers = {"Authorization": "Bearer ", "Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{server.url}/{path}", json.dumps(body).encode(), headers, method="POST"
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


def scored(
    server: Rig, prompt: object, contexts: Sequence[int], *, max_tokens: int = 1
) -> list[Likelihood]:
    """Return the likelihood of what follows so many tokens in each prompt. ``max_tokens``: the
    harness asks for one token more than it scores."""
    body = {
        "model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": max_tokens,
        "logprobs": 1, "seed": 1234, "echo": True,
    }  # fmt: skip
    found = []
    choices = sorted(asked(server, "completions", body)["choices"], key=lambda one: one["index"])
    for choice, context in zip(choices, contexts, strict=True):
        end = -1 if max_tokens else None
        logprobs = choice["logprobs"]["token_logprobs"][context:end]
        tops = choice["logprobs"]["top_logprobs"][context:end]
        greedy = all(one == max(top.values()) for one, top in zip(logprobs, tops, strict=True))
        found.append(Likelihood(sum(logprobs), greedy))
    return found


def expected(plain: Plain, tokens: Sequence[int], context: int) -> Likelihood:
    logprobs = plain.logprobs(tokens)
    places = range(context, len(tokens))
    best = plain.likeliest(tokens[:context], tokens[context:])
    own = mx.array([logprobs[place - 1, tokens[place]].item() for place in places])
    return Likelihood(cast(float, mx.sum(own).item()), best == list(tokens[context:]))


def check(found: Sequence[Likelihood], right: Sequence[Likelihood]) -> None:
    assert [one.is_greedy for one in found] == [one.is_greedy for one in right]
    assert [one.logprob for one in found] == pytest.approx([one.logprob for one in right], abs=1e-3)


def test_likelihoods_are_those_of_the_logits(server: Rig, plain: Plain) -> None:
    tokenizer = make_tokenizer()
    prompts = [tokenizer.encode(context + rest) for context, rest in PAIRS]
    contexts = [len(tokenizer.encode(context)) for context, _ in PAIRS]
    # Texts of which every token is scored, and one that the model itself would have written.
    prompts += [[END, *prompts[0]], prompts[1][:5]]
    contexts += [1, 5]
    for _ in range(6):
        prompts[-1] = [*prompts[-1], cast(int, mx.argmax(plain.logits(prompts[-1])[-1]).item())]
    right = [expected(plain, *each) for each in zip(prompts, contexts, strict=True)]
    assert {one.is_greedy for one in right} == {False, True}
    check(scored(server, prompts, contexts), right)
    # Nothing needs to be made for it.
    check(scored(server, prompts, contexts, max_tokens=0), right)
    # One at a time, and as texts, which is how it asks with tokenized_requests=False.
    check(scored(server, [prompts[0]], contexts[:1]), right[:1])
    check(scored(server, "".join(PAIRS[3]), contexts[3:4]), right[3:4])


def test_answers_are_made_until_a_text(server: Rig) -> None:
    prompt = make_tokenizer().encode("The capital of France is")
    settings = {"model": "tiny", "max_tokens": 8, "temperature": 0, "seed": 1234}
    body = {**settings, "prompt": [prompt, prompt], "stop": ["\n\n", "<|end|>", "a", "b", "c"]}
    texts = [choice["text"] for choice in asked(server, "completions", body)["choices"]]
    assert texts[0] == texts[1]
    # Each message says that it is a text; and a task may have no text that ends an answer.
    plain = {"role": "user", "content": "What is the capital of France?"}
    for stop in (["\n\n", "<|end|>"], []):
        answers = [
            asked(server, "chat/completions", {**settings, "messages": [message], "stop": stop})
            for message in (plain | {"type": "text"}, plain)
        ]
        contents = [answer["choices"][0]["message"]["content"] for answer in answers]
        assert contents[0] == contents[1]


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_harness_itself(tmp_path: Path) -> None:
    """The package, as it is run: its two models, tokens and texts, its own tokenizer and the
    server's, and a task of its own from its command line."""
    folder = make_tiny_model(tmp_path / "tiny", "llama", 8192)
    plain = Plain(folder)
    config = {"models": [{"id": "tiny", "source": str(folder)}], "timing": PATIENT}
    tokenizer = make_tokenizer()
    right = [
        expected(plain, tokenizer.encode(context + rest), len(tokenizer.encode(context)))
        for context, rest in PAIRS
    ]
    with rig(config) as lmx:
        lmx.wait_state("tiny", "ready", deadline_s=300)
        packages = python_packages("lm_eval.txt")
        reported = run_python(
            packages, "lm_eval_client.py", lmx.url, str(folder), json.dumps(PAIRS),
            str(tmp_path / "task"),
        )  # fmt: skip
    found = json.loads(reported.strip().split("\n")[-1])
    for way in ("tokens", "texts", "many", "remote"):
        check([Likelihood(*one) for one in found[way]], right)
    rolled = [expected(plain, [END, *tokenizer.encode(PAIRS[0][0])], 1).logprob]
    assert found["rolling"] == pytest.approx(rolled, abs=1e-3)
    assert found["until"][0] == found["until"][1]
    assert isinstance(found["chat"][0], str)
    assert found["accuracy"] == pytest.approx(found["accuracy_by_hand"])
