"""LangChain's forms of a message with an image, over OpenAI's API and over Anthropic's."""

import json
import sys
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

base_url, api_key, model, image = sys.argv[1:]
TEXT = {"type": "text", "text": "What is in the image?"}
FORMS: dict[str, dict[str, Any]] = {
    "standard": {"type": "image", "base64": image, "mime_type": "image/png"},
    "url": {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
}
openai = ChatOpenAI(
    model=model, base_url=base_url, api_key=lambda: api_key, temperature=0, max_retries=0
)
claude = ChatAnthropic(
    model=model,
    base_url=base_url.rstrip("/").removesuffix("/v1"),
    api_key=api_key,
    temperature=0,
    max_tokens=8,
    max_retries=0,
)


def asked(chat: Any, form: dict[str, Any]) -> str:
    text: str = chat.invoke([HumanMessage(content=[form, TEXT])]).text
    return text


print(
    json.dumps(
        {
            **{f"openai {name}": asked(openai, form) for name, form in FORMS.items()},
            "anthropic": asked(claude, FORMS["standard"]),
        }
    )
)
