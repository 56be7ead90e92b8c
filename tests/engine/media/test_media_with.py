"""Rows with pictures together with what else the engine does: drafts, searches, rounded keys,
prompts on disk, media of several kinds."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from mlx_vlm.models.qwen3_vl import Model

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.specs import PrefixCacheSpec, SpeculationSpec
from lmx.worker.engine.values import BeamSearch, PromptSource
from lmx.worker.media.values import Media, Video
from lmx.worker.mlx.media.encoding import FeatureMismatchError
from lmx.worker.mlx.media.spans import MediaSpans
from tests.support.models.media_families import FAMILIES
from tests.support.models.media_models import make_media_model
from tests.support.models.tiny_adapters import make_adapter
from tests.support.rigs.engine_rig import spec_of
from tests.support.rigs.media_check import PART_S, MediaModel, picture, sound, video
from tests.support.rigs.seeing_rig import Seeing

pytestmark = pytest.mark.long

WHAT = "What is in the image? What is in the image?"
MEMORY = PrefixCacheSpec(1 << 28, None, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_media_model(tmp_path_factory.mktemp("models") / "qwen3_vl", "qwen3_vl")


def tokens_of(folder: Path, **options: Any) -> list[list[int]]:
    """Return what two rows with pictures and one without make, the second time from the cache."""
    engine = Seeing(spec_of(folder, prefix_cache=MEMORY, **options))
    made = []
    for _ in range(2):
        rows = [
            engine.ask(engine.prompt(WHAT, picture(1))),
            engine.ask(engine.prompt(WHAT, picture(2, 90, 90), picture(1))),
            engine.admit("just text"),
        ]
        engine.finish()
        assert not engine.failed
        made += [engine.tokens[row] for row in rows]
    return made


def test_guesses_and_rows_that_leave_change_nothing(folder: Path) -> None:
    plain = tokens_of(folder)
    assert plain[:3] == plain[3:]
    assert tokens_of(folder, speculation=SpeculationSpec(max_rows=4)) == plain


def test_rounded_keys_are_those_of_the_whole_prompt(tmp_path: Path) -> None:
    family = FAMILIES["mistral3"]
    # Keys are rounded in groups of 32 numbers at least.
    wide = {**family.config, "text_config": {"head_dim": 32}}
    with mock.patch.dict(FAMILIES, {"mistral3": replace(family, config=wide)}):
        folder = make_media_model(tmp_path / "wide", "mistral3")
    made = tokens_of(folder, kv_bits=8)
    assert made[:3] == made[3:]


def test_a_search_finds_what_one_beam_finds(folder: Path) -> None:
    engine = Seeing(spec_of(folder))
    prompt = engine.prompt(WHAT, picture(3))
    greedy = engine.ask(prompt, 5)
    search = engine.ask(prompt, 5, beam=BeamSearch(1, 1.0, frozenset()))
    wide = engine.ask(prompt, 5, beam=BeamSearch(3, 1.0, frozenset()))
    engine.finish()
    assert not engine.failed
    assert list(engine.found[search][0].tokens) == engine.tokens[greedy]
    assert engine.found[wide][0].score >= engine.found[search][0].score


def test_a_picture_is_found_on_disk_and_no_other(folder: Path, tmp_path: Path) -> None:
    disk = PrefixCacheSpec(1 << 28, str(tmp_path / "prefixes"), 1 << 28)
    before = "These are two pictures."
    engine = Seeing(spec_of(folder, prefix_cache=disk))
    prompt = engine.prompt(WHAT, picture(4, 128, 128), before=before)
    row = engine.ask(prompt, 3)
    engine.finish()
    engine.resident.close()
    again = Seeing(spec_of(folder, prefix_cache=disk))
    same = again.ask(again.prompt(WHAT, picture(4, 128, 128), before=before), 3)
    other = again.ask(again.prompt(WHAT, picture(5, 128, 128), before=before), 3)
    again.finish()
    assert again.tokens[same] == engine.tokens[row]
    assert again.started[same].cached_tokens == len(prompt.tokens) - 1
    assert isinstance(prompt.media, MediaSpans)
    assert again.started[other].cached_tokens == prompt.media.spans[0].start
    assert again.encoded == 1


def test_the_logprobs_of_a_prompt_are_those_of_the_whole(folder: Path) -> None:
    engine = Seeing(spec_of(folder, prefix_cache=MEMORY))
    prompt = engine.prompt(WHAT, picture(6))
    row = engine.ask(prompt, 1, prompt_logprobs=0)
    engine.finish()
    assert len(engine.started[row].prompt_scores) == len(prompt.tokens) - 1


def test_what_the_model_can_not_place_is_refused(folder: Path) -> None:
    engine = Seeing(spec_of(folder))
    picture_part = {"type": "image", "media": 0}

    def refused(content: Any, *, pictures: int = 1) -> RequestError:
        source = PromptSource(
            messages=[{"role": "user", "content": content}],
            media=[picture(place) for place in range(pictures)],
        )
        with pytest.raises(RequestError) as caught:
            engine.generator.encode(source)
        return caught.value

    own = refused([{"type": "text", "text": "<|image_pad|> is a token"}, picture_part])
    assert own.code is ErrorCode.INVALID_VALUE and "the model's own tokens" in own.message
    missing = refused([picture_part, {"type": "text", "text": "a"}], pictures=2)
    assert missing.code is ErrorCode.INVALID_VALUE
    thin = PromptSource(
        messages=[{"role": "user", "content": [picture_part, {"type": "text", "text": "a"}]}],
        media=[picture(1, 1, 900)],
    )
    with pytest.raises(RequestError, match="image 1 of the request"):
        engine.generator.encode(thin)


def test_the_sound_of_a_video_comes_behind_its_frames(tmp_path: Path) -> None:
    model = MediaModel(make_media_model(tmp_path, "gemma4"))
    frames, heard = video(1), sound(1)
    whole: Media = Video(frames.frames, frames.times_s, frames.duration_s, heard)
    together = model.encode("ab", whole, "cd")
    apart = model.encode("ab", frames, heard, "cd")
    assert together.media is not None and apart.media is not None
    assert together.tokens == apart.tokens
    assert together.media.audio_tokens == apart.media.audio_tokens > 0
    assert (model.logits(together, 5) == model.logits(apart, 5)).all()


def test_a_model_whose_processor_counts_otherwise_is_served_without_media(tmp_path: Path) -> None:
    folder = make_media_model(tmp_path, "idefics3")
    file = folder / "processor_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"image_seq_len": settings["image_seq_len"] + 1}))
    engine = Seeing(spec_of(folder))
    assert engine.facts.media is None
    row = engine.admit("just text", max_tokens=2)
    engine.finish()
    assert len(engine.tokens[row]) == 2


def test_more_features_than_places_are_an_error_and_so_are_fewer(tmp_path: Path) -> None:
    """mlx-vlm's class takes them from the front again, or leaves the rest out."""
    model = MediaModel(make_media_model(tmp_path, "gemma4"))
    media = model.encode("ab", picture(1), "cd").media
    assert isinstance(media, MediaSpans)
    (span,) = media.spans
    count = len(span.token_places)
    for places in (np.arange(count - 1), np.arange(count + 1)):
        tokens = np.full(len(places), span.tokens[span.token_places[0]], np.int32)
        with pytest.raises(FeatureMismatchError, match=f"{count} features"):
            own = places.astype(np.int32)
            model.forward.encode(replace(span, tokens=tokens, token_places=own), PART_S)


def test_a_model_with_cross_attention_is_served_without_pictures(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Model.get_input_embeddings

    def crossed(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = plain(self, *args, **kwargs)
        found.cross_attention_states = found.inputs_embeds
        return found

    monkeypatch.setattr(Model, "get_input_embeddings", crossed)
    # This class is asked for features of deep layers in another way.
    monkeypatch.delattr(Model, "_merge_deepstack_features")
    engine = Seeing(spec_of(folder))
    assert engine.facts.media is None


def test_rows_with_adapters_see_as_alone(folder: Path, tmp_path: Path) -> None:
    keys = ("self_attn.q_proj", "self_attn.v_proj")
    adapter = make_adapter(tmp_path / "adapter", folder, keys=keys)
    engine = Seeing(spec_of(folder, prefix_cache=MEMORY, adapters={"x": adapter}))
    assert engine.facts.adapters == {"x": None}
    prompt = engine.prompt(WHAT, picture(7))
    alone = []
    for name in ("", "x"):
        row = engine.ask(prompt, 6, adapter=name)
        engine.finish()
        alone.append(engine.tokens[row])
    assert alone[0] != alone[1]
    rows = [engine.ask(prompt, 6, adapter=name, cache_salt="y") for name in ("", "x")]
    engine.finish()
    assert [engine.tokens[row] for row in rows] == alone
