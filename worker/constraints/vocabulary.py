"""A model's vocabulary in the form that grammars need, read once a worker. Prompt thread."""

from dataclasses import dataclass
from typing import Any, Final

from llguidance import LLTokenizer
from llguidance.hf import from_tokenizer
from transformers import PreTrainedTokenizerFast

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.worker.constraints.grammar import TokenMasks, pack
from lmx.worker.constraints.markers import Marker, marker_tokens
from lmx.worker.formats.family import SpecialTokens

_CLOSING: Final = ('"', "}", "]", ")", '"}', '"]')


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """A tokenizer, and what is known of its tokens."""

    tokenizer: LLTokenizer
    special: SpecialTokens
    """The tokens that are no text to llguidance: more than the tokenizer calls special."""
    masks: TokenMasks
    single: frozenset[int]
    """The bytes that have a token of their own."""
    joined: frozenset[bytes]
    """The tokens that contain bytes without a token of their own."""
    closing: tuple[int, ...]
    """The tokens that end strings, objects and arrays."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; of a special token, bytes that no text has."""
        if self.tokenizer.is_special_token(token):
            return b"\xff%d\xff" % token
        data: bytes = self.tokenizer.decode_bytes([token])
        return data

    def markers(self, *texts: str) -> list[Marker]:
        """Return markers, in whose texts special tokens have their names."""
        tokens = range(self.tokenizer.vocab_size)
        listed = sorted((data, token) for token in tokens if (data := self.token_bytes(token)))
        ids = self.special.ids
        return [
            marker_tokens(
                b"".join(
                    self.token_bytes(ids[part]) if part in ids else part.encode()
                    for part in self.special.split(text)
                ),
                listed,
                self.masks.vocabulary_size,
            )
            for text in texts
        ]

    def spells(self, text: str) -> bool:
        """Return whether a text can be written with these tokens."""
        data = text.encode(errors="surrogatepass")
        if self.single.issuperset(data):
            return True
        longest = max(map(len, self.joined), default=0)
        reached = [True] + [False] * len(data)
        for start in range(len(data)):
            if not reached[start]:
                continue
            if data[start] in self.single:
                reached[start + 1] = True
            for end in range(start + 1, min(start + longest, len(data)) + 1):
                if data[start:end] in self.joined:
                    reached[end] = True
        return reached[-1]


def supports_grammars(tokenizer: Any) -> bool:
    """Return whether a tokenizer is of a kind with which grammars work."""
    return isinstance(tokenizer, PreTrainedTokenizerFast)


def read_vocabulary(tokenizer: Any, size: int, eos_token_ids: frozenset[int]) -> GrammarVocabulary:
    """Return the vocabulary of a tokenizer whose model has logits of width ``size``.

    Raises ``RequestError`` for a tokenizer that is not one of the ``tokenizers`` library.
    """
    if not supports_grammars(tokenizer):
        raise RequestError(
            ErrorCode.UNSUPPORTED_VALUE,
            "This model's tokenizer is of a kind that structures, enforced tools and thinking "
            "budgets can't work with: leave them out.",
        )
    tokens = max(size, len(tokenizer))
    guide = from_tokenizer(tokenizer, n_vocab=tokens, eos_token=sorted(eos_token_ids))
    special = {
        name: token
        for name, token in tokenizer.get_added_vocab().items()
        if guide.is_special_token(token)
    }
    own = set(range(len(tokenizer)))
    breaks = [guide.tokenize_str(text) for text in ("\n", "\n\n")]
    masks = TokenMasks(
        tokens=tokens,
        vocabulary_size=size,
        eos_token_ids=eos_token_ids,
        anything=pack(own | eos_token_ids, size),
        end=pack(eos_token_ids, size),
        thinking=pack(own - eos_token_ids, size),
        line_breaks=pack([ids[0] for ids in breaks if len(ids) == 1], size),
    )
    texts = [
        guide.decode_bytes([token])
        for token in range(len(tokenizer))
        if not guide.is_special_token(token)
    ]
    single = frozenset(text[0] for text in texts if len(text) == 1)
    ends = [guide.tokenize_str(text) for text in _CLOSING]
    return GrammarVocabulary(
        guide,
        SpecialTokens(special, eos_token_ids),
        masks,
        single=single,
        joined=frozenset(text for text in texts if not single.issuperset(text)),
        closing=tuple(ids[0] for ids in ends if len(ids) == 1 and ids[0] < size),
    )
