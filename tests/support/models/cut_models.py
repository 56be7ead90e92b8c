"""A real model with few of its layers: it is imported, loaded and computed in a fraction of the
time, and its answers make no sense."""

import json
import shutil
from pathlib import Path
from typing import Any

import gguf

_LAYERS, _WORDS = 1, 2048


def cut_gguf(source: Path, target: Path) -> Path:
    """Write the first layers and words of the model in ``source`` to ``target``, unless that is
    there, and return it."""
    if target.exists():
        return target
    target.parent.mkdir(exist_ok=True)
    reader = gguf.GGUFReader(source)
    kind = str(reader.fields["general.architecture"].contents())
    words = set(reader.fields["tokenizer.ggml.tokens"].contents()[:_WORDS])
    made = target.with_suffix(".part")
    writer = gguf.GGUFWriter(made, kind)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value: Any = field.contents()
        if name == "tokenizer.ggml.merges":
            value = [merge for merge in value if merge.replace(" ", "") in words]
        elif isinstance(value, list):
            value = value[:_WORDS]
        elif name in (f"{kind}.block_count", f"{kind}.vocab_size"):
            value = _LAYERS if name.endswith("count") else _WORDS
        writer.add_key_value(name, value, field.types[0], field.types[-1])
    for tensor in reader.tensors:
        _, _, rest = tensor.name.partition("blk.")
        if not rest or int(rest.partition(".")[0]) < _LAYERS:
            rows = tensor.data[:_WORDS] if "token_embd" in tensor.name else tensor.data
            writer.add_tensor(tensor.name, rows, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made.rename(target)


def cut_folder(source: Path, target: Path, layers: int) -> Path:
    """Write a model with all the words of the one in ``source``, and with its first layers, to
    ``target``, and return that."""
    import mlx.core as mx

    target.mkdir(parents=True)
    for path in source.glob("*.json*"):
        shutil.copy(path, target)
    config = json.loads((source / "config.json").read_text()) | {"num_hidden_layers": layers}
    (target / "config.json").write_text(json.dumps(config))
    weights: dict[str, mx.array] = {}
    for shard in source.glob("*.safetensors"):
        for name, array in mx.load(str(shard)).items():  # type: ignore[union-attr]
            _, _, rest = name.partition("layers.")
            if not rest or int(rest.partition(".")[0]) < layers:
                weights[name] = array
    mx.save_safetensors(str(target / "model.safetensors"), weights, {"format": "mlx"})
    (target / "model.safetensors.index.json").unlink(missing_ok=True)
    return target
