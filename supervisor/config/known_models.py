"""Short names of models that many people begin with, and the repositories that they stand for.

Each is quantized to 4 bits, or as its makers published it. The weights of the first take less than
1 GB, those of the last about 18 GB.
"""

import difflib
from typing import Final

KNOWN_MODELS: Final = {
    "qwen3-embedding-0.6b": "mlx-community/Qwen3-Embedding-0.6B-4bit-DWQ",
    "qwen3-0.6b": "mlx-community/Qwen3-0.6B-4bit",
    "llama3.2-1b": "mlx-community/Llama-3.2-1B-Instruct-4bit",
    "qwen3-1.7b": "mlx-community/Qwen3-1.7B-4bit",
    "llama3.2-3b": "mlx-community/Llama-3.2-3B-Instruct-4bit",
    "qwen3-4b": "mlx-community/Qwen3-4B-4bit",
    "gemma3-4b": "mlx-community/gemma-3-4b-it-4bit",
    "qwen3-8b": "mlx-community/Qwen3-8B-4bit",
    "gemma3-12b": "mlx-community/gemma-3-12b-it-4bit",
    "qwen3-14b": "mlx-community/Qwen3-14B-4bit",
    "gpt-oss-20b": "mlx-community/gpt-oss-20b-MXFP4-Q8",
    "qwen3-30b-a3b": "mlx-community/Qwen3-30B-A3B-4bit",
    "qwen3-coder-30b": "mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit",
    "qwen3-32b": "mlx-community/Qwen3-32B-4bit",
}
"""The repositories by their short names, smaller models first. None of these names can be the name
of a repository, which has a slash."""


def repository_of(name: str) -> str:
    """Return the repository of a short name, in capitals or not; other names as they are."""
    return KNOWN_MODELS.get(name.lower(), name)


def meant_instead(name: str) -> str:
    """Return words about the short name that is most like an unknown name, or no words."""
    near = difflib.get_close_matches(name.lower(), KNOWN_MODELS, n=1)
    return f" (did you mean {near[0]}?)" if near and "/" not in name else ""
