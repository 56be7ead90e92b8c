"""Tiny random models that see and hear, in whole folders: config.json, weights, a tokenizer with
the family's media tokens, a chat template that has a place for each picture, sound and video, and
the settings of the family's processor. And what mlx-vlm alone makes of a prompt with media.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_vlm.models.cache import make_prompt_cache
from mlx_vlm.models.gemma3n import vision as mobilenet
from mlx_vlm.models.gemma4 import processing_gemma4
from mlx_vlm.utils import VideoMetadata, load_processor, prepare_inputs
from mlx_vlm.utils import load_model as load_alone
from PIL import Image

from lmx.worker.media.values import Media, Picture, Sound, Video
from lmx.worker.mlx.model.patches.mlx_vlm import patch_mlx_vlm
from tests.support.models.media_families import FAMILIES, FIRST_MEDIA_TOKEN, WRONG_ALONE
from tests.support.models.tiny_models import make_tokenizer
from tests.support.models.vlm_models import SEEING, save_random_model, seeing_config

HEARING: Final = {
    name: family for name, family in FAMILIES.items() if (family.model_type or name) not in SEEING
}
"""Those of which there is no model without a processor."""

_TEMPLATE: Final = """\
{%% for m in messages %%}<|{{ m['role'] }}|>\
{%% if m['content'] is string %%}{{ m['content'] }}\
{%% else %%}{%% for part in m['content'] %%}\
{%% if part['type'] == 'image' %%}%(image)s\
{%% elif part['type'] == 'audio' %%}%(audio)s\
{%% elif part['type'] == 'video' %%}%(video)s\
{%% else %%}{{ part['text'] }}{%% endif %%}{%% endfor %%}{%% endif %%}<|end|>{%% endfor %%}\
{%% if add_generation_prompt %%}<|assistant|>{%% endif %%}"""

_FRAMES_A_SECOND: Final = 1000
"""Times are given to mlx-vlm as the numbers of frames of a video that has so many."""


def make_media_model(folder: Path, family: str) -> Path:
    """Write a model into ``folder``, and return that."""
    own = (FAMILIES | WRONG_ALONE)[family]
    model_type = own.model_type or family
    numbers = {token: FIRST_MEDIA_TOKEN + place for place, token in enumerate(own.tokens)}
    config = seeing_config(model_type) if model_type in SEEING else {}
    config = _merged({key: v for key, v in config.items() if not _names_token(key)}, own.config)
    for path, token in own.ids.items():
        section, _, key = path.rpartition(".")
        (config[section] if section else config)[key] = numbers[token]
    with tiny_towers():
        save_random_model(folder, config, tied=own.tied)
    places = {kind: own.places.get(kind, "") for kind in ("image", "audio", "video")}
    tokenizer = make_tokenizer(_TEMPLATE % places)
    tokenizer.add_special_tokens(
        {"additional_special_tokens": list(own.tokens)}, replace_extra_special_tokens=False
    )
    tokenizer.save_pretrained(folder)
    if own.names:
        file = folder / "tokenizer_config.json"
        settings = json.loads(file.read_text())
        file.write_text(json.dumps(settings | {"extra_special_tokens": dict(own.names)}))
    for name, content in own.files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@contextmanager
def tiny_towers() -> Iterator[None]:
    """Let what can't be small in mlx-vlm be small as long as this is open: Gemma 3n's eyes have
    always 300 million weights, and Gemma 4 sees a frame of a video in 70 tokens or more."""

    def blocks() -> list[Any]:
        uir, mmqa = mobilenet._uir, mobilenet._mmqa
        return [
            [mobilenet._er(3, 16, 2)],
            [uir(3, 5, 16, 2, 2.0)],
            [uir(5, 5, 16, 2, 2.0), mmqa(2, 16, 2), uir(0, 0, 16, 1, 1.0, is_multiscale=True)],
            [uir(5, 5, 16, 2, 2.0), mmqa(2, 16, 1), uir(0, 0, 16, 1, 1.0, is_multiscale=True)],
        ]

    whole = mobilenet.MobileNetV5MultiScaleFusionAdapter

    def adapter(**_: Any) -> Any:
        return whole(in_chs=[32], out_chs=32, output_resolution=2)

    with (
        mock.patch.object(mobilenet, "gemma3n_mobilenet_def", blocks),
        mock.patch.object(mobilenet, "MobileNetV5MultiScaleFusionAdapter", adapter),
        mock.patch.object(processing_gemma4, "_SUPPORTED_SOFT_TOKENS", (4,)),
    ):
        yield


def random_media(kind: str, seed: int, scale: int = 1) -> Media:
    """Return noise of one size. ``scale``: how many times as high, or as long."""
    random = np.random.default_rng(seed)
    if kind == "audio":
        return Sound((0.1 * random.normal(size=8000 * scale)).astype(np.float32), 16_000)
    if kind == "video":
        frames = random.integers(0, 256, (4, 60 * scale, 90, 3), dtype=np.uint8)
        return Video(frames, (0.0, 0.5, 1.0, 1.5), 2.0)
    return Picture(random.integers(0, 256, (60 * scale, 90, 3), dtype=np.uint8))


def conversation(*parts: str | int, kind: str) -> list[dict[str, Any]]:
    """Return one message of texts, and of media of one kind by their numbers."""
    content: list[dict[str, Any]] = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": kind, "media": part}
        for part in parts
    ]
    return [{"role": "user", "content": content}]


class MlxVlmAlone:
    """A folder's model and processor, as mlx-vlm has them, without lmx but for what that mends of
    Gemma 3n and Qwen3-Omni."""

    def __init__(self, folder: Path) -> None:
        with tiny_towers():
            self.model: Any = load_alone(folder)
            self.processor: Any = load_processor(folder)
        patch_mlx_vlm(self.model)

    def inputs(
        self, messages: Sequence[Mapping[str, Any]], media: Sequence[Media]
    ) -> dict[str, Any]:
        """Return what its processor makes of messages whose parts name their media by number."""
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        prompt = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
        shown = [
            media[part["media"]]
            for message in messages
            if not isinstance(message["content"], str)
            for part in message["content"]
            if "media" in part
        ]
        found: dict[str, Any] = prepare_inputs(self.processor, prompts=prompt, **_arguments(shown))
        return found

    def logits(
        self, messages: Sequence[Mapping[str, Any]], media: Sequence[Media]
    ) -> tuple[list[int], npt.NDArray[np.float32]]:
        """Return a prompt's tokens, and the logits after each of them."""
        inputs = self.inputs(messages, media)
        tokens = inputs.pop("input_ids")
        pixels, mask = inputs.pop("pixel_values", None), inputs.pop("attention_mask", None)
        found = self.model.get_input_embeddings(tokens, pixels, mask=mask, **inputs)
        known = {name: value for name, value in found.to_dict().items() if value is not None}
        if "video_second_per_grid" in inputs:
            # mlx-vlm takes all videos for such of one frame a second.
            times = [each.times_s for each in media if isinstance(each, Video)]
            times = times[: len(inputs["video_grid_thw"])]  # Those that the messages name.
            known["position_ids"], known["rope_deltas"] = self.model.language_model.get_rope_index(
                tokens, inputs.get("image_grid_thw"), inputs["video_grid_thw"],
                video_second_per_grid=mx.array([2 * (own[1] - own[0]) for own in times]),
            )  # fmt: skip
        # As mlx-vlm's generate_step does it, but for the whole prompt at once.
        cache = make_prompt_cache(self.model.language_model)
        out = self.model.language_model(tokens, cache=cache, **(inputs | known))
        return tokens[0].tolist(), np.array(out.logits[0].astype(mx.float32))


def _arguments(media: Sequence[Media]) -> dict[str, Any]:
    pictures = [each for each in media if isinstance(each, Picture)]
    sounds = [each for each in media if isinstance(each, Sound)]
    videos = [each for each in media if isinstance(each, Video)]
    found: dict[str, Any] = {}
    if pictures:
        found["images"] = [Image.fromarray(each.pixels) for each in pictures]
    if sounds:
        found["audio"] = [each.samples for each in sounds]
    if videos:
        found["videos"] = [each.frames.transpose(0, 3, 1, 2) for each in videos]
        found["video_metadata"] = [
            VideoMetadata(
                total_num_frames=round(each.duration_s * _FRAMES_A_SECOND),
                fps=_FRAMES_A_SECOND,
                frames_indices=[round(time_s * _FRAMES_A_SECOND) for time_s in each.times_s],
            )
            for each in videos
        ]
    return found


def _names_token(key: str) -> bool:
    return key.endswith(("_token_id", "_token_index")) and key != "eos_token_id"


def _merged(config: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(config)
    for key, value in own.items():
        known = merged.get(key)
        merged[key] = _merged(known, value) if isinstance(known, dict) else value
    return merged
