"""What a long prompt does to a stream that runs at the same time."""

from pathlib import Path

from tests.bench.rigs.report import Section
from tests.bench.rigs.worker_bench import bench_worker, sampling

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
