"""What `lmx estimate` says, without a supervisor."""

import hashlib
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from rich.console import Console

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.protocol.messages.inventory import StartDownload
from lmx.protocol.models.decode_limits import AT_REST_BYTES, DecodeLimits
from lmx.protocol.models.kind import read_kind
from lmx.protocol.states import ModelKind, QuantizedBits
from lmx.supervisor.cli import download
from lmx.supervisor.cli.download import search_models
from lmx.supervisor.cli.views import prospect
from lmx.supervisor.cli.views.estimate import print_estimate
from lmx.supervisor.cli.views.prospect import hints
from lmx.supervisor.config.schema import Config
from lmx.supervisor.inventory.download_records import requested_download
from lmx.supervisor.memory.fetched import fetched_folder
from lmx.supervisor.memory.measured import Measured
from lmx.supervisor.memory.plan import estimate_memory, plan_of
from lmx.supervisor.processes import preview
from lmx.supervisor.processes.preview import Look
from lmx.supervisor.state.home import Home
from tests.support.fakes.fake_hub import Fault, fake_hub
from tests.support.models.model_folders import plan_folder, read_folder, write_model, write_shard

pytestmark = pytest.mark.long

MIB = 1024**2


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub is asked by programs whose start alone may take a minute on a busy machine."""
    monkeypatch.setattr(preview, "_LOOK_S", 600.0)


def config_of(source: Path | str, budget: str = "4GiB", **model: Any) -> Config:
    entry = {"id": "small", "aliases": ["s"], "source": str(source), **model}
    memory = {"budget_bytes": budget, "os_reserve_bytes": 1}
    return Config.model_validate({"memory": memory, "models": [entry]})


def printed(
    capsys: pytest.CaptureFixture[str], config: Config, home: Path, model: str
) -> dict[str, Any]:
    print_estimate(config, Home(home), model, True)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def shown(capsys: pytest.CaptureFixture[str], config: Config, home: Path, model: str) -> str:
    """What people see, with the white space of its columns as one blank each."""
    print_estimate(config, Home(home), model, False)
    return " ".join(capsys.readouterr().out.split())


def test_the_lines_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(write_model(tmp_path / "m"))
    found = printed(capsys, config, tmp_path, "s")
    names = ("weights", "draft", "process", "kv_cache", "prefix_cache", "activation", "buffers")
    assert sum(found[f"{name}_bytes"] for name in names) == found["estimated_bytes"]
    assert (found["media"], found["media_bytes"], found["image_tokens"]) == ([], 0, None)
    assert found["decoder_bytes"] == 0, "a model of text alone has none"
    assert found["reserve_bytes"] == found["estimated_bytes"]
    assert (found["model"], found["kind"], found["fits"]) == ("small", "chat", True)
    assert printed(capsys, config, tmp_path, str(tmp_path / "m"))["weights_bytes"] == 4000


def test_what_seeing_takes_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    eyes = {"hidden_size": 1152, "num_heads": 16, "patch_size": 16, "spatial_merge_size": 2}
    folder = write_model(tmp_path / "m", model_type="qwen3_vl", vision_config=eyes)
    write_shard(folder / "eyes.safetensors", **{"vision_tower.w": ("BF16", 5 * MIB)})
    config = config_of(folder)
    found = printed(capsys, config, tmp_path, "s")
    assert found["weights_bytes"] == 4000 + 5 * MIB
    assert found["media_weights_bytes"] == 5 * MIB
    assert found["media"] == ["image"]
    assert found["image_tokens"] == 768
    without = estimated(write_model(tmp_path / "w", model_type="qwen3_vl", vision_config=eyes))
    seeing = found["media_bytes"] + found["decoder_bytes"] + 5 * MIB
    assert found["decoder_bytes"] == DecodeLimits().process_bytes
    assert found["estimated_bytes"] == found["reserve_bytes"] == without + seeing
    out = shown(capsys, config, tmp_path, "s")
    assert "5 MiB of them see and hear" in out
    assert "which is about 768 tokens" in out
    assert "decoder 1.1 GiB a process that decodes" in out
    # A model may be given less.
    less = config_of(folder, media={"decode_memory_bytes": "100MiB"})
    assert printed(capsys, less, tmp_path, "s")["decoder_bytes"] == AT_REST_BYTES + 100 * MIB


def estimated(folder: Path) -> int:
    config = config_of(folder).models[0]
    files, draft = read_folder(config, ModelKind.CHAT, folder)
    return estimate_memory(config, ModelKind.CHAT, files, draft, 4 * 1024**3).total_bytes


def test_quantized_caches_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_model(tmp_path / "m", head_dim=64, hidden_size=128)
    own, default = config_of(folder, kv_bits=4), config_of(folder)
    default = default.model_copy(
        update={"memory": default.memory.model_copy(update={"kv_bits": 8})}
    )
    plain, half, quarter = (
        printed(capsys, config, tmp_path, "s") for config in (config_of(folder), default, own)
    )
    assert [one["kv_bits"] for one in (plain, half, quarter)] == [None, 8, 4]
    assert plain["kv_cache_bytes"] > half["kv_cache_bytes"] > quarter["kv_cache_bytes"]
    assert "4 bits a number" in shown(capsys, own, tmp_path, "s")


def test_adapters_of_which_the_hub_says_nothing_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their size is not known, so the sum is too small."""

    def silent(*_: object) -> None:
        raise OperationError(ErrorCode.DOWNLOAD_FAILED, "out of reach")

    monkeypatch.setattr(prospect, "look_now", silent)
    config = config_of(write_model(tmp_path / "m"), adapters={"tuned": "nobody/no-such-adapter"})
    assert printed(capsys, config, tmp_path, "s")["adapters_not_fetched"] == ["tuned"]
    unknown = "the hub does not say how large they are: the adapters tuned"
    assert unknown in shown(capsys, config, tmp_path, "s")
    assert "not fetched" not in shown(capsys, config_of(tmp_path / "m"), tmp_path, "s")


def test_what_was_measured_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, home = config_of(write_model(tmp_path / "m")), Home(tmp_path)
    measured = Measured.load(tmp_path / "measured.json")
    home.state.mkdir()
    key = plan_folder(
        config.models[0], ModelKind.CHAT, tmp_path / "m", 4 * 1024**3, measured
    ).settings_key
    Measured.load(home.measured).record(key, 77 * MIB, 9000 * MIB)
    found = printed(capsys, config, tmp_path, "small")
    assert found["measured_static_bytes"] == 77 * MIB
    assert found["measured_peak_bytes"] == found["reserve_bytes"] == 9000 * MIB
    assert not found["fits"]
    out = shown(capsys, config, tmp_path, "small")
    assert "measured when loaded" in out
    assert "does not fit the budget of 4.0 GiB: 4.8 GiB too much" in out


def test_people_see_each_line_and_what_to_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_model(tmp_path / "m", num_hidden_layers=512)
    config = config_of(folder, "1GiB", context_length=1000, concurrency=20)
    out = shown(capsys, config, tmp_path, "small")
    for line in ("weights", "process", "KV cache", "1000 tokens x 20", "prefix cache", "buffers"):
        assert line in out
    for hint in ("prefix_cache.memory_bytes", "concurrency 19", "context_length below 1000"):
        assert hint in out
    fitting = config_of(write_model(tmp_path / "n"))
    assert "fits the budget of 4.0 GiB" in shown(capsys, fitting, tmp_path, "small")


def test_what_is_not_there_is_said_so(tmp_path: Path) -> None:
    config = config_of("org/name")
    with pytest.raises(LmxError, match=r"no model is named 'x', .* known: small"):
        print_estimate(config, Home(tmp_path), "x", True)
    assert fetched_folder("org/name", Home(tmp_path), {"HF_HOME": str(tmp_path)}) is None


def test_what_can_not_be_loaded_is_no_estimate(tmp_path: Path) -> None:
    def refuses(model: Path | str, words: str) -> None:
        with pytest.raises(LmxError, match=words):
            print_estimate(config_of("org/name"), Home(tmp_path), str(model), True)

    empty = write_model(tmp_path / "empty")
    for shard in empty.glob("*.safetensors"):
        shard.unlink()
    refuses(empty, f"no weights found in {empty}")
    refuses(write_model(tmp_path / "odd", hidden_size=-64), "hidden_size is -64")
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    refuses(file, "m.gguf .* is truncated or damaged")
    refuses("./none.gguf", "there is no ./none.gguf")
    refuses("", "give the name of a model, or a folder")


def write_gguf(path: Path) -> Path:
    """Write a file of 8 MiB of weights, which is more than is read of its head at first."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(1024)
    writer.add_block_count(2)
    writer.add_feed_forward_length(2048)
    writer.add_head_count(16)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(1000)
    writer.add_token_list([f"token {n}" for n in range(1000)])
    writer.add_tensor("blk.0.ffn_up.weight", np.ones((2048, 1024), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


WANTED = {"weights_bytes", "kv_cache_bytes", "reserve_bytes", "longest_context", "kind", "fits"}


def test_before_a_download_it_says_what_it_says_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the heads of the weights come from the hub, also of a file whose head is long."""
    folder = write_model(tmp_path / "m", weights_bytes=3 * MIB, max_position_embeddings=40_960)
    write_shard(folder / "b.safetensors", **{f"layer.{n}.w": ("BF16", 64) for n in range(3000)})
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("---\npipeline_tag: feature-extraction\n---\n")
    home, config = tmp_path / "home", config_of("org/other")
    with fake_hub() as hub:
        hub.add_folder("mlx-community/Qwen3-8B-4bit", folder)
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        before = printed(capsys, config, home, "qwen3-8b")
        assert before["kind"] == "embedding"
        assert hub.served["model.safetensors"] < MIB
        assert hub.served["b.safetensors"] > 2 * 128 * 1024, (
            "its head is longer than the first look"
        )
        look = before["look"]
        assert look["missing_bytes"] == look["total_bytes"] > 3 * MIB
        assert "mlx-community/Qwen3-8B-4bit: 3" in shown(capsys, config, home, "Qwen3-8B")
        with pytest.raises(LmxError, match="the hub has no repository org/gone"):
            print_estimate(config, Home(home), "org/gone", True)
    after = printed(capsys, config, home, str(folder))
    assert {name: before[name] for name in WANTED} == {name: after[name] for name in WANTED}
    assert (before["path"], after["look"]) == (None, None)


def test_a_hub_that_fails_for_a_moment_does_not_refuse_what_is_quantized(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMX_HOME", str(tmp_path))
    wanted = requested_download(StartDownload("org/m", None, None, QuantizedBits.FOUR))

    def report(problem: str, code: ErrorCode) -> str:
        look = Look(2 * MIB, MIB, 9 * MIB, "/cache", problem=problem, problem_code=code.value)
        monkeypatch.setattr(preview, "look_now", lambda *_args: look)
        download._report_prospect(Home(tmp_path), wanted)
        return capsys.readouterr().out

    out = report("the hub is out of reach", ErrorCode.DOWNLOAD_FAILED)
    assert out.splitlines() == [
        "org/m: 2 MiB; 1 MiB to download, 9 MiB free in /cache",
        "how much it takes quantized to 4 bits is not known yet: the hub is out of reach",
    ]
    with pytest.raises(LmxError, match="is quantized already"):
        report("org/m is quantized already", ErrorCode.MODEL_SOURCE_INVALID)


def test_a_gguf_file_is_known_by_its_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the hub or here: it says what its conversion would take."""
    file = write_gguf(tmp_path / "small-Q8_0.gguf")
    home, config = tmp_path / "home", config_of("org/other")
    here = printed(capsys, config, home, str(file))
    with fake_hub() as hub:
        hub.add("org/gguf", {file.name: file.read_bytes()})
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        print_estimate(config, Home(home), "org/gguf", True, file.name)
        there = json.loads(capsys.readouterr().out)
    assert {name: here[name] for name in WANTED} == {name: there[name] for name in WANTED}
    assert hub.served[file.name] < file.stat().st_size
    assert here["look"]["missing_bytes"] == 0 < there["look"]["missing_bytes"]
    assert here["look"]["made_bytes"] == there["look"]["made_bytes"] == here["weights_bytes"]
    assert "it is converted before it is loaded" in shown(capsys, config, home, str(file))
    with pytest.raises(LmxError, match="is no repository of the hub"):
        print_estimate(config, Home(home), str(file), True, file.name)


def test_models_are_found_on_the_hub(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those in the form that is loaded; the words may stand anywhere in a name."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("LMX_HOME", str(tmp_path))
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        for name in ("org/Qwen3-Coder-4bit", "org/Qwen3-8B-4bit", "org/Llama"):
            hub.add(name, {})
        search_models(Home(tmp_path), "coder qwen3")
        (asked,) = hub.searched
        assert (asked["filter"], asked["sort"]) == ("mlx", "downloads")
        head, row, *_ = capsys.readouterr().out.splitlines()
        assert head.split() == ["MODEL", "WEIGHTS", "FITS", "DOWNLOADS", "GATED"]
        assert row.split() == ["org/Qwen3-Coder-4bit", "5", "KiB", "yes", "1,000"]
        # In a narrow terminal columns are left out, and a long name takes several lines.
        long = f"org/{'a-long-name-' * 5}coder"
        hub.add(long, {})
        for width in (80, 60):
            monkeypatch.setattr(
                download, "make_console", lambda width=width: Console(width=width, soft_wrap=True)
            )
            search_models(Home(tmp_path), "coder")
            head, *rows, _ = capsys.readouterr().out.splitlines()
            assert head.split() == ["MODEL", "WEIGHTS", "FITS"]
            names = "".join(row.partition(" ")[0] for row in rows)
            assert names == f"org/Qwen3-Coder-4bit{long}"
            assert sum("5 KiB" in row and "yes" in row for row in rows) == 2
        with pytest.raises(LmxError, match="has no model in MLX form with 'zzz'"):
            search_models(Home(tmp_path), "zzz")
        hub.faults["api"] = Fault(503)
        with pytest.raises(LmxError, match="the hub is out of order"):
            search_models(Home(tmp_path), "qwen3")


def test_hints_suit_the_model(tmp_path: Path) -> None:
    def reported(path: Path, **model: Any) -> str:
        chosen = config_of(path, **model).models[0]
        kind = read_kind(path)
        files, draft = read_folder(chosen, kind, path)
        estimate = estimate_memory(chosen, kind, files, draft, MIB)
        plan = plan_of(chosen, kind, files, draft, estimate, None)
        return "; ".join(hints(chosen, estimate, plan, MIB))

    chat = write_model(tmp_path / "m")
    assert "concurrency 1 saves KV cache" in reported(chat, concurrency=2)
    assert "concurrency 2 or less saves" in reported(chat, concurrency=3)
    encoder = write_model(tmp_path / "e", model_type="bert")
    assert "KV cache" not in reported(encoder, concurrency=3, context_length=512)


def test_folders_of_fetched_models_are_found(tmp_path: Path) -> None:
    home = Home(tmp_path)
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = write_model(repository / "snapshots" / "c0ffee")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")
    for environment in ({"HF_HOME": str(tmp_path)}, {"HF_HUB_CACHE": str(tmp_path / "hub")}):
        assert fetched_folder("org/name", home, environment) == snapshot
        assert fetched_folder("org/name@c0ffee", home, environment) == snapshot
    file = tmp_path / "m.Q4_0.gguf"
    path_hash = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:8]
    converted = write_model(home.models / f"m.Q4_0-float32-{path_hash}")
    assert fetched_folder(str(file), home, {}) == converted
