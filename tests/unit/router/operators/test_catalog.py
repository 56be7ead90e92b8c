"""The list of models, as OpenAI's clients and Codex read it."""

from dataclasses import replace
from typing import Any

import pytest
from openai.types import Model

from lmx.protocol.messages.snapshot import ModelView, Route, Snapshot
from lmx.protocol.messages.template import TemplateFacts
from lmx.protocol.states import MediaKind, ModelKind, SlotState
from lmx.router.operators.catalog import codex_catalog, lm_studio_model, model_object
from lmx.router.supervisor.directory import Directory
from tests.support.clients.sdk_types import OURS, extras_of
from tests.support.fakes.fake_peers import cold, ready
from tests.support.rigs.router_rig import MODEL, Rig

CODEX_NEEDS = {
    "slug", "display_name", "supported_reasoning_levels", "shell_type", "visibility",
    "supported_in_api", "priority", "support_verbosity", "truncation_policy",
    "experimental_supported_tools", "context_window", "apply_patch_tool_type",
    "supports_parallel_tool_calls", "supports_reasoning_summaries", "input_modalities",
    "base_instructions",
}  # fmt: skip


async def test_openai_s_shape_and_codex_s_beside_it(rig: Rig) -> None:
    url = f"{rig.url}/v1/models?client_version=0.145.0"
    async with rig.http.get(url) as response:
        found = await response.json()
    assert found["object"] == "list"
    (model,) = [Model.model_validate(one, strict=True) for one in found["data"]]
    assert set(extras_of(model)) <= OURS
    entries = {entry["slug"]: entry for entry in found["models"]}
    assert list(entries) == [model.id, "auto", "code", "reasoning", "chat"] and model.id == MODEL
    for entry in entries.values():
        assert entry.keys() >= CODEX_NEEDS
        # With an empty text Codex would have no system prompt; without one it reads no list.
        assert "*** Begin Patch" in entry["base_instructions"]


def test_codex_s_list_of_names() -> None:
    """Words that Codex does not know, or a name that is missing, spoil the whole list for it."""
    everything = replace(
        ready("big", "i", kind=ModelKind.CHAT), aliases=("b", "qwen"), media=tuple(MediaKind),
        context_length=9000, template=TemplateFacts(("low", "xhigh")), capabilities=("reasoning",),
    )  # fmt: skip
    small = replace(ready("small", "j", kind=ModelKind.CHAT), context_length=500)
    vectors = replace(ready("vectors", "k", kind=ModelKind.EMBEDDING), aliases=("v",))
    route = Route("work", ("big", "small"))
    listed = codex_catalog(
        Directory.of(Snapshot("e", 1, "big", (everything, small, vectors), routes=(route,)))
    )
    names = {entry["slug"]: entry for entry in listed}
    assert list(names) == [
        "big", "b", "qwen", "auto", "code", "reasoning", "chat", "work", "small",
    ]  # fmt: skip
    assert [name for name, entry in names.items() if entry["visibility"] == "list"] == [
        "big",
        "small",
    ]
    for name in ("big", "b", "auto"):
        entry = names[name]
        assert entry["input_modalities"] == ["text", "image", "audio"]
        assert [level["effort"] for level in entry["supported_reasoning_levels"]] == [
            "low",
            "xhigh",
        ]
    assert names["small"]["supported_reasoning_levels"] == []
    # Another model of a route may answer the next request.
    assert (names["qwen"]["context_window"], names["work"]["context_window"]) == (9000, 500)


SEES = replace(ready("m", "i", kind=ModelKind.CHAT), media=(MediaKind.IMAGE,), context_length=900)


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (SEES, {"type": "vlm", "state": "loaded", "loaded_context_length": 900,
                "max_context_length": 900, "capabilities": ["tool_use", "vision"]}),
        (replace(SEES, capabilities=("structured_outputs",), media=()),
         {"type": "llm", "capabilities": []}),
        (replace(SEES, kind=ModelKind.EMBEDDING, media=()),
         {"type": "embeddings", "capabilities": []}),
        (cold("m", SlotState.COLD), {"state": "not-loaded", "loaded_context_length": None}),
        (cold("m", SlotState.OCCUPIED), {"state": "loading"}),
    ],
)  # fmt: skip
def test_lm_studio_s_shape(model: ModelView, wanted: dict[str, object]) -> None:
    made = lm_studio_model(model)
    assert made.items() >= wanted.items()
    # Zed's client reads no list with an entry that lacks one of these.
    assert made["publisher"] and made["compatibility_type"] == "mlx"


@pytest.mark.parametrize(
    ("query", "ids", "more"),
    [
        ("", "abcde", False),
        ("limit=2", "ab", True),
        ("limit=5", "abcde", False),
        ("after_id=b", "cde", False),
        ("after_id=b&limit=2", "cd", True),
        ("after_id=e", "", False),
        ("before_id=d", "abc", False),
        ("before_id=d&limit=2", "bc", True),
        ("before_id=c&limit=2", "ab", False),
        ("before_id=a&limit=2", "", False),
        ("after_id=a&before_id=e&limit=1", "d", True),
    ],
)
async def test_pages_for_anthropic_s_clients(rig: Rig, query: str, ids: str, more: bool) -> None:
    models = [ready(name, f"i{name}") for name in "abcde"]
    await rig.publish(*models, ready("embeds", "i", kind=ModelKind.EMBEDDING))
    headers = {"anthropic-version": "2023-06-01"}
    _, found = await rig.json("GET", f"/v1/models?{query}", headers=headers)
    assert [model["id"] for model in found["data"]] == list(ids)
    assert (found["first_id"], found["last_id"]) == (ids[:1] or None, ids[-1:] or None)
    assert found["has_more"] is more


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "after_id=none", "before_id=none"]
)
async def test_pages_that_are_not_there(rig: Rig, query: str) -> None:
    url = f"{rig.url}/v1/models?{query}"
    async with rig.http.get(url, headers={"anthropic-version": "2023-06-01"}) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == query.partition("=")[0]
    # The query is Anthropic's.
    async with rig.http.get(url) as response:
        assert response.status == 200


async def test_what_a_transcription_model_takes(rig: Rig) -> None:
    await rig.publish(ready("whisper", "i", kind=ModelKind.TRANSCRIPTION))
    _, found = await rig.json("GET", "/v1/models/whisper")
    assert (found["modalities"], found["capabilities"]) == (["audio"], ["transcription"])


@pytest.mark.parametrize(
    ("fields", "takes", "gives"),
    [
        ({"kind": ModelKind.CHAT, "media": (MediaKind.IMAGE, MediaKind.VIDEO)},
         ["text", "image", "video"], ["text"]),
        ({"kind": None}, ["text"], ["text"]),
        ({"kind": ModelKind.EMBEDDING}, ["text"], ["embeddings"]),
        ({"kind": ModelKind.RERANK}, ["text"], []),
        ({"kind": ModelKind.TRANSCRIPTION}, ["audio"], ["text"]),
    ],
)  # fmt: skip
def test_what_goes_in_and_comes_out(
    fields: dict[str, Any], takes: list[str], gives: list[str]
) -> None:
    shown = model_object(ready(MODEL, "i", **fields))
    assert shown["modalities"] == takes
    assert shown["architecture"] == {"input_modalities": takes, "output_modalities": gives}
