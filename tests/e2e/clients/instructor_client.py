"""instructor against lmx: a model by a tool call, and one by a JSON schema, streamed in parts."""

import json
import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel

base_url, api_key, model, calls, answers = sys.argv[1:]


class Weather(BaseModel):
    """The weather of a city."""

    city: str


def ask(mode: instructor.Mode, directive: str, *, partial: bool = False) -> list[str]:
    client = instructor.from_openai(
        OpenAI(base_url=base_url, api_key=api_key, max_retries=0), mode=mode
    )
    messages = [{"role": "user", "content": directive}]
    create = client.chat.completions
    if partial:
        return [
            part.city
            for part in create.create_partial(
                model=model, messages=messages, response_model=Weather, max_retries=1
            )
            if part.city
        ]
    made = create.create(model=model, messages=messages, response_model=Weather, max_retries=1)
    return [made.city]


print(
    json.dumps(
        {
            "tools": ask(instructor.Mode.TOOLS, calls),
            "schema": ask(instructor.Mode.JSON_SCHEMA, answers),
            "parts": ask(instructor.Mode.JSON_SCHEMA, answers, partial=True)[-1:],
        }
    )
)
