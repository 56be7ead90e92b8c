"""LangChain and Pydantic AI on /v1/messages: an answer, a stream, a loop with a tool."""

import asyncio
import json
import sys
from typing import Any

from langchain_anthropic import ChatAnthropic
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

base_url, api_key, model, calls, rain = sys.argv[1:]
base_url = base_url.rstrip("/").removesuffix("/v1")
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def langchain() -> dict[str, Any]:
    chat = ChatAnthropic(
        model=model, base_url=base_url, api_key=api_key, max_tokens=100, max_retries=0
    )
    tool = {"name": "Weather", "description": "The weather", "input_schema": SCHEMA}
    called = chat.bind_tools([tool]).invoke(calls)
    return {
        "whole": chat.invoke("Hello").text,
        "streamed": "".join(part.text for part in chat.stream("Hello")),
        "calls": [[call["name"], call["args"]] for call in called.tool_calls],
        "tokens": chat.invoke("Hello").usage_metadata["output_tokens"],
    }


async def pydantic() -> dict[str, Any]:
    provider = AnthropicProvider(api_key=api_key, base_url=base_url)
    agent = Agent(AnthropicModel(model, provider=provider))
    asked = []

    @agent.tool_plain  # type: ignore[untyped-decorator]
    def Weather(city: str) -> str:
        """Tell the weather of a city."""
        asked.append(city)
        return rain

    whole = await agent.run("Hello")
    async with agent.run_stream("Hello") as stream:
        streamed = await stream.get_output()
    looped = await agent.run(calls)
    return {"whole": whole.output, "streamed": streamed, "looped": looped.output, "asked": asked}


print(json.dumps({"langchain": langchain(), "pydantic": asyncio.run(pydantic())}))
