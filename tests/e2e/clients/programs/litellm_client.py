"""litellm against lmx: an answer, a stream, a tool call, an error."""

import json
import sys

import litellm

base_url, api_key, model, directive = sys.argv[1:]
common = {
    "model": f"openai/{model}",
    "base_url": base_url,
    "api_key": api_key,
    "num_retries": 0,
}
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "Weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}

whole = litellm.completion(messages=HELLO, **common)
parts = list(litellm.completion(messages=HELLO, stream=True, **common))
calling = litellm.completion(
    messages=[{"role": "user", "content": directive}], tools=[TOOL], **common
)
try:
    litellm.completion(messages=HELLO, **(common | {"model": "openai/none"}))
    error = ""
except litellm.NotFoundError as missing:
    error = str(missing)
print(
    json.dumps(
        {
            "whole": whole.choices[0].message.content,
            "total_tokens": whole.usage.total_tokens,
            "streamed": "".join(part.choices[0].delta.content or "" for part in parts),
            "calls": [
                [call.function.name, json.loads(call.function.arguments)]
                for call in calling.choices[0].message.tool_calls
            ],
            "error": error,
        }
    )
)
