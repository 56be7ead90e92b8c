"""A small real model with eyes: SmolLM2-135M-Instruct with a vision part of lmx's own, which was
trained on pictures of one shape of one colour (``shapes_vision.safetensors``, 1.7 million
parameters). It has Idefics 3's form.

It knows colours and backgrounds, and mostly shapes: "The image shows a small red square on a black
background." Two pictures in a prompt work.
"""

import json
import shutil
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer

_VISION: Final = Path(__file__).parent / "shapes_vision.safetensors"
_SIZE: Final = 112
_NEW_TOKENS: Final = (
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    *("<fake_token_around_image>", "<image>"),
    *(f"<|reserved_special_token_{number}|>" for number in range(88)),
    "<end_of_utterance>",
)
_TEMPLATE: Final = """\
{% for message in messages %}{% if loop.first and message['role'] != 'system' %}\
{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\
<|im_end|>\\n' }}{% endif %}{{ '<|im_start|>' + message['role'] + '\\n' }}\
{% if message['content'] is string %}{{ message['content'] }}{% else %}\
{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>' }}\
{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
_HALVES: Final = [0.5, 0.5, 0.5]


def assemble_shapes_model(language_model: Path, folder: Path) -> Path:
    """Write the model into ``folder``, unless it is there, and return that. ``language_model`` is
    the folder of SmolLM2 in float32."""
    if (folder / "config.json").exists():
        return folder
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    _write_weights(language_model, unfinished)
    _write_tokenizer(language_model, unfinished)
    _write_processor(unfinished)
    # Last, because its presence says that all is there.
    _write(unfinished / "config.json", _config(language_model))
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return folder


def _write_weights(language_model: Path, folder: Path) -> None:
    language: dict[str, mx.array] = {}
    for file in sorted(language_model.glob("*.safetensors")):
        language |= _load(file)
    embeddings = language.pop("model.embed_tokens.weight")
    new_line = Tokenizer.from_file(str(language_model / "tokenizer.json")).encode("\n").ids[0]
    count = len(_NEW_TOKENS)
    weights = {
        **{f"model.text_model.{name[6:]}": array for name, array in language.items()},
        "model.text_model.embed_tokens.weight": mx.concatenate(
            [embeddings, mx.repeat(embeddings[new_line : new_line + 1], count, 0)]
        ),
        # Nobody draws what looks like this rare token.
        "lm_head.weight": mx.concatenate([embeddings, mx.repeat(embeddings[4:5], count, 0)]),
        **_load(_VISION),
    }
    weights = {name: mx.contiguous(array.astype(mx.float32)) for name, array in weights.items()}
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})


def _load(file: Path) -> dict[str, mx.array]:
    return cast(dict[str, mx.array], mx.load(str(file)))


def _write_tokenizer(language_model: Path, folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(language_model / "tokenizer.json"))
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in _NEW_TOKENS]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((language_model / "tokenizer_config.json").read_text())
    config.pop("added_tokens_decoder", None)
    config |= {"chat_template": _TEMPLATE, "processor_class": "Idefics3Processor"}
    _write(folder / "tokenizer_config.json", config)
    (folder / "chat_template.jinja").write_text(_TEMPLATE)


def _write_processor(folder: Path) -> None:
    _write(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "Idefics3ImageProcessor",
            "processor_class": "Idefics3Processor",
            "do_convert_rgb": True,
            "do_resize": True,
            "size": {"height": _SIZE, "width": _SIZE},
            "resample": 2,
            "do_image_splitting": False,
            "max_image_size": {"longest_edge": _SIZE},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": _HALVES,
            "image_std": _HALVES,
            "do_pad": True,
        },
    )
    _write(
        folder / "processor_config.json",
        {"processor_class": "Idefics3Processor", "image_seq_len": 16},
    )
    _write(
        folder / "generation_config.json",
        {"bos_token_id": 1, "eos_token_id": [2, 49279], "pad_token_id": 2},
    )


def _config(language_model: Path) -> dict[str, Any]:
    text = json.loads((language_model / "config.json").read_text())
    text.pop("architectures", None)
    shared = {"vocab_size": 49280, "tie_word_embeddings": False, "pad_token_id": 2}
    return {
        "model_type": "idefics3",
        "architectures": ["Idefics3ForConditionalGeneration"],
        "image_token_id": 49190,
        "scale_factor": 2,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
        **shared,
        "text_config": text | shared,
        "vision_config": {
            "model_type": "idefics3_vision",
            "hidden_size": 160,
            "num_attention_heads": 4,
            "num_hidden_layers": 4,
            "intermediate_size": 640,
            "patch_size": 14,
            "image_size": _SIZE,
            "num_channels": 3,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-6,
        },
    }


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False))
