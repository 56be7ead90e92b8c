"""The other spellings under which clients look for a path. Pure.

A base URL with a slash at its end gives a path with two slashes, some programs put a slash at the
end, clients of llama.cpp and mlx_lm.server leave out ``/v1``, and those of LM Studio have
``/api/v0`` in its place. Only the path as the table of routes has it is described in OpenAPI, and
counted in the metrics.
"""

from __future__ import annotations

from typing import Final

_VERSION: Final = "/v1"
_WITHOUT_VERSION: Final = frozenset(
    {"/chat/completions", "/completions", "/embeddings", "/messages", "/models", "/responses"}
)
"""What is served without ``/v1`` too."""

_LM_STUDIO: Final = "/api/v0"
_OF_LM_STUDIO: Final = frozenset({"/chat/completions", "/completions", "/embeddings"})
"""What is served below ``/api/v0`` too. LM Studio's list of models, also there, is another one."""


def other_spellings(path: str) -> tuple[str, ...]:
    """Return the further paths that mean the same as ``path``; none for a path with variables,
    whose last one could have a slash of its own, and none for the root."""
    if "{" in path or path == "/":
        return ()
    spelled = [path, f"/{path}"]
    if path.startswith(f"{_VERSION}/"):
        rest = path.removeprefix(_VERSION)
        spelled.append(f"{_VERSION}/{rest}")
        if rest in _WITHOUT_VERSION:
            spelled += [rest, f"/{rest}"]
        if rest in _OF_LM_STUDIO:
            spelled.append(f"{_LM_STUDIO}{rest}")
    return (*spelled[1:], *(f"{one}/" for one in spelled))
