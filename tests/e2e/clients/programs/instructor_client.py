"""instructor against lmx: a model by a tool call, its default, and one by a JSON schema, streamed
in parts; a good model, a scripted one, and a small real one."""

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

base_url, api_key, scripted, good, answers, real_url, real = sys.argv[1:]
ASK = [{"role": "user", "content": "What is the weather in Oslo?"}]
ASK_BOTH = [{"role": "user", "content": "What is the weather in Paris and in Oslo?"}]


class Weather(BaseModel):
    """The weather of a city."""

    city: str = Field(max_length=40)


def client(mode: instructor.Mode = instructor.Mode.TOOLS, url: str = base_url) -> Any:
    made = OpenAI(base_url=url, api_key=api_key, max_retries=0)
    # The default mode is what most of its users have.
    if mode is instructor.Mode.TOOLS:
        return instructor.from_openai(made).chat.completions
    return instructor.from_openai(made, mode=mode).chat.completions


def ask(
    create: Callable[..., Any],
    model: str,
    messages: list[dict[str, str]] = ASK,
    made: Any = Weather,
    **settings: Any,
) -> Any:
    return create(model=model, messages=messages, response_model=made, max_retries=1, **settings)


schema = instructor.Mode.JSON_SCHEMA
scripts = [{"role": "user", "content": answers}]
parallel = ask(client(instructor.Mode.PARALLEL_TOOLS).create, good, ASK_BOTH, Iterable[Weather])
found = {
    "tools": ask(client().create, good).city,
    "tool parts": [one.city for one in ask(client().create_partial, good)][-1],
    "parallel": [one.city for one in parallel],
    "schema": ask(client(schema).create, scripted, scripts).city,
    "parts": [one.city for one in ask(client(schema).create_partial, scripted, scripts)][-1],
    # No limit of tokens: the call ends by itself.
    "real": isinstance(ask(client(url=real_url).create, real, temperature=1.0, seed=1), Weather),
}
print(json.dumps(found))
