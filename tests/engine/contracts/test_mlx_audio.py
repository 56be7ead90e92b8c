"""What lmx uses of mlx-audio that it promises nobody."""

import inspect
from pathlib import Path

import mlx.core as mx

from lmx.worker.mlx.speech.load import load_network
from lmx.worker.mlx.voices import pocket
from tests.support.models.whisper_models import make_tiny_whisper
from tests.support.references.private_parts import FIELDS, said
from tests.support.rigs.device import near

LIBRARY = "mlx-audio"


def test_a_whisper_is_made_of_layers_that_can_be_called_alone(tmp_path: Path) -> None:
    network, _ = load_network(make_tiny_whisper(tmp_path / "m"), lambda *_: None)
    model = network.model
    for name, file, use in FIELDS[LIBRARY]:
        holder = model.decoder if name == "_mask" else model.encoder
        if file == "worker/mlx/voices/pocket.py":
            holder = pocket.Model
        assert hasattr(holder, name), said(LIBRARY, name, (file,), use) + "it is gone"
    block = model.decoder.blocks[0]
    assert list(inspect.signature(block.__call__).parameters) == ["x", "xa", "mask", "kv_cache"]
    mx.random.seed(0)
    mel = mx.random.normal((1, 3000, model.dims.n_mels))
    tokens = mx.array([[256, 257, 258]])
    whole = model(mel, tokens)
    features = model.encoder(mel)
    hidden = model.decoder.token_embedding(tokens) + model.decoder.positional_embedding[:3]
    for each in model.decoder.blocks:
        hidden, _, scores = each(hidden, features, mask=model.decoder._mask, kv_cache=None)
    assert scores.shape == (1, model.dims.n_text_head, 3, 1500)
    logits = model.decoder.token_embedding.as_linear(model.decoder.ln(hidden))
    assert mx.allclose(whole, logits, atol=near(1e-4))
