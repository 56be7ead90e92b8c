"""Fields of the API that lmx does not honour yet, and the values with which they ask nothing.

A field that would change the answer is refused, never ignored: an answer that looks right and
is not what was asked for is the worst outcome. As features arrive, rows leave this table.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.invalid import short

_HARMLESS: Final[dict[str, tuple[Any, ...]]] = {
    # How many answers, and how they are searched for.
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    # Sampling.
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    # What comes beside the text.
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "echo": (False,),
    # Tools.
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "web_search_options": (),
    # The form of the answer.
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": ([],),
    "guided_grammar": (),
    "modalities": (["text"],),
    "audio": (),
    "verbosity": ("medium",),
    # How the model thinks, and how it is run.
    "reasoning_effort": (),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "prediction": (),
    "num_assistant_tokens": (),
    "assistant_confidence_threshold": (),
    "max_ngram_size": (),
    "store": (False,),
}
"""Field -> the values (besides null) that mean the same as leaving it out."""


def refuse_unsupported(body: dict[str, Any]) -> None:
    """Raise :class:`RequestError` for the first field whose value asks for what lmx can't yet."""
    for name, harmless in _HARMLESS.items():
        value = body.get(name)
        if value is not None and not any(_same(value, allowed) for allowed in harmless):
            allowed_text = " or ".join(
                ["absent", *(orjson.dumps(item).decode() for item in harmless)]
            )
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                f"`{name}` is not supported yet: it must be {allowed_text}, got {short(value)}.",
                param=name,
            )


def is_listed(name: str) -> bool:
    """Return whether a field is one that this table rules on."""
    return name in _HARMLESS


def _same(value: object, allowed: object) -> bool:
    # In Python True == 1 and False == 0; in a request they are different things.
    return isinstance(value, bool) == isinstance(allowed, bool) and value == allowed
