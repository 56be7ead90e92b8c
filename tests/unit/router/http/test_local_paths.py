"""Which parts of a text are paths of this machine."""

import pytest

from lmx.router.http.local_paths import without_paths


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("there is no folder /nowhere: check it", "there is no folder [path]: check it"),
        ("/Users/me/My Models/q-4bit has no config.json", "[path] has no config.json"),
        ("The model in /a/b, of the type 'x'", "The model in [path], of the type 'x'"),
        ("('/a b/c d') failed", "('[path]') failed"),
        ('No such file: "/q/w e r" (/tmp/x)', 'No such file: "[path]" ([path])'),
        ("~/models/x and ~bob/y", "[path] and [path]"),
        ("/data/Big Model is not whole", "[path] is not whole"),
        ("/apidocs/x and /statusquo", "[path] and [path]"),
        ("see /home/x/logs/worker.log.", "see [path]"),
    ],
)
def test_paths(text: str, shown: str) -> None:
    assert without_paths(text, ("org/name", "/data/Big Model")) == shown


@pytest.mark.parametrize(
    "text",
    [
        "use it with POST /v1/embeddings, or name another",
        "GET /v1/jobs/{id}, /health, /api/chat, /docs/",
        "https://host/a/b and file:///x and s3://b/c",
        "3 tokens/s and/or org/name, 3 / 4, #/a/b, $.a/b",
        "",
    ],
)
def test_what_is_no_path(text: str) -> None:
    assert without_paths(text) == text
