"""What a long prompt, or a large picture, does to a stream that runs at the same time."""

import hashlib
import io
import json
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from lmx.protocol.messages.media import MediaItem
from lmx.protocol.states import MediaForm, MediaKind
from tests.bench.rigs.report import Section
from tests.bench.rigs.worker_bench import bench_worker, sampling
from tests.support.models.media_models import make_media_model

WORDS_IN_PROMPT = 900
SENTENCE = "Every evening the keeper lit the lamp and counted the boats below the cliff. "
LIVE_TOKENS = 4000


def measure(model: Path) -> Section:
    """Measure the worst gap of a live stream, for several settings."""
    prompt = (SENTENCE * (WORDS_IN_PROMPT // len(SENTENCE.split()) + 1)).split()
    long_prompt = " ".join(prompt[:WORDS_IN_PROMPT])
    rows = [["max_decode_stall_s", "worst gap alone, s", "worst gap during it, s", "its TTFT, s"]]
    for limit_s in (0.3, 0.5, 1.0, 2.0):
        with bench_worker(model, max_decode_stall_s=limit_s) as worker:
            live = worker.start("Tell me a story.", LIVE_TOKENS)
            worker.wait_pieces(live, 30)
            alone_s = live.worst_gap_s
            begin = len(live.pieces) - 1
            long_read = worker.start(long_prompt, 4, sampling=sampling())
            worker.wait([long_read])
            live.pieces = live.pieces[begin:]
            rows.append(
                [
                    f"{limit_s:g}",
                    f"{alone_s:.2f}",
                    f"{live.worst_gap_s:.2f}",
                    f"{long_read.ttft_s:.1f}",
                ]
            )
            print(*rows[-1], flush=True)
    return Section(
        "A live stream during a long prompt",
        f"One stream decodes; a prompt of {WORDS_IN_PROMPT} words arrives. The longest wait "
        "between two tokens of the stream until that prompt's answer is done, and how long the "
        "prompt took to its first token. 0.3 is the default.",
        rows,
    )


def measure_media(_model: Path) -> Section:
    """Measure the worst gap of a live stream during large pictures."""
    rows = [["patches", "worst gap alone, s", "worst gap during it, s", "its TTFT, s"]]
    with tempfile.TemporaryDirectory() as folder:
        seeing = make_media_model(Path(folder) / "seeing", "qwen2_5_vl")
        file = seeing / "preprocessor_config.json"
        settings = json.loads(file.read_text())
        settings["size"]["longest_edge"] = 1 << 24
        file.write_text(json.dumps(settings))
        config = json.loads((seeing / "config.json").read_text())
        config["max_position_embeddings"] = 1 << 16
        (seeing / "config.json").write_text(json.dumps(config))
        with bench_worker(seeing, max_decode_stall_s=_MEDIA_STALL_S) as worker:
            for side in (224, 448, 896):
                live = worker.start("Tell me a story.", LIVE_TOKENS)
                worker.wait_pieces(live, 30)
                alone_s = live.worst_gap_s
                begin = len(live.pieces) - 1
                item, blob = _noise(side)
                picture = worker.start(
                    "", 4, blobs=[blob], media=(item,), sampling=sampling(),
                    messages=({"role": "user", "content": _PARTS},),
                )  # fmt: skip
                worker.wait([picture])
                live.pieces = live.pieces[begin:]
                rows.append(
                    [
                        f"{(side // 14) ** 2:,}",
                        f"{alone_s:.2f}",
                        f"{live.worst_gap_s:.2f}",
                        f"{picture.ttft_s:.1f}",
                    ]
                )
                print(*rows[-1], flush=True)
                worker.wait([live])
    return Section(
        "A live stream during a large picture",
        f"One stream decodes; a picture arrives, for a Qwen2.5-VL of random weights with a width "
        f"of 32, at a `max_decode_stall_s` of {_MEDIA_STALL_S:g}. Half of the blocks of its vision "
        "encoder attend to all patches at once.",
        rows,
    )


_MEDIA_STALL_S = 0.3
_PARTS = [{"type": "image", "media": 0}, {"type": "text", "text": "What is it?"}]


def _noise(side: int) -> tuple[MediaItem, bytes]:
    pixels = np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    blob = file.getvalue()
    digest = hashlib.sha256(blob).digest()
    return MediaItem(
        MediaKind.IMAGE, MediaForm.PNG, "messages[0].content[0]", len(blob), digest
    ), blob
