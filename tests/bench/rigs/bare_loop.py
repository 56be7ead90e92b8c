"""mlx-vlm's BatchGenerator in the plainest loop there is: what a worker is measured against.

A process of its own, as a worker is. Reads one JSON object a line from stdin
({"prompts": [[token, ...], ...], "max_tokens": n, "temperature": t}), answers each with one line:
{"decode_tokens_per_s": x, "total_tokens_per_s": y}.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import structlog

from lmx.worker.mlx.device.before_mlx import prefer_openblas

# Stdout is for answers.
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
prefer_openblas()  # Before mlx, as a worker does.

import mlx.core as mx  # noqa: E402
from mlx_vlm.generate import BatchGenerator  # noqa: E402
from mlx_vlm.utils import load  # noqa: E402


class NeverStop:
    """A stopping criterion that never stops a row: all make the same number of tokens."""

    def __init__(self) -> None:
        self.stopping_criteria = self

    def add_eos_token_ids(self, token_ids: object) -> None:
        """Called by the generator."""

    def __call__(self, token: int) -> bool:
        return False


def run(model: Any, prompts: list[list[int]], max_tokens: int, temperature: float) -> Any:
    """Generate for all prompts at once; return the rates."""
    sampler = None
    if temperature:
        sampler = lambda logprobs: mx.random.categorical(logprobs / temperature)  # noqa: E731
    generator = BatchGenerator(
        model,
        NeverStop(),
        sampler=sampler,
        completion_batch_size=len(prompts),
        prefill_batch_size=1,
        compute_logprobs=False,
    )
    embeddings = [
        {"inputs_embeds": model.get_input_embeddings(mx.array([prompt])).inputs_embeds}
        for prompt in prompts
    ]
    began_s = time.perf_counter()
    generator.insert(prompts, max_tokens, embeddings)
    made: dict[int, int] = {}
    window: list[tuple[float, int]] = []
    while generator.has_work:
        _, responses = generator.next()
        now = time.perf_counter()
        for response in responses:
            made[response.uid] = made.get(response.uid, 0) + 1
        if len(made) == len(prompts) and len(responses) == len(prompts):
            window.append((now, len(responses)))
    ended_s = time.perf_counter()
    generator.close()
    tokens = sum(count for _, count in window[1:])
    return {
        "decode_tokens_per_s": tokens / (window[-1][0] - window[0][0]),
        "total_tokens_per_s": sum(made.values()) / (ended_s - began_s),
    }


def main() -> None:
    """Serve stdin until it closes."""
    model, _ = load(str(Path(sys.argv[1])))
    mx.eval(model.parameters())
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(
            json.dumps(run(model, asked["prompts"], asked["max_tokens"], asked["temperature"])),
            flush=True,
        )


if __name__ == "__main__":
    main()
