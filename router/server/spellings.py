"""The other spellings under which clients look for a path. Pure.

A base URL with a slash at its end gives a path with two slashes, some programs put a slash at the
end, and clients of llama.cpp and mlx_lm.server leave out ``/v1``. Only the path as the table of
routes has it is described in OpenAPI, and counted in the metrics.
"""

from __future__ import annotations

from typing import Final

_VERSION: Final = "/v1"
_WITHOUT_VERSION: Final = frozenset(
    {"/chat/completions", "/completions", "/embeddings", "/messages", "/models", "/responses"}
)
"""What is served without ``/v1`` too."""


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
    return (*spelled[1:], *(f"{one}/" for one in spelled))
