"""The official SDK's way with tools, on a model that writes what a good one does."""

import enum
import json
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

MODEL = "good"


class GetWeather(BaseModel):
    """The weather of a city."""

    city: str
    units: Literal["c", "f"] = "c"


class GetStockPrice(BaseModel):
    """The price of a share."""

    ticker: str
    exchange: str


# The tool of the SDK's own example of parsed calls.
class Table(enum.StrEnum):
    orders = "orders"
    customers = "customers"
    products = "products"


class Operator(enum.StrEnum):
    eq = "="
    gt = ">"
    ne = "!="


class DynamicValue(BaseModel):
    column_name: str


class Condition(BaseModel):
    column: str
    operator: Operator
    value: str | int | DynamicValue


class Query(BaseModel):
    """A query of a table."""

    table_name: Table
    columns: list[str] = Field(min_length=1)
    conditions: list[Condition]
    order_by: Literal["asc", "desc"]


TOOLS = [openai.pydantic_function_tool(one) for one in (GetWeather, GetStockPrice, Query)]
LOOSE: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def named(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> Any:
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def says(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


def both(client: OpenAI, **settings: Any) -> tuple[str | None, list[tuple[str, Any]], str | None]:
    """Return content, calls and the reason of the end, which are the same streamed."""
    whole = client.chat.completions.create(model=MODEL, **settings).choices[0]
    calls = [
        (call.function.name, json.loads(call.function.arguments))
        for call in whole.message.tool_calls or ()
        if call.type == "function"
    ]
    content, reason = "", None
    names: dict[int, str | None] = {}
    texts: dict[int, str] = {}
    for chunk in client.chat.completions.create(model=MODEL, stream=True, **settings):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for part in choice.delta.tool_calls or ():
                assert part.function
                names.setdefault(part.index, part.function.name)
                texts[part.index] = texts.get(part.index, "") + (part.function.arguments or "")
    assert (content or None) == whole.message.content
    assert [(names[n], json.loads(texts[n])) for n in names] == calls
    assert reason == whole.finish_reason
    return whole.message.content, calls, reason


PARIS = ("GetWeather", {"city": "Paris", "units": "c"})
OSLO = ("GetWeather", {"city": "Oslo", "units": "c"})
ASK = "What is the weather in Paris?"
ASK_BOTH = "What is the weather in Paris and in Oslo?"


@pytest.mark.parametrize(
    ("text", "settings", "calls", "reason"),
    [
        (ASK, {}, [PARIS], "tool_calls"),
        (ASK, {"tool_choice": "auto"}, [PARIS], "tool_calls"),
        (ASK, {"tool_choice": "none"}, [], "stop"),
        (ASK, {"tool_choice": "required"}, [PARIS], "tool_calls"),
        (ASK, {"tool_choice": named("GetWeather")}, [PARIS], "tool_calls"),
        (ASK, {"tool_choice": allowed("auto", "GetWeather")}, [PARIS], "tool_calls"),
        (ASK, {"tool_choice": allowed("auto", "Query")}, [], "stop"),
        (ASK, {"tool_choice": allowed("required", "Query", "GetWeather")}, [PARIS], "tool_calls"),
        ("Hello", {}, [], "stop"),
        (ASK_BOTH, {}, [PARIS, OSLO], "tool_calls"),
        (ASK_BOTH, {"tool_choice": "required"}, [PARIS, OSLO], "tool_calls"),
        (ASK_BOTH, {"parallel_tool_calls": False}, [PARIS], "tool_calls"),
        (
            ASK_BOTH,
            {"tool_choice": "required", "parallel_tool_calls": False},
            [PARIS],
            "tool_calls",
        ),
        (ASK_BOTH, {"tool_choice": named("GetWeather")}, [PARIS], "tool_calls"),
    ],
)
def test_each_choice_of_tools(
    scripted_client: OpenAI, text: str, settings: Any, calls: Any, reason: str
) -> None:
    found = both(scripted_client, messages=says(text), tools=TOOLS, **settings)
    assert found[1:] == (calls, reason)
    assert (found[0] is None) is bool(calls)


def test_a_named_function_is_another_than_the_one_that_fits(scripted_client: OpenAI) -> None:
    settings: dict[str, Any] = {"tools": TOOLS, "tool_choice": named("GetStockPrice")}
    _, calls, _ = both(scripted_client, messages=says(ASK), **settings)
    name, arguments = calls[0]
    assert name == "GetStockPrice"
    assert set(arguments) == {"ticker", "exchange"}


@pytest.mark.parametrize("choice", ["auto", "required", named("Query")])
def test_parse_reads_calls_of_pydantic_models(scripted_client: OpenAI, choice: Any) -> None:
    text = "Look up in a query all 'id' of my orders that were fulfilled"
    settings: dict[str, Any] = {"tools": TOOLS, "tool_choice": choice}
    parsed = scripted_client.chat.completions.parse(model=MODEL, messages=says(text), **settings)
    calls = parsed.choices[0].message.tool_calls or []
    assert len(calls) == 1
    query = calls[0].function.parsed_arguments
    assert isinstance(query, Query)
    assert (query.table_name, query.columns[0]) == (Table.orders, "id")
    with scripted_client.chat.completions.stream(
        model=MODEL, messages=says(text), **settings
    ) as stream:
        done = [
            event.parsed_arguments
            for event in stream
            if event.type == "tool_calls.function.arguments.done"
        ]
    assert done == [query]


def test_an_answer_in_a_form_or_a_call(scripted_client: OpenAI) -> None:
    class Summary(BaseModel):
        words: list[str]
        score: int

    settings: dict[str, Any] = {"response_format": Summary, "tools": [TOOLS[0]]}
    parse = scripted_client.chat.completions.parse
    answered = parse(model=MODEL, messages=says("Rate 'this' with 7"), **settings)
    assert answered.choices[0].message.parsed == Summary(words=["this"], score=7)
    assert answered.choices[0].finish_reason == "stop"
    called = parse(model=MODEL, messages=says(ASK_BOTH), **settings).choices[0]
    cities = [call.function.parsed_arguments for call in called.message.tool_calls or ()]
    assert cities == [GetWeather(city="Paris"), GetWeather(city="Oslo")]
    assert (called.message.parsed, called.finish_reason) == (None, "tool_calls")


def test_a_call_makes_the_round(scripted_client: OpenAI) -> None:
    create = scripted_client.chat.completions.create
    messages = says(ASK_BOTH)
    message = create(model=MODEL, messages=messages, tools=[LOOSE]).choices[0].message
    messages.append(message)  # type: ignore[arg-type]  # the SDK takes its own answers as history
    for call, result in zip(message.tool_calls or (), ("It rains.", "It snows."), strict=True):
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    last = create(model=MODEL, messages=messages, tools=[LOOSE]).choices[0]
    assert last.message.content == "It is this: It snows."
    assert last.finish_reason == "stop"


def test_models_show_what_is_enforced(scripted_client: OpenAI) -> None:
    scripted_client.chat.completions.create(model=MODEL, messages=says("Hello"))
    model: Any = scripted_client.models.retrieve(MODEL)
    assert model.capabilities == ["tools", "native_tools", "structured_outputs"]


def test_a_named_call_ends_on_every_route(scripted_client: OpenAI) -> None:
    at_v3 = scripted_client.with_options(base_url=str(scripted_client.base_url).replace("v1", "v3"))
    _, calls, reason = both(
        at_v3, messages=says(ASK_BOTH), tools=[LOOSE], tool_choice=named("get_weather")
    )
    assert (calls, reason) == ([("get_weather", {"city": "Paris"})], "stop")
