"""A model's vocabulary, as grammars need it: read once for each worker. Prompt thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llguidance import LLTokenizer
from llguidance.hf import from_tokenizer
from transformers import PreTrainedTokenizerFast

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.worker.constraints import TokenMasks, pack
from lmx.worker.tool_grammar import SpecialTokens


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """``special`` are the tokens that llguidance takes for no text: more than those that the
    tokenizer calls special."""

    tokenizer: LLTokenizer
    special: SpecialTokens
    masks: TokenMasks


def read_vocabulary(tokenizer: Any, size: int, eos_token_ids: frozenset[int]) -> GrammarVocabulary:
    """Return the vocabulary of a tokenizer whose model has logits of width ``size``.

    Raises ``RequestError`` for a tokenizer that is not one of the ``tokenizers`` library.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
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
    return GrammarVocabulary(guide, SpecialTokens(special), masks)
