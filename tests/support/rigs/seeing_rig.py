"""An engine whose model sees."""

from typing import Any

from lmx.worker.engine.values import EncodedPrompt, PromptSource
from lmx.worker.media.values import Picture
from lmx.worker.mlx.engine import MlxGenerator
from tests.support.rigs.engine_rig import EngineRunner


class Seeing(EngineRunner):
    """An engine whose model sees."""

    def prompt(
        self, text: str, *pictures: Picture, before: str = "", after: tuple[Any, ...] = ()
    ) -> EncodedPrompt:
        """Return the prompt of a message with pictures and then a text, and of those ``after``
        it."""
        content: list[dict[str, Any]] = [{"type": "text", "text": before}] if before else []
        content += [{"type": "image", "media": place} for place in range(len(pictures))]
        message = {"role": "user", "content": [*content, {"type": "text", "text": text}]}
        return self.generator.encode(PromptSource(messages=[message, *after], media=pictures))

    def ask(self, prompt: EncodedPrompt, max_tokens: int = 12, **more: Any) -> int:
        return self.admit(prompt.tokens, max_tokens=max_tokens, media=prompt.media, **more)

    def answer(self, sequence_id: int) -> str:
        assert sequence_id not in self.failed
        return self.text(self.tokens[sequence_id])

    @property
    def encoded(self) -> int:
        """How many pictures the model has looked at."""
        assert isinstance(self.generator, MlxGenerator)
        assert self.generator._features is not None
        return self.generator._features.encoded
