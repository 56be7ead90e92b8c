"""The other spellings of a path, and what they answer."""

import pytest
from yarl import URL

from lmx.router.server.app import path_aliases
from tests.support.rigs.router_rig import Rig, chat_body


def test_the_table() -> None:
    assert set(path_aliases("/v1/models")) == {
        "/v1/models/", "//v1/models", "//v1/models/", "/v1//models", "/v1//models/",
        "/models", "/models/", "//models", "//models/",
    }  # fmt: skip
    lm_studio = {one for one in path_aliases("/v1/completions") if "/api/" in one}
    assert lm_studio == {"/api/v0/completions", "/api/v0/completions/"}
    assert set(path_aliases("/health")) == {"/health/", "//health", "//health/"}
    for path in ("/admin/metrics", "/admin/peer", "/pair", "/pair/hello"):
        assert path_aliases(path) == (), "a proxy may refuse these by their beginning"
    assert path_aliases("/") == path_aliases("/ui") == () == path_aliases("/v1/models/{id:.+}")
    assert "/jobs" not in path_aliases("/v1/jobs")


@pytest.mark.parametrize(
    "path",
    [
        "/chat/completions", "//chat/completions", "/v1//chat/completions/",
        "/api/v0/chat/completions",
    ],
)  # fmt: skip
async def test_a_conversation_is_answered_under_each(rig: Rig, path: str) -> None:
    async with rig.http.post(URL(f"{rig.url}{path}", encoded=True), json=chat_body()) as response:
        assert response.status == 200
        assert (await response.json())["object"] == "chat.completion"
