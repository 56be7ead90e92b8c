"""What a model takes besides text is what it has weights and a processor for: the worker says the
same as the supervisor, which reads headers alone."""

from pathlib import Path

import mlx.core as mx
import pytest

from lmx.protocol.models.media import of_media
from lmx.protocol.states import MediaKind
from lmx.supervisor.memory.inspect_main import inspect
from lmx.supervisor.memory.inspection import ModelFacts, Question
from lmx.supervisor.state.home import Home
from lmx.worker.media.values import MediaNeeds
from lmx.worker.mlx.media.processor import media_needs
from lmx.worker.mlx.model.library import open_checkpoint
from tests.support.models.media_families import FAMILIES
from tests.support.models.media_models import make_media_model, tiny_towers

HEARING = {"gemma3n", "gemma4", "qwen3_omni_moe"}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family(tmp_path: Path, family: str) -> None:
    folder = make_media_model(tmp_path / "model", family)
    needs = worker_says(folder)
    assert needs is not None
    assert needs.kinds == frozenset(FAMILIES[family].places)
    assert needs.sample_rate_hz == (16_000 if family in HEARING else None)
    assert not needs.max_items
    assert (needs.max_frames is not None) == (MediaKind.VIDEO in needs.kinds)
    reported = supervisor_says(folder, tmp_path).media
    assert reported == tuple(kind for kind in MediaKind if kind in needs.kinds)


def test_one_without_its_eyes_takes_text(tmp_path: Path) -> None:
    """As mlx-lm converts it: the type is that of a model with eyes, and so is the processor."""
    folder = make_media_model(tmp_path / "model", "qwen3_vl")
    file = str(folder / "model.safetensors")
    weights = mx.load(file)
    assert isinstance(weights, dict)
    kept = {name: weight for name, weight in weights.items() if not of_media(name)}
    mx.eval(list(kept.values()))
    mx.save_safetensors(file, kept, {"format": "mlx"})
    assert worker_says(folder) is None
    assert supervisor_says(folder, tmp_path).media == ()


def test_one_whose_processor_hears_nothing(tmp_path: Path) -> None:
    """Gemma 3n's weights hear, but nothing says how sounds are made ready for them."""
    folder = make_media_model(tmp_path / "model", "gemma3n")
    settings = folder / "preprocessor_config.json"
    settings.write_text(settings.read_text().replace("Gemma3nAudioFeatureExtractor", "Nothing"))
    needs = worker_says(folder)
    assert needs is not None
    assert needs.kinds == {MediaKind.IMAGE}
    assert needs.sample_rate_hz is None


class OneSound:
    """A processor that says nothing of several sounds, or of their rate."""

    def __call__(self, text: str, images: object = None, audios: object = None) -> None: ...


def test_how_many_items_a_model_takes() -> None:
    kinds = frozenset(MediaKind)
    found = media_needs(OneSound(), "qwen3_vl", kinds)
    assert found is not None
    assert found.kinds == {MediaKind.IMAGE, MediaKind.AUDIO}
    assert found.max_items == {MediaKind.AUDIO: 1}
    assert found.sample_rate_hz == 16_000
    assert not found.audio_in_video
    found = media_needs(OneSound(), "paligemma", frozenset({MediaKind.IMAGE}))
    assert found is not None
    assert found.max_items == {MediaKind.IMAGE: 1}
    assert media_needs(OneSound(), "paligemma", frozenset({MediaKind.VIDEO})) is None


def worker_says(folder: Path) -> MediaNeeds | None:
    with tiny_towers():
        return open_checkpoint(folder).media


def supervisor_says(folder: Path, home: Path) -> ModelFacts:
    found = inspect(Question(str(folder)), Home(home))
    assert found.problem is None
    return found.facts
