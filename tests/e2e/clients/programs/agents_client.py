"""OpenAI's Agents SDK against lmx: loops with a function and a custom tool, whole and streamed,
with an output type, and with responses that the server keeps."""

import asyncio
import json
import sys

from agents import (
    Agent,
    CustomTool,
    ModelSettings,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.shared import Reasoning
from pydantic import BaseModel

base_url, api_key, model_name, calls, custom_calls, form = sys.argv[1:]
set_tracing_disabled(True)
CLIENT = AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)
MODEL = OpenAIResponsesModel(model=model_name, openai_client=CLIENT)
RUN = RunConfig(tracing_disabled=True)
asked: list[list[str]] = []


class City(BaseModel):
    city: str


@function_tool  # type: ignore[untyped-decorator] # it has no types here
def get_weather(city: str) -> str:
    """The weather of a city."""
    asked.append(["get_weather", city])
    # The last message scripts the next answer.
    return json.dumps({"pieces": ["It rains in ", city, "."]})


async def run_shell(_: object, text: str) -> str:
    asked.append(["sh", text])
    return json.dumps({"pieces": ["Done."]})


SHELL = CustomTool(
    name="sh",
    description="Runs a command.",
    on_invoke_tool=run_shell,
    format={"type": "grammar", "syntax": "regex", "definition": r"ls [^\n]*"},
)


async def main() -> None:
    agent = Agent(
        name="Forecaster",
        instructions="Be kind.",
        model=MODEL,
        tools=[get_weather, SHELL],
        model_settings=ModelSettings(
            reasoning=Reasoning(effort="low", summary="auto"),
            response_include=["reasoning.encrypted_content"],
            store=False,
        ),
    )
    whole = await Runner.run(agent, calls, run_config=RUN)
    kinds = [item.type for item in whole.new_items]
    streamed = Runner.run_streamed(agent, calls, run_config=RUN)
    events = [
        event.data.type
        async for event in streamed.stream_events()
        if event.type == "raw_response_event"
    ]
    custom = await Runner.run(agent, custom_calls, run_config=RUN)
    again = await Runner.run(
        agent, [*whole.to_input_list(), {"role": "user", "content": "Hello"}], run_config=RUN
    )
    keeping = agent.clone(model_settings=ModelSettings(store=True))
    kept = await Runner.run(keeping, calls, run_config=RUN, auto_previous_response_id=True)
    typed = await Runner.run(
        Agent(name="Typed", model=MODEL, output_type=City), form, run_config=RUN
    )
    print(
        json.dumps(
            {
                "whole": whole.final_output,
                "kinds": kinds,
                "streamed": streamed.final_output,
                "events": events,
                "custom": custom.final_output,
                "again": again.final_output,
                "kept": kept.final_output,
                "typed": typed.final_output.city,
                "asked": asked,
                "tokens": whole.context_wrapper.usage.total_tokens,
            }
        )
    )


asyncio.run(main())
