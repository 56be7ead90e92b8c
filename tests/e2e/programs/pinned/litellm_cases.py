"""What programs do with LiteLLM's router, made of a proxy's configuration. The arguments are the
configuration and the plans, as JSON. Prints one JSON object: what came of it, by model."""

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

import litellm

WRITE = {
    "type": "function",
    "function": {
        "name": "write",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
            "required": ["path", "text"],
        },
    },
}
FORM = {
    "type": "json_schema",
    "json_schema": {
        "name": "place",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
PICTURE = "data:image/png;base64," + base64.b64encode(Path("grey.png").read_bytes()).decode()


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def loop(router: Any, model: str, text: str) -> list[Any]:
    messages = user(text)
    called = []
    for _ in range(4):
        answer = router.completion(model=model, messages=messages, tools=[WRITE])
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            arguments = json.loads(call.function.arguments)
            Path(arguments["path"]).write_text(arguments["text"])
            called.append(call.function.name)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "written"})
        if not message.tool_calls:
            return [called, message.content, getattr(message, "reasoning_content", None)]
    raise SystemExit(f"it does not end: {messages}")


async def cut(router: Any, model: str, text: str) -> str:
    stream = await router.acompletion(model=model, messages=user(text), stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.aclose()
    return "cut"


def cases(router: Any, model: str, plans: dict[str, str]) -> dict[str, Any]:
    asked = {"type": "text", "text": plans["picture"]}
    parts = [asked, {"type": "image_url", "image_url": {"url": PICTURE}}]
    stream = router.completion(model=model, messages=user(plans["short"]), stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    waited = asyncio.run(router.acompletion(model=model, messages=user(plans["short"])))
    form = router.completion(model=model, messages=user(plans["form"]), response_format=FORM)
    seen = router.completion(model=model, messages=user(parts))
    return {
        "loop": loop(router, model, plans["loop"]),
        "streamed": streamed,
        "waited": waited.choices[0].message.content,
        "form": json.loads(form.choices[0].message.content),
        "seen": seen.choices[0].message.content,
        "cut": asyncio.run(cut(router, model, plans["slow"])),
    }


def main() -> None:
    models, plans = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    names = [one["model_name"] for one in models]
    found = {name: cases(litellm.Router(models, num_retries=0), name, plans) for name in names}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
