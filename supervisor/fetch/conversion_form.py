"""Which form the weights of a GGUF file are converted to, and how large that is. Pure."""

from dataclasses import dataclass
from typing import Literal, assert_never

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.fetch.progress import gb

Platform = Literal["linux", "darwin"]
Form = Literal["float32", "bfloat16", "int4-float32", "int4-bfloat16"]

# Above this a quantised file stays quantised on a Mac; below, bfloat16 is small and loses nothing.
KEEP_QUANTISED_BYTES = 1_000_000_000
_BYTES_PER_WEIGHT: dict[Form, float] = {
    "float32": 4.0,
    "bfloat16": 2.0,
    # 4 bits and a scale and a bias for every 64 weights. The embeddings, up to a fifth of a small
    # model, stay unquantised: measured 1.34 and 0.87 bytes for SmolLM2-135M.
    "int4-float32": 1.4,
    "int4-bfloat16": 0.9,
}


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """What the header of a GGUF file says."""

    source_bytes: int
    weight_count: int
    is_quantised: bool


def conversion_form(platform: Platform, facts: GgufFacts, memory_bytes: int) -> Form:
    """Choose the form that this machine serves best.

    | platform | file | form | reason |
    |---|---|---|---|
    | linux | float32 form up to half of memory | float32 | float16 is ~50 times slower on a CPU |
    | linux | quantised, and larger than that | int4-float32 | fits; about half as fast |
    | linux | unquantised, float32 form up to all of memory | float32 | can't be quantised here |
    | linux | unquantised, and larger than that | none: an error | |
    | darwin | quantised, above 1 GB | int4-bfloat16 | decoding is bound by memory bandwidth |
    | darwin | any other | bfloat16 | what Metal likes; float16 overflows in some models |

    The other half of memory is for caches, the system and other models. Whether the result fits
    next to them is the ledger's question, not this function's. Raises `OperationError`.
    """
    match platform:
        case "darwin":
            if facts.is_quantised and facts.source_bytes > KEEP_QUANTISED_BYTES:
                return "int4-bfloat16"
            return "bfloat16"
        case "linux":
            float32_bytes = output_bytes("float32", facts)
            if float32_bytes <= memory_bytes // 2:
                return "float32"
            if facts.is_quantised:
                return "int4-float32"
            if float32_bytes <= memory_bytes:
                return "float32"
            raise OperationError(
                ErrorCode.CONVERSION_FAILED,
                f"as float32 the model takes {gb(float32_bytes)} and this machine has "
                f"{gb(memory_bytes)}; an unquantised GGUF file can't be made smaller here: use a "
                "quantised one (Q4_K_M, Q8_0) or a folder in MLX form",
            )
        case _:
            assert_never(platform)


def output_bytes(form: Form, facts: GgufFacts) -> int:
    """Estimate the size of the weights in a form: exact for float32 and bfloat16."""
    return int(facts.weight_count * _BYTES_PER_WEIGHT[form])
