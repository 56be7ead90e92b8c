"""With the real engine: gaps in texts, by each API."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.rig import PATIENT, http, rig

pytestmark = pytest.mark.engine

SUFFIX, PREFIX, END = 257, 258, 256


def coder(folder: Path) -> Path:
    """Return a model whose tokenizer has Codestral's tokens instead of two of a conversation's."""
    make_tiny_model(folder, "llama", 2048)
    for file in folder.glob("*token*.json"):
        text = file.read_text()
        file.write_text(text.replace("<|system|>", "[SUFFIX]").replace("<|user|>", "[PREFIX]"))
    return folder


async def test_a_gap_is_filled_by_every_api(tmp_path: Path) -> None:
    sources = {"coder": coder(tmp_path / "coder"), "tiny": make_tiny_model(tmp_path / "t", "llama")}
    models: list[dict[str, Any]] = [
        {"id": name, "source": str(folder)} for name, folder in sources.items()
    ]
    models += [
        {"id": f"later-{name}", "source": str(folder), "preload": False}
        for name, folder in sources.items()
    ]
    with rig({"models": models, "timing": PATIENT}) as lmx:
        for name in sources:
            lmx.wait_state(name, "ready", deadline_s=300)
        root = lmx.url.removesuffix("/v1")
        async with http() as session:

            async def posted(path: str, **body: Any) -> tuple[int, Any]:
                async with session.post(f"{root}{path}", json=body) as response:
                    return response.status, await response.json()

            asked = {"model": "coder", "max_tokens": 5, "temperature": 0, "return_token_ids": True}
            gap = {"prompt": "x[SUFFIX]", "suffix": "y"}
            status, filled = await posted("/v1/completions", **asked, **gap)
            assert status == 200, filled
            (choice,) = filled["choices"]
            (_, same), (_, text) = [
                await posted("/tokenize", model="coder", prompt=one) for one in ("y", "x[SUFFIX")
            ]
            tokens = [SUFFIX, *same["tokens"], PREFIX, *text["tokens"]]
            assert choice["prompt_token_ids"][: len(tokens)] == tokens
            assert len(choice["prompt_token_ids"]) == len(tokens) + 1
            assert SUFFIX not in choice["prompt_token_ids"][1:]
            # The same tokens, written by hand, are answered with the same text.
            _, again = await posted(
                "/v1/completions", **{**asked, "prompt": choice["prompt_token_ids"]}
            )
            assert (
                again["choices"][0]["token_ids"][: len(choice["token_ids"])]
                == (choice["token_ids"])
            )
            options = {"num_predict": 5, "temperature": 0}
            status, ollama = await posted(
                "/api/generate", model="coder", stream=False, options=options, **gap
            )
            assert (status, ollama["response"]) == (200, choice["text"])
            status, infill = await posted(
                "/infill", model="coder", input_prefix="x[SUFFIX]", input_suffix="y",
                n_predict=5, temperature=0, cache_prompt=True,
            )  # fmt: skip
            assert (status, infill["content"]) == (200, choice["text"])
            assert infill["tokens_evaluated"] == len(tokens) + 1
            status, refused = await posted("/v1/completions", model="tiny", prompt="x", suffix="y")
            assert (status, refused["error"]["param"]) == (400, "suffix")
            assert "name a model that has them: coder, later-coder" in refused["error"]["message"]
            # Those that were not loaded yet say it by their files.
            async with session.get(f"{root}/v1/models") as response:
                known = {one["id"]: one["capabilities"] for one in (await response.json())["data"]}
            assert (known["later-coder"], known["later-tiny"]) == (["infill"], [])
            status, refused = await posted("/v1/completions", model="later-tiny", **gap)
            assert (status, refused["error"]["param"]) == (400, "suffix")
            _, shown = await posted("/api/show", model="coder")
            assert "insert" in shown["capabilities"]
