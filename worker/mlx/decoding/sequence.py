"""What the engine knows of a row while it decodes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lmx.worker.mlx.media.spans import MediaSpans


@dataclass(slots=True)
class DecodeSequence:
    """A row's place in the batch."""

    sequence_id: int
    tokens: list[int]
    """Its prompt, and the tokens that it has returned so far."""
    left_tokens: int
    salt: str
    generated_tokens: int = 0
    """How many of ``tokens`` belong to its answer."""
    known: bool = False
    """Whether the next token to feed is the last one of ``tokens``, instead of one that was drawn
    and not returned."""
    adapter: str = ""
    """The adapter that is applied for it; empty: none."""
    background: bool = False
    """See :attr:`SequenceRequest.background`."""
    media: MediaSpans | None = None
    """The media of its prompt; None: there are none."""

    @property
    def cached(self) -> list[int]:
        """The tokens that the row's cache holds."""
        return self.tokens[:-1] if self.known else self.tokens

    @property
    def keys(self) -> Sequence[int] | npt.NDArray[np.int32]:
        """The same as the prefix cache knows them."""
        return self.cached if self.media is None else self.media.keyed(self.cached)
