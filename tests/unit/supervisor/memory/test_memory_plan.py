"""The share of memory that a worker gets, and the context that fits into it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmx.protocol.errors import LmxError
from lmx.protocol.models.default_engine import MLX_ENGINE
from lmx.protocol.models.memory import kv_bytes
from lmx.protocol.states import ModelKind
from lmx.supervisor.config.model import AddedModelConfig
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.memory.inspect_main import read_model_files
from lmx.supervisor.memory.measured import Measured
from lmx.supervisor.memory.plan import MemoryPlan, plan_memory
from tests.support.models.model_folders import (
    PLAIN_TOKEN_BYTES,
    plan_folder,
    read_folder,
    write_model,
    write_shard,
)

MIB = 1024**2
GIB = 1024**3
AMPLE = 64 * GIB


def plan(
    folder: Path,
    kind: ModelKind = ModelKind.CHAT,
    budget_bytes: int = AMPLE,
    measured: Measured | None = None,
    default_kv_bits: int | None = None,
    **model: Any,
) -> MemoryPlan:
    config = ModelConfig.model_validate(
        {"id": "m", "source": str(folder), "concurrency": 1, **model}
    )
    return plan_folder(config, kind, folder, budget_bytes, measured, default_kv_bits)


def tokens_bytes(count: int) -> int:
    return -(-count // 256) * 256 * PLAIN_TOKEN_BYTES


def test_all_parts_are_reserved(tmp_path: Path) -> None:
    found = plan(write_model(tmp_path, max_position_embeddings=8192))
    assert (found.context_tokens, found.weights_bytes) == (8192, 4000)
    assert found.kv_cache_bytes == tokens_bytes(8192) == kv_bytes(found.kv_layers, 8192)
    parts = (found.static_bytes, found.kv_cache_bytes, found.prefix_cache_bytes)
    assert found.reserve_bytes == sum(parts) + found.activation_bytes
    assert found.activation_bytes > 64 * MIB, "buffers that mlx keeps, and more"
    assert found.corrected_bytes(5 * GIB) == 5 * GIB + found.working_bytes


def test_ranks_share_layers_and_caches_and_have_the_rest_each(tmp_path: Path) -> None:
    folder = write_model(tmp_path, max_position_embeddings=8192, model_type="llama")
    weights = {"model.layers.0.mlp.up_proj.weight": 9000, "model.embed_tokens.weight": 700}
    write_shard(
        folder / "model.safetensors", **{name: ("BF16", size) for name, size in weights.items()}
    )
    files = read_model_files(folder, ModelKind.CHAT, MLX_ENGINE).memory
    one, two = plan(folder), plan(folder, ranks=2)
    assert files.divided_bytes == 9000
    assert two.static_bytes - one.static_bytes == 700 + files.process_bytes
    assert two.kv_cache_bytes == one.kv_cache_bytes
    assert two.prefix_cache_bytes == one.prefix_cache_bytes
    assert one.settings_key != two.settings_key


def test_the_cache_is_for_all_that_are_answered_at_a_time(tmp_path: Path) -> None:
    folder = write_model(tmp_path, max_position_embeddings=8192)
    assert plan(folder, concurrency=3).kv_cache_bytes == 3 * tokens_bytes(8192)
    assert plan(folder, concurrency=3, max_rows=3).kv_cache_bytes == 3 * tokens_bytes(8192)
    by_default = ModelConfig.model_validate({"id": "m", "source": str(folder)})
    assert by_default.kept_rows == 2
    assert by_default.model_copy(update={"max_rows": 1}).kept_rows == 1
    # Short contexts are batched all the same.
    assert plan(folder, context_length=512).kv_cache_bytes == tokens_bytes(4096)
    assert plan(folder, context_length=512).context_tokens == 512


@pytest.mark.parametrize(("own", "context"), [(2048, 2048), (8192, 4096)])
@pytest.mark.parametrize("kind", [ModelKind.CHAT, ModelKind.EMBEDDING])
def test_a_context_that_nobody_chose_is_no_longer_than_the_models_own(
    tmp_path: Path, own: int, context: int, kind: ModelKind
) -> None:
    folder = write_model(tmp_path, max_position_embeddings=own)
    model = AddedModelConfig(id="m", source=str(folder), context_length=4096, context_at_most=True)
    assert plan_folder(model, kind, folder, AMPLE, None).context_tokens == context


@pytest.mark.parametrize(
    ("native", "context"),
    [(1000, 1000), (32_768, 32_768), (131_072, 131_072), (131_000, 131_000)],
)
def test_an_unconfigured_context_is_the_models_own(
    tmp_path: Path, native: int, context: int
) -> None:
    folder = write_model(tmp_path, max_position_embeddings=native)
    assert plan(folder).context_tokens == context
    assert plan(folder, context_length=700).context_tokens == 700


@settings(deadline=None)  # It writes files.
@given(budget_bytes=st.integers(0, 8 * GIB), concurrency=st.integers(1, 4))
def test_an_unconfigured_context_is_what_the_budget_has_room_for(
    tmp_path_factory: pytest.TempPathFactory, budget_bytes: int, concurrency: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "heavy"
    # 64 KiB a token: 2 GiB for the longest context.
    write_model(folder, num_hidden_layers=512, max_position_embeddings=131_072)
    found = plan(folder, budget_bytes=budget_bytes, concurrency=concurrency)
    assert found.context_tokens is not None
    assert 2048 <= found.context_tokens <= 131_072
    assert found.context_tokens % 256 == 0
    if found.context_tokens > 32_768:
        assert found.reserve_bytes <= budget_bytes // 2
    assert found.reserve_bytes <= budget_bytes or found.context_tokens == 2048
    if found.context_tokens < 32_768:
        more = plan(
            folder, budget_bytes=budget_bytes, concurrency=concurrency,
            context_length=found.context_tokens + 256,
        )  # fmt: skip
        assert more.reserve_bytes > budget_bytes, "the longest that fits"


@pytest.mark.parametrize(
    ("budget_bytes", "models", "concurrency", "least", "most"),
    [
        # 64 KiB a token: 2 GiB for each request of 32,768 tokens, and up to 2 GiB for prefixes.
        (8 * GIB, 1, 1, 32_768, 32_768),
        (16 * GIB, 1, 1, 65_536, 131_071),
        (32 * GIB, 1, 1, 131_072, 131_072),
        (32 * GIB, 1, 2, 65_536, 131_071),
        # Others are to find room beside it.
        (32 * GIB, 2, 1, 65_536, 131_071),
        (32 * GIB, 4, 1, 32_768, 32_768),
        (128 * GIB, 4, 1, 131_072, 131_072),
    ],
)
def test_a_longer_context_takes_a_part_of_half_of_the_budget(
    tmp_path: Path, budget_bytes: int, models: int, concurrency: int, least: int, most: int
) -> None:
    folder = write_model(tmp_path, num_hidden_layers=512, max_position_embeddings=131_072)
    model = ModelConfig(id="m", source=str(folder), concurrency=concurrency)
    files, _ = read_folder(model, ModelKind.CHAT, folder)

    def planned(model: ModelConfig) -> MemoryPlan:
        return plan_memory(model, ModelKind.CHAT, files, None, budget_bytes, None, models=models)[1]

    found = planned(model)
    assert found.context_tokens is not None
    assert least <= found.context_tokens <= most
    if found.context_tokens > 32_768:
        assert found.reserve_bytes <= budget_bytes // 2 // models
    if 32_768 < found.context_tokens < 131_072:
        longer = planned(model.model_copy(update={"context_length": found.context_tokens + 256}))
        assert longer.reserve_bytes > budget_bytes // 2 // models, "the longest that fits"


def test_a_share_that_was_set_is_for_the_longest_context_that_fits_in_it(tmp_path: Path) -> None:
    folder = write_model(tmp_path, num_hidden_layers=512, max_position_embeddings=131_072)
    context = plan(folder, memory_bytes="8GiB", budget_bytes=9 * GIB).context_tokens
    assert context is not None
    assert 65_536 <= context < 131_072


def test_a_model_that_does_not_say_its_context_is_left_to_the_worker(tmp_path: Path) -> None:
    folder = write_model(tmp_path, max_position_embeddings=None)
    found = plan(folder)
    assert (found.context_tokens, found.kv_cache_bytes) == (None, tokens_bytes(4096))
    assert plan(folder, context_length=8192).context_tokens == 8192


def test_more_context_than_the_model_has_is_left_to_the_worker(tmp_path: Path) -> None:
    found = plan(write_model(tmp_path, max_position_embeddings=5000), context_length=9000)
    assert (found.context_tokens, found.kv_cache_bytes) == (9000, tokens_bytes(5000))


@pytest.mark.parametrize(
    ("layers", "prefix_bytes"),
    [
        (2, 256 * MIB),  # never less
        (128, 32_768 * 64 * PLAIN_TOKEN_BYTES),  # one full context
        (4000, 2048 * MIB),  # never more
    ],
)
def test_the_prefix_cache_is_one_context_within_bounds(
    tmp_path: Path, layers: int, prefix_bytes: int
) -> None:
    folder = write_model(tmp_path, num_hidden_layers=layers, max_position_embeddings=32_768)
    assert plan(folder).prefix_cache_bytes == prefix_bytes
    small = plan(folder, budget_bytes=800 * MIB)
    assert small.prefix_cache_bytes == min(prefix_bytes, 200 * MIB), "a fourth at most"


def test_the_prefix_cache_can_be_set_and_switched_off(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    assert plan(folder, prefix_cache={"memory_bytes": "1MiB"}).prefix_cache_bytes == MIB
    off = {"enabled": False, "memory_bytes": "1MiB"}
    assert plan(folder, prefix_cache=off).prefix_cache_bytes == 0


def test_a_share_that_was_set_by_hand_is_kept(tmp_path: Path) -> None:
    folder = write_model(tmp_path, num_hidden_layers=512, max_position_embeddings=32_768)
    found = plan(folder, memory_bytes="1GiB", concurrency=2)
    assert (found.reserve_bytes, found.prefix_cache_bytes) == (GIB, 256 * MIB)
    assert found.static_bytes + found.working_bytes <= GIB, "all of it fits in there"
    assert found.corrected_bytes(2 * GIB) == 2 * GIB
    less = plan(folder, memory_bytes="300MiB", context_length=4096, concurrency=4)
    assert less.kv_cache_bytes == kv_bytes(less.kv_layers, 4096), "one request always fits"


@pytest.mark.parametrize("kind", [ModelKind.EMBEDDING, ModelKind.RERANK])
def test_what_does_not_generate_has_no_kv_cache(tmp_path: Path, kind: ModelKind) -> None:
    folder = write_model(tmp_path)
    write_model(folder / "2_Dense")
    found, one = plan(folder, kind), plan(write_model(tmp_path / "one"), kind)
    assert (found.kv_cache_bytes, found.prefix_cache_bytes, found.kv_layers) == (None, 0, ())
    assert found.context_tokens is None
    assert found.static_bytes - one.static_bytes == 4000, "of the layers in their own folders"


@pytest.mark.parametrize("kind", [ModelKind.EMBEDDING, ModelKind.RERANK])
def test_a_text_that_the_budget_has_no_room_for_is_not_taken(
    tmp_path: Path, kind: ModelKind
) -> None:
    folder = write_model(tmp_path, max_position_embeddings=32_768)
    assert plan(folder, kind).context_tokens is None
    longest_bytes = plan(folder, kind).reserve_bytes
    assert longest_bytes > 4 * 32_768**2, "attention has each token with each"
    assert plan(folder, kind, budget_bytes=longest_bytes).context_tokens is None
    shorter = plan(folder, kind, budget_bytes=longest_bytes - 1)
    assert shorter.context_tokens is not None
    assert shorter.context_tokens % 256 == 0
    more = plan(folder, kind, context_length=shorter.context_tokens + 256)
    assert shorter.reserve_bytes <= longest_bytes // 2 < more.reserve_bytes
    assert plan(folder, kind, budget_bytes=1).context_tokens == 512
    set_by_hand = plan(folder, kind, memory_bytes="2GiB", budget_bytes=MIB)
    assert 512 < (set_by_hand.context_tokens or 0) < 32_768
    configured = plan(folder, kind, budget_bytes=1, context_length=4096)
    assert configured.context_tokens == 4096
    short = write_model(tmp_path / "short", max_position_embeddings=512)
    assert plan(short, kind, budget_bytes=1).context_tokens is None


@pytest.mark.parametrize("file", ['{"max_seq_length": 256}', '{"max_seq_length": -1}', "[]"])
def test_an_encoder_takes_what_it_was_trained_with(tmp_path: Path, file: str) -> None:
    folder = write_model(tmp_path, max_position_embeddings=8192)
    whole, written = plan(folder, ModelKind.EMBEDDING), plan(folder)
    (folder / "sentence_bert_config.json").write_text(file)
    trained = plan(folder, ModelKind.EMBEDDING)
    assert (trained.working_bytes < whole.working_bytes) == ("256" in file)
    if "256" in file:
        assert plan(folder, ModelKind.EMBEDDING, budget_bytes=1).context_tokens is None
    assert plan(folder) == written, "of a model that writes it says nothing"
    # Somebody may ask for more than that.
    longer = plan(folder, ModelKind.EMBEDDING, context_length=8192)
    assert longer.working_bytes == whole.working_bytes


def test_nothing_is_counted_of_an_engine_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = plan(tmp_path, memory_bytes="10MiB")
    assert (found.kv_cache_bytes, found.kv_layers, found.reserve_bytes) == (
        None, (), found.static_bytes,
    )  # fmt: skip


def test_a_draft_model_is_counted(tmp_path: Path) -> None:
    folder, draft = write_model(tmp_path / "m"), write_model(tmp_path / "d", weights_bytes=9 * MIB)
    speculation = {"method": "draft_model", "draft": str(draft)}
    with_draft, alone = plan(folder, speculation=speculation), plan(folder)
    assert with_draft.static_bytes - alone.static_bytes == 9 * MIB
    assert with_draft.kv_cache_bytes == 2 * (alone.kv_cache_bytes or 0)
    with pytest.raises(LmxError, match=r"does not exist"):
        plan(folder, speculation=speculation | {"draft": str(tmp_path / "none")})


def test_what_is_found_beside_a_model_is_counted(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    alone = plan(folder)
    write_model(folder / "drafter", weights_bytes=9 * MIB)
    found = plan(folder)
    assert found.static_bytes - alone.static_bytes == 9 * MIB
    assert found.kv_cache_bytes == 2 * (alone.kv_cache_bytes or 0)
    assert found.settings_key != alone.settings_key, "it is measured by itself"
    for off in ("none", "prompt_lookup"):
        assert plan(folder, speculation={"method": off}).static_bytes == alone.static_bytes
    assert plan(folder, speculation=None).static_bytes == alone.static_bytes
    (folder / "drafter" / "config.json").write_text("[]")
    assert plan(folder).static_bytes == alone.static_bytes, "what can't be read takes nothing"


def test_heads_in_a_models_own_weights_are_found(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    alone = plan(folder)
    tensors = {"w": ("BF16", 2000), "mtp.layers.0.input_layernorm.weight": ("BF16", 2000)}
    write_shard(folder / "model.safetensors", **tensors)
    heads = plan(folder)
    assert 2 * (heads.kv_cache_bytes or 0) == 3 * (alone.kv_cache_bytes or 0)
    assert plan(folder, speculation={"method": "none"}).kv_cache_bytes == alone.kv_cache_bytes


def quantizable(tmp_path: Path) -> Path:
    return write_model(tmp_path / "q", head_dim=64, hidden_size=128, max_position_embeddings=8192)


def test_quantized_caches_take_less(tmp_path: Path) -> None:
    folder = quantizable(tmp_path)
    plain, half, quarter = (plan(folder, kv_bits=bits) for bits in ("none", 8, 4))
    numbers = 8192 * 2 * 2 * 2 * 64
    assert plain.kv_cache_bytes == 2 * numbers
    assert half.kv_cache_bytes == numbers + numbers // 64 * 4
    assert quarter.kv_cache_bytes == numbers // 2 + numbers // 64 * 4
    assert (plain.kv_bits, half.kv_bits, quarter.kv_bits) == (None, 8, 4)
    # One layer is expanded at a time.
    assert half.activation_bytes > plain.activation_bytes + numbers // 2
    assert len({one.settings_key for one in (plain, half, quarter)}) == 3


def test_the_bits_are_the_models_own_else_the_default(tmp_path: Path) -> None:
    folder = quantizable(tmp_path)
    assert plan(folder).kv_bits is None
    assert plan(folder, default_kv_bits=8).kv_bits == 8
    assert plan(folder, default_kv_bits=8, kv_bits=4).kv_bits == 4
    assert plan(folder, default_kv_bits=8, kv_bits="none").kv_bits is None


def test_caches_that_cannot_be_quantized_stay_as_they_are_but_not_if_it_was_asked(
    tmp_path: Path,
) -> None:
    folder = write_model(tmp_path)
    assert plan(folder, default_kv_bits=8) == plan(folder)
    with pytest.raises(LmxError, match=r"no KV cache that can be quantized .*Leave kv_bits out"):
        plan(folder, kv_bits=8)


def test_the_cache_has_a_limit_of_its_own(tmp_path: Path) -> None:
    folder = write_model(tmp_path, max_position_embeddings=8192)
    limit = tokens_bytes(5000)
    assert plan(folder, concurrency=3, kv_cache_bytes=limit).kv_cache_bytes == limit
    assert plan(folder, kv_cache_bytes=GIB).kv_cache_bytes == tokens_bytes(8192)
    limited = plan(folder, kv_cache_bytes=limit)
    assert limited.settings_key != plan(folder).settings_key, "it is measured by itself"


def test_a_layer_is_counted_for_the_heads_of_the_model_itself(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    alone, heads = plan(folder), plan(folder, speculation={"method": "mtp"})
    assert heads.static_bytes == alone.static_bytes, "their weights are among the model's"
    assert 2 * (heads.kv_cache_bytes or 0) == 3 * (alone.kv_cache_bytes or 0)


def test_nonsense_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LmxError, match=r"makes no sense: 100000 layers"):
        plan(write_model(tmp_path, num_hidden_layers=100_000))


def test_what_was_measured_takes_the_place_of_the_estimate(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    measured = Measured.load(tmp_path / "measured.json")
    first = plan(folder, measured=measured)
    measured.record(first.settings_key, 300 * MIB, 0)
    second = plan(folder, measured=measured)
    assert second.static_bytes == 300 * MIB
    assert second.reserve_bytes == 300 * MIB + first.working_bytes
    measured.record(first.settings_key, 310 * MIB, 5 * GIB)
    third = plan(folder, measured=measured)
    assert (third.static_bytes, third.reserve_bytes) == (310 * MIB, 5 * GIB)
    assert plan(folder, measured=measured, concurrency=2).peak_bytes == 0, "other settings"
    write_model(tmp_path / "m", weights_bytes=5000)
    assert plan(folder, measured=measured).peak_bytes == 0, "another revision"


def test_a_model_that_took_a_little_more_than_was_estimated_stays(tmp_path: Path) -> None:
    """Its context is as long as the estimate allows, which leaves nothing of the budget."""
    heads = {"num_attention_heads": 64, "head_dim": 128, "max_position_embeddings": 32_768}
    folder = write_model(tmp_path / "m", **heads)
    measured, budget_bytes = Measured.load(tmp_path / "measured.json"), 2 * GIB
    first = plan(folder, budget_bytes=budget_bytes, measured=measured)
    assert budget_bytes - 100 * MIB < first.reserve_bytes <= budget_bytes
    more_bytes = first.static_bytes + 100 * MIB
    assert first.corrected_bytes(more_bytes) == budget_bytes
    measured.record(first.settings_key, more_bytes, 3 * GIB)
    assert plan(folder, budget_bytes=budget_bytes, measured=measured).reserve_bytes == budget_bytes
    # What does not even fit without work is refused.
    assert first.corrected_bytes(3 * GIB) > budget_bytes
    small = plan(folder, budget_bytes=100 * MIB)
    assert small.reserve_bytes > 100 * MIB and small.corrected_bytes(50 * MIB) > 100 * MIB
