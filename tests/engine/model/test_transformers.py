"""Folders as transformers 5 writes them, against its own logits (torch, on the CPU).

mlx-lm and mlx-vlm can be no reference for what their classes read of config.json. Each type has a
tiny random model with rotary embeddings of several kinds, which makes the same logits here, or is
refused. ``make reference`` runs it: torch takes some hundred megabytes, once.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
import pytest

from lmx.protocol.errors import OperationError
from lmx.worker.mlx.model.library import open_checkpoint
from lmx.worker.mlx.model.readable import FolderChanges
from tests.support.clients.client_packages import PROGRAMS, python_packages
from tests.support.models.tiny_models import make_tokenizer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

TOKENS: Final = [(7 * place) % 251 + 1 for place in range(96)]
ORIGINAL: Final = 32
"""Positions before the scaling: fewer than there are tokens."""
TINY: Final[dict[str, Any]] = {
    "vocab_size": 288,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "sliding_window": None,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
LATENT: Final[dict[str, Any]] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "head_dim": 8,
}
WINDOWS: Final[dict[str, Any]] = {
    "sliding_window": 16,
    "num_hidden_layers": 6,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
}
ROPES: Final[dict[str, dict[str, Any]]] = {
    "theta": {"rope_type": "default", "rope_theta": 500_000.0},
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "rope_theta": 10_000.0,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "rope_theta": 10_000.0,
    },
}
TYPES: Final[dict[str, dict[str, Any]]] = {
    **{
        kind: {}
        for kind in (
            *("cohere", "dots1", "ernie4_5", "falcon_h1", "gemma", "glm", "glm4", "glm4_moe"),
            *("granite", "granitemoe", "helium", "hunyuan_v1_dense", "internlm3", "llama"),
            *("mixtral", "mistral", "nemotron", "olmo2", "olmoe", "phi", "qwen2", "qwen2_moe"),
            *("qwen3", "qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2"),
        )
    },
    "gpt_neox": {"intermediate_size": 256},
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), LATENT),
}
LONG: Final[dict[str, Any]] = {
    # Behind the original context.
    "max_position_embeddings": 128,
    "original_max_position_embeddings": ORIGINAL,
    "rope_parameters": {
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [1.0 + place / 2 for place in range(8)],
    },
}
SHORT: Final[dict[str, Any]] = {
    # Within the original context, which is the longest that is served.
    "max_position_embeddings": 1024,
    "original_max_position_embeddings": 256,
    "rope_parameters": {
        **LONG["rope_parameters"],
        "original_max_position_embeddings": 256,
        "short_factor": [1.0 + place / 4 for place in range(8)],
    },
}
WINDOW: Final[dict[str, Any]] = {
    "sliding_window": 16,
    "use_sliding_window": True,
    "max_window_layers": 2,
    "rope_parameters": ROPES["theta"],
}
OSS: Final = WINDOW | {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": ROPES["yarn"] | {"beta_fast": 32.0, "beta_slow": 1.0},
}
ERNIE: Final[dict[str, Any]] = {
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_num_shared_experts": 1,
    "use_bias": False,
    "rope_parameters": ROPES["theta"],
}
FOUR_FACTORS: Final = {"short_factor": [1.0] * 4, "long_factor": [1.0, 1.5, 2.0, 2.5]}
GLOBAL, LOCAL = "full_attention", "sliding_attention"
LAYERS: Final[dict[str, dict[str, Any]]] = {
    "layers": {GLOBAL: ROPES["theta"], LOCAL: {**ROPES["theta"], "rope_theta": 20_000.0}},
    "one_theta": {one: {**ROPES["theta"], "rope_theta": 20_000.0} for one in (GLOBAL, LOCAL)},
    **{
        name: {GLOBAL: ROPES[name], LOCAL: {**ROPES["theta"], "rope_theta": 10_000.0}}
        for name in ("linear", "yarn")
    },
}
ORDERS: Final[dict[str, list[str]]] = {
    "second": [LOCAL, GLOBAL] * 2,
    "unordered": [LOCAL, LOCAL, GLOBAL, GLOBAL],
}
CASES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "ernie4_5_moe-theta": ("ernie4_5_moe", {**TINY, **ERNIE}),
    "minicpm3-theta": ("minicpm3", {**TINY, **LATENT, "rope_parameters": ROPES["theta"]}),
    "minicpm3-longrope": (
        "minicpm3",
        {**TINY, **LATENT, **LONG, "rope_parameters": LONG["rope_parameters"] | FOUR_FACTORS},
    ),
    **{
        f"{kind}-short": (kind, {**TINY, **SHORT})
        for kind in ("llama", "mistral", "phi3", "qwen2", "qwen3")
    },
    **{
        f"{kind}-window": (kind, {**TINY, **WINDOW})
        for kind in (
            *("cohere2", "dots1", "exaone4", "gemma2", "mistral", "mixtral", "phi3", "qwen2"),
            *("qwen2_moe", "qwen3", "qwen3_moe", "starcoder2"),
        )
    },
    **{
        f"cohere2-{name}": ("cohere2", {**TINY, **WINDOW, "layer_types": order})
        for name, order in ORDERS.items()
    },
    "gpt_oss-window": ("gpt_oss", {**TINY, **OSS, "rope_parameters": ROPES["theta"]}),
    **{
        f"gpt_oss-yarn-{name}": (
            "gpt_oss",
            {**TINY, **OSS, "rope_parameters": OSS["rope_parameters"] | {"truncate": rounded}},
        )
        for name, rounded in (("rounded", True), ("window", False))
    },
    "phi3-theta": ("phi3", {**TINY, "rope_parameters": ROPES["theta"]}),
    **{f"{kind}-longrope": (kind, {**TINY, **LONG}) for kind in ("llama", "phi3")},
    **{
        f"{kind}-{name}": (kind, {**TINY, **own, "rope_parameters": rope})
        for kind, own in TYPES.items()
        for name, rope in ROPES.items()
    },
    **{
        f"{kind}-{name}": (kind, {**TINY, **WINDOWS, "rope_parameters": rope})
        for kind in ("gemma3_text", "laguna", "mellum", "olmo3")
        for name, rope in LAYERS.items()
    },
}
COMPUTED: Final = ("-theta", "-layers", "-one_theta", "-longrope", "-second", "-short", "-window")
REFUSED_PLAIN: Final = {"glm-theta", "olmo3-layers"}
"""Of these, those that the classes can't compute."""
SCALED: Final = {
    f"{kind}-{rope}" for kind in ("glm4_moe", "mixtral", "qwen3_moe") for rope in ROPES
}
"""Others that are computed: their classes have no scaling, and get one."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write all models, with the logits that transformers computes."""
    folder = tmp_path_factory.mktemp("models")
    asked = [[name, kind, config] for name, (kind, config) in CASES.items()]
    packages = python_packages("reference.txt")
    subprocess.run(
        [sys.executable, str(PROGRAMS / "transformers_logits.py"), str(folder)],
        input=json.dumps({"tokens": TOKENS, "models": asked}),
        text=True,
        env={**os.environ, "PYTHONPATH": str(packages)},
        timeout=1500,
        check=True,
    )
    return folder


@pytest.mark.parametrize("name", CASES)
def test_the_logits_are_those_of_transformers(models: Path, name: str) -> None:
    folder = models / name
    fault = folder / "fault.txt"
    assert not fault.exists(), fault.read_text()
    make_tokenizer().save_pretrained(folder)
    expected = np.array(json.loads((folder / "logits.json").read_text()))
    try:
        context_tokens = 256 if name.endswith("-short") else None
        forward = open_checkpoint(
            folder, changes=FolderChanges(context_tokens=context_tokens)
        ).forward
    except OperationError as error:
        plain = name.endswith(COMPUTED) or name in SCALED
        assert not plain or name in REFUSED_PLAIN, error
        return
    tokens = mx.array([TOKENS], mx.int32)
    out = forward.prompt(tokens, forward.new_cache(), forward.embed(tokens))
    out = out[0] if isinstance(out, tuple) else out
    found = np.array(out.astype(mx.float32)).reshape(-1)[-len(expected) :]
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()
