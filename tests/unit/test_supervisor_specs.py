"""From a model's configuration to its worker's spec, and the share of memory that it gets."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import LmxError
from lmx.protocol.specs import PrefixCacheSpec, SpeculationSpec, WorkerSpec
from lmx.protocol.states import ModelKind
from lmx.supervisor.config import Config
from lmx.supervisor.estimate import PROCESS_OVERHEAD_BYTES
from lmx.supervisor.home import Home
from lmx.supervisor.memory_plan import MemoryPlan, plan_memory
from lmx.supervisor.specs import worker_spec

MIB = 1024**2
WEIGHTS_BYTES = 4000
# Two layers of two heads of 16 numbers, keys and values, 2 bytes each.
KV_BYTES_PER_TOKEN = 2 * 2 * 2 * 16 * 2


def make_folder(path: Path, context: int = 1000) -> Path:
    path.mkdir(exist_ok=True)
    config = {
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": context,
    }
    (path / "config.json").write_text(json.dumps(config))
    header = json.dumps({"w": {"data_offsets": [0, WEIGHTS_BYTES]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return path


def config_of(**model: Any) -> Config:
    return Config.model_validate({"models": [{"id": "Org/m", "source": "/x", **model}]})


def plan(folder: Path, kind: ModelKind = ModelKind.CHAT, **model: Any) -> MemoryPlan:
    return plan_memory(config_of(**model).models[0], kind, folder)


def spec_of(kind: ModelKind = ModelKind.CHAT, prefix_bytes: int = 7, **model: Any) -> WorkerSpec:
    config, home = config_of(**model), Home(Path("/home/lmx"))
    plan = MemoryPlan(99, prefix_bytes)
    return worker_spec(config, home, config.models[0], "i1", Path("/m"), kind, plan)


@pytest.mark.parametrize(
    ("tokens", "prefix_bytes"),
    [
        (1000, 256 * MIB),  # never less
        (4 * 1024**2, 4 * 1024**2 * KV_BYTES_PER_TOKEN),  # one full context
        (100 * 1024**2, 2048 * MIB),  # never more
    ],
)
def test_the_prefix_cache_is_counted_in_the_share(
    tmp_path: Path, tokens: int, prefix_bytes: int
) -> None:
    found = plan(make_folder(tmp_path, tokens))
    rest_bytes = WEIGHTS_BYTES + tokens * KV_BYTES_PER_TOKEN + PROCESS_OVERHEAD_BYTES
    assert found == MemoryPlan(rest_bytes + prefix_bytes, prefix_bytes)


def test_the_prefix_cache_can_be_set_and_switched_off(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    base_bytes = WEIGHTS_BYTES + 1000 * KV_BYTES_PER_TOKEN + PROCESS_OVERHEAD_BYTES
    found = plan(folder, prefix_cache={"memory_bytes": "1MiB"})
    assert found == MemoryPlan(base_bytes + MIB, MIB)
    off = plan(folder, prefix_cache={"enabled": False, "memory_bytes": "1MiB"})
    assert off == MemoryPlan(base_bytes, 0)


def test_a_share_that_was_set_by_hand_is_kept(tmp_path: Path) -> None:
    assert plan(make_folder(tmp_path), memory_bytes="400MiB") == MemoryPlan(400 * MIB, 100 * MIB)


@pytest.mark.parametrize("kind", [ModelKind.EMBEDDING, ModelKind.RERANK])
def test_what_does_not_generate_has_no_kv_cache(tmp_path: Path, kind: ModelKind) -> None:
    folder = make_folder(tmp_path)
    make_folder(folder / "2_Dense")
    assert plan(folder, kind) == MemoryPlan(2 * WEIGHTS_BYTES + PROCESS_OVERHEAD_BYTES, 0)


def test_a_draft_model_is_counted(tmp_path: Path) -> None:
    folder, draft = make_folder(tmp_path / "m"), make_folder(tmp_path / "d")
    speculation = {"method": "draft_model", "draft": str(draft)}
    more_bytes = plan(folder, speculation=speculation).reserve_bytes - plan(folder).reserve_bytes
    assert more_bytes == WEIGHTS_BYTES + 1000 * KV_BYTES_PER_TOKEN
    with pytest.raises(LmxError, match=r"^speculation\.draft: .* does not exist"):
        plan(folder, speculation=speculation | {"draft": str(tmp_path / "none")})


def test_a_spec_has_all_that_was_configured() -> None:
    spec = spec_of(
        top_k=20, min_p=0.1, repetition_penalty=1.1, tool_parser="hermes",
        chat_template_kwargs={"enable_thinking": False}, max_decode_stall_s=0.5,
        speculation={"method": "draft_model", "draft": "/d/../e", "num_assistant_tokens": 6},
    )  # fmt: skip
    assert (spec.top_k, spec.min_p, spec.repetition_penalty) == (20, 0.1, 1.1)
    assert (spec.tool_parser, spec.template_kwargs) == ("hermes", {"enable_thinking": False})
    assert spec.max_decode_stall_s == 0.5
    assert spec.speculation == SpeculationSpec("/e", 6)
    assert spec.prefix_cache is not None
    assert spec.prefix_cache.disk_path is not None
    assert spec.prefix_cache.disk_path.startswith("/home/lmx/cache/prefix/org_m")


def test_a_spec_has_defaults_for_the_rest() -> None:
    spec = spec_of()
    assert (spec.top_k, spec.min_p, spec.template_kwargs) == (None, None, None)
    assert (spec.max_decode_stall_s, spec.speculation) == (1.0, None)
    assert spec.prefix_cache is not None
    assert (spec.prefix_cache.memory_bytes, spec.prefix_cache.disk_bytes) == (7, 4 * 1024**3)


def test_what_is_switched_off_is_not_in_the_spec() -> None:
    assert spec_of(prefix_cache={"disk": False}).prefix_cache == PrefixCacheSpec(7)
    assert spec_of(prefix_bytes=0).prefix_cache is None
    lookup = {"method": "prompt_lookup"}
    assert spec_of(speculation=lookup).speculation == SpeculationSpec(None)
    assert spec_of(ModelKind.EMBEDDING, speculation=lookup).speculation is None
