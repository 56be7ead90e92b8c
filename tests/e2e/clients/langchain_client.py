"""langchain-openai against lmx: an answer, a stream, a tool call, a structured answer."""

import json
import sys

from langchain_openai import ChatOpenAI
from pydantic import BaseModel

base_url, api_key, model, directive = sys.argv[1:]
chat = ChatOpenAI(model=model, base_url=base_url, api_key=api_key, max_retries=0, stream_usage=True)


class Weather(BaseModel):
    """The weather of a city."""

    city: str


streamed = list(chat.stream("Hello"))
calling = chat.bind_tools([Weather]).invoke(directive)
structured = chat.with_structured_output(Weather, method="function_calling").invoke(directive)
print(
    json.dumps(
        {
            "whole": chat.invoke("Hello").content,
            "streamed": "".join(chunk.content for chunk in streamed),
            "usage": next(c.usage_metadata for c in reversed(streamed) if c.usage_metadata),
            "calls": [[call["name"], call["args"]] for call in calling.tool_calls],
            "structured": structured.city,
        }
    )
)
