"""`lmx bench`: what it plans, what its figures are, and servers that answer nonsense."""

import asyncio
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from lmx.protocol.errors import OperationError
from lmx.supervisor.cli.bench import command, plot, report
from lmx.supervisor.cli.bench.figures import Figures, Run, Sample, figures_of, percentile
from lmx.supervisor.cli.bench.machine import model_name
from lmx.supervisor.cli.bench.processes import ServerProcesses
from lmx.supervisor.cli.bench.rounds import Measured, measure
from lmx.supervisor.cli.bench.scenarios import (
    SCENARIOS,
    Client,
    Phase,
    Sizes,
    in_order,
    phases_of,
    text_of,
)
from lmx.supervisor.cli.bench.traffic import Target, find_target, run_phase, session, warm_up
from lmx.supervisor.cli.main import main
from lmx.supervisor.sockets.http_client import Remote

LINE = "data: %s\n\n"
SECRET = "/home/jane/secret"


def event(**fields: Any) -> str:
    return LINE % orjson.dumps(fields).decode()


def piece(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}


GOOD = event(**piece("a")) + event(**piece("b", "length")) + "data: [DONE]\n\n"
BROKEN: Mapping[str, tuple[str, str]] = {
    "text": ("no stream at all", "no answer came"),
    "json": (LINE % "{", "unreadable answer"),
    "list": (LINE % "[]", "unreadable answer"),
    "deep": (LINE % ("[" * 5000), "unreadable answer"),
    "choices": (event(choices=7), "unreadable answer"),
    "usage": (event(**piece("a"), usage={"prompt_tokens": "x"}), "unreadable answer"),
    "long": ("data: " + "x" * 3_000_000, "unreadable answer"),
    "endless": (event(**piece("a" * 500)) * 20, "a longer answer than requested"),
    "early": (event(**piece("a")), "the answer ended early"),
    "error": (event(error={"code": "overloaded", "message": SECRET}),
              "error in the answer overloaded"),
    "names": (event(error={"code": SECRET}), "error in the answer"),
}  # fmt: skip


@asynccontextmanager
async def serving(answers: Mapping[str, str]) -> AsyncIterator[tuple[str, list[Any]]]:
    """A server whose answer depends on the first part of the path, and what it was sent."""
    sent: list[Any] = []

    async def chat(request: web.Request) -> web.StreamResponse:
        sent.append(orjson.loads(await request.read()))
        name = request.match_info["name"]
        match name:
            case "status":
                error = {"error": {"code": "model_loading", "message": SECRET}}
                return web.json_response(error, status=503)
            case "redirect":
                raise web.HTTPFound("/good/v1/chat/completions")
            case "busy_once" if len(sent) == 1:
                return web.json_response({}, status=429)
            case "no_options" if "stream_options" in sent[-1]:
                return web.json_response({"detail": "unknown field"}, status=422)
            case "silent":
                await asyncio.sleep(60)
            case "cut":
                assert request.transport is not None
                request.transport.abort()
        answer = web.StreamResponse(headers={"Server": "scripted"})
        await answer.prepare(request)
        await answer.write(answers.get(name, GOOD).encode())
        return answer

    async def models(request: web.Request) -> web.Response:
        counts = {"none": 0, "two": 2}
        count = counts.get(request.match_info["name"], 1)
        return web.json_response({"data": [{"id": f"m{number}"} for number in range(count)]})

    app = web.Application()
    app.router.add_post("/{name}/v1/chat/completions", chat)
    app.router.add_get("/{name}/v1/models", models)
    async with TestServer(app) as server:
        yield str(server.make_url("/")).rstrip("/"), sent


def target(url: str, name: str = "good") -> Target:
    return Target(name, Remote.parse(f"{url}/{name}", None), "m")


async def samples_of(
    http: ClientSession, target: Target, client: Client, seconds: float = 0.0, limit_s: float = 60.0
) -> list[Sample]:
    """What one client measures in a phase of so many seconds."""
    found: list[Sample] = []
    await run_phase(http, target, Phase("s", "p", (client,), seconds), "seed", limit_s, found)
    return found


def samples(kind: str, *times: tuple[float, float, int], **fields: Any) -> list[Sample]:
    return [
        Sample(kind, sent, ended, first_s=0.5, answer_tokens=tokens, is_counted=True, **fields)
        for sent, ended, tokens in times
    ]


def test_phases_share_the_time_and_say_the_most_that_they_send() -> None:
    sizes = Sizes(clients=(1, 3), prompts=(50,))
    phases = phases_of(tuple(SCENARIOS), sizes, 90, 3)
    assert sum(phase.seconds for phase in phases) == pytest.approx(30)
    assert [phase.name for phase in phases[:3]] == ["1 client", "3 clients", "prompt of 50 tokens"]
    assert phases_of(("cancel", "prompts"), sizes, 90, 3)[0].scenario == "prompts"
    (one,) = phases_of(("prompts",), sizes, 0.1, 1)
    assert (one.most_requests, one.most_prompt_tokens) == (1, 50)
    agent = phases_of(("agent",), sizes, 1, 1)[0]
    # Two turns: 1000 tokens, and 100 more.
    assert (agent.clients[0].most_requests, agent.most_prompt_tokens) == (2, 2100)


def test_each_server_is_first_in_its_turn() -> None:
    turns = [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    assert [in_order(3, number) for number in range(4)] == [*turns, turns[0]]


def test_no_two_texts_begin_alike() -> None:
    texts = [text_of(f"seed {number}", 30, 1.0).split() for number in range(200)]
    assert {len(words) for words in texts} == {30}
    assert len({tuple(words[:4]) for words in texts}) == 200
    assert text_of("seed 7", 30, 1.0).split() == texts[7]
    assert len(text_of("seed", 30, 3.0).split()) == 10


def test_percentiles() -> None:
    assert percentile([4.0], 99) == 4
    assert percentile([1.0, 2.0, 3.0], 50) == 2
    assert percentile([0.0, 10.0], 95) == pytest.approx(9.5)
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_figures_are_medians_of_the_rounds_with_their_ranges() -> None:
    rounds = [
        Run(tuple(samples("", (0, 2, 10), (1, 4, 10))), cpu_s=2.0, memory_bytes=5),
        Run(tuple(samples("", (0, 2, 20))), cpu_s=1.0, memory_bytes=9),
        Run(tuple(samples("", (0, 1, 40), (0, 1, 5, ), error="timeout"))),
    ]  # fmt: skip
    (found,) = figures_of(rounds)
    assert found.tokens_per_s is not None
    assert found.first_token_s is not None
    assert (found.tokens_per_s.least, found.tokens_per_s.median, found.tokens_per_s.most) == (
        5, 10, 45,
    )  # fmt: skip
    assert (found.requests, dict(found.errors)) == (5, {"timeout": 2})
    assert found.cpu_ms_per_token is not None
    assert (found.cpu_ms_per_token.least, found.cpu_ms_per_token.most) == (50, 100)
    assert found.memory_bytes == 9
    assert found.next_token_s is None
    assert found.first_token_s.p99 == 0.5


def test_figures_of_kinds_and_of_nothing() -> None:
    both = (*samples("agent", (0, 1, 3)), *samples("small", (0, 1, 1), hung_up=True))
    whole, agent, small = figures_of([Run(both)])
    assert [one.kind for one in (whole, agent, small)] == ["all", "agent", "small"]
    assert whole.tokens_per_s is not None
    assert whole.tokens_per_s.median == 4
    known = samples("", (0, 1, 3), prompt_tokens=90, cached_tokens=40)
    (figures,) = figures_of([Run((*known, *samples("", (0, 1, 1), hung_up=True)))])
    assert (figures.prompt_tokens, figures.cached_tokens) == (90, 40), "of those that are known"
    failed = Sample("", 0, 1, error="timeout")
    assert figures_of([Run((failed,))])[0].tokens_per_s is None


@pytest.mark.parametrize(
    ("model", "name"),
    [("/Users/jane/models/Qwen3-8B/", "Qwen3-8B"), ("C:\\Users\\jane\\Qwen", "Qwen"),
     ("~/m", "m"), ("mlx-community/Qwen3-8B-4bit", "mlx-community/Qwen3-8B-4bit")],
)  # fmt: skip
def test_a_models_folder_is_not_named(model: str, name: str) -> None:
    assert model_name(model) == name


async def test_broken_servers_are_errors_and_never_exceptions() -> None:
    answers = {name: text for name, (text, _) in BROKEN.items()}
    wanted = {name: said for name, (_, said) in BROKEN.items()} | {
        "status": "HTTP 503 model_loading", "redirect": "HTTP 302", "cut": "connection lost",
        "silent": "timeout", "good": "",
    }  # fmt: skip
    async with serving(answers) as (url, _), session() as http:
        for name, said in wanted.items():
            limit_s = 1.0 if name == "silent" else 60.0
            found = await samples_of(http, target(url, name), Client(10, 4), limit_s=limit_s)
            assert [one.error for one in found] == [said], name
        assert SECRET not in str(found)


async def test_a_server_without_usage_is_counted_by_pieces() -> None:
    async with serving({}) as (url, sent), session() as http:
        one = target(url, "no_options")
        await warm_up(http, one, "seed")
        found = await samples_of(http, one, Client(10, 4))
        assert (one.has_usage, found[0].answer_tokens, found[0].is_counted) == (False, 2, False)
        assert one.software == "scripted"
        assert ["stream_options" in body for body in sent] == [True, False, False, False]
        (figures,) = figures_of([Run(tuple(found))])
        assert figures.not_counted == 1
        with pytest.raises(OperationError, match="first request failed: HTTP 503 model_loading"):
            await warm_up(http, target(url, "status"), "seed")
    async with serving({}) as (url, sent), session() as http:
        busy = target(url, "busy_once")
        await warm_up(http, busy, "seed")
        assert busy.has_usage
        assert all("stream_options" in body for body in sent)


async def test_a_model_is_chosen_where_there_are_several() -> None:
    async with serving({}) as (url, _), session() as http:
        for name, said in (("two", "m0, m1"), ("none", "it has: none")):
            with pytest.raises(OperationError, match=said):
                await find_target(http, "A", Remote.parse(f"{url}/{name}", None), None)
        remote = Remote.parse(f"{url}/one", None)
        assert (await find_target(http, "A", remote, None)).model == "m0"
    async with session() as http:
        with pytest.raises(OperationError, match="no connection"):
            await find_target(http, "A", remote, None)


async def test_a_conversation_grows_and_a_marker_changes() -> None:
    async with serving({}) as (url, sent), session() as http:
        agent = Client(10, 4, "later", "first", grows_tokens=5, marker=True, most_requests=3)
        found = await samples_of(http, target(url), agent, 60)
        assert [one.kind for one in found] == ["first", "later", "later"]
        roles = [[each["role"] for each in body["messages"]] for body in sent]
        assert roles[2] == ["system", *["user", "assistant"] * 2, "user"]
        assert sent[2]["messages"][1:4] == sent[1]["messages"][1:]
        assert len({body["messages"][0]["content"] for body in sent}) == 3


async def test_thoughts_are_timed_and_not_sent_back() -> None:
    def thought(name: str) -> str:
        return event(choices=[{"index": 0, "delta": {name: "hm"}}])

    thinks = thought("reasoning_content") + thought("reasoning") + GOOD
    async with serving({"thinks": thinks}) as (url, sent), session() as http:
        chat = Client(10, 4, grows_tokens=5, most_requests=2)
        found = await samples_of(http, target(url, "thinks"), chat, 60)
    assert [one.answer_tokens for one in found] == [4, 4]
    assert sent[1]["messages"][1] == {"role": "assistant", "content": "ab"}


async def test_the_first_turn_is_the_first_that_is_answered() -> None:
    async with serving({}) as (url, _), session() as http:
        agent = Client(10, 4, "later", "first", grows_tokens=5, most_requests=3)
        found = await samples_of(http, target(url, "busy_once"), agent, 60)
    assert [(one.kind, one.error) for one in found] == [
        ("first", "HTTP 429"), ("first", ""), ("later", ""),
    ]  # fmt: skip


async def test_a_client_hangs_up() -> None:
    async with serving({}) as (url, _), session() as http:
        for name, after in (("silent", 0), ("good", 1)):
            found = await samples_of(http, target(url, name), Client(10, 4, hangs_up_after=after))
            assert [(one.hung_up, one.error) for one in found] == [(True, "")]


async def test_a_server_that_answers_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerProcesses, "at", lambda _: None)  # it is this process
    async with serving({}) as (url, sent), session() as http:
        phases = (Phase("s", "p", (Client(10, 4),), 20.0), Phase("s", "q", (Client(10, 4),), 20.0))
        lines: list[str] = []
        measured = await measure(
            http, [target(url, "status"), target(url)], phases, 2, seed="s", limit_s=60,
            progress=lines.append,
        )  # fmt: skip
    assert Counter(line.split(": ")[1] for line in lines) == {
        "status, p": 1,
        "good, p": 2,
        "good, q": 2,
    }
    assert (measured.given_up, measured.rounds, measured.is_interrupted) == (["status"], 2, False)
    assert len(sent) == 5
    assert any(
        "answered nothing" in line for line in report.notes(measured, [target(url, "status")])
    )
    content = report.file_content(measured, [target(url, SECRET)], 40, 2)
    assert "127.0.0.1" not in str(content)


async def test_a_slow_server_does_not_take_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerProcesses, "at", lambda _: None)
    async with serving({}) as (url, _), session() as http:
        phases = (Phase("s", "p", (Client(10, 4, delay_s=600),), 0.05),)
        measured = await measure(
            http, [target(url)], phases, 1, seed="s", limit_s=0.1, progress=lambda _: None
        )
    assert measured.is_late


def test_a_table_in_a_file_has_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured()
    (phase,) = phases_of(("concurrency",), Sizes(clients=(1,), prompts=(50,)), 1, 1)
    measured.runs[phase, "A"] = [Run(tuple(samples("", (0, 2, 10))), 1.0, 5)]

    async def measure_nothing(*_: object) -> tuple[Measured, list[Target]]:
        return measured, []

    monkeypatch.setattr(command, "_measure", measure_nothing)
    monkeypatch.delenv("COLUMNS", raising=False)
    done = CliRunner().invoke(main, ["bench", "http://127.0.0.1:1"])
    assert done.exit_code == 0, done.output
    for column in ("REQUESTS", "FAILED", "CPU ms/TOKEN", "MEMORY"):
        assert column in done.output


def test_the_plot_is_xml_and_names_are_escaped() -> None:
    (figures,) = figures_of([Run(tuple(samples("", (0, 2, 10))), 1.0, 5)])
    drawn = plot.svg(plot.panels_of([("a & b", {"<x>": [figures]})]), "t")
    texts = [one.text for one in ET.fromstring(drawn).iter() if one.tag.endswith("text")]
    assert {"a & b", "<x>", "tokens a second"} <= set(texts)
    empty: list[Figures] = []
    assert ET.fromstring(
        plot.svg(plot.panels_of([("p", {"A": empty or [figures_of([])[0]]})]), "t")
    )


def test_large_numbers_are_written_out() -> None:
    numbers = (0.01234, 12.34, 999.4, 999.6, 1234.0)
    assert [*map(plot.number_text, numbers)] == ["0.0123", "12.3", "999", "1,000", "1,234"]


def test_nothing_measured_is_no_figure() -> None:
    assert report.figures_by_phase(Measured()) == {}
