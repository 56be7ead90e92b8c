"""The page at /docs: whole, offline, and with nothing that could run but its own files."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest
import yarl

from lmx.router.console.api_page import page
from tests.support.rigs.router_rig import Rig, router_rig


@pytest.fixture
async def rig() -> Any:
    async with router_rig(api_keys=("an-api-key-for-tests",)) as made:
        yield made


class Links(HTMLParser):
    """What a page loads, and the scripts and handlers that stand in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.files: list[str] = []
        self.inline: list[str] = []
        self._in_script = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.files += [found[key] or "" for key in ("src", "href") if key in found and tag != "a"]
        self.inline += [key for key in found if key.startswith("on") or key == "style"]
        self._in_script = tag == "script"

    def handle_data(self, data: str) -> None:
        if self._in_script and data.strip():
            self.inline.append(data)


async def test_with_a_slash_the_browser_goes_to_the_page(rig: Rig) -> None:
    async with rig.http.get(f"{rig.url}/docs/", allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (308, "../docs")


async def test_the_page_has_its_files_and_needs_no_key(rig: Rig) -> None:
    async with rig.http.get(f"{rig.url}/docs") as response:
        assert response.status == 200
        assert response.content_type == "text/html"
        policy = response.headers["Content-Security-Policy"]
        html = await response.text()
    assert "script-src 'self'" in policy and "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "lmx" in html and "1.2.3" in html
    links = Links(html)
    assert links.inline == []
    types = {"css": "text/css", "js": "text/javascript"}
    files = [file for file in links.files if file != "data:,"]
    assert len(files) == 4
    for file in files:
        assert re.fullmatch(r"docs/[\w.-]+", file), "only files of this server"
        async with rig.http.get(f"{rig.url}/{file}") as response:
            assert response.status == 200, file
            assert response.content_type == types[file.rpartition(".")[2]]
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert "max-age=" in response.headers["Cache-Control"]
            assert len(await response.read()) > 100


async def test_swagger_ui_is_sent_once(rig: Rig) -> None:
    url = f"{rig.url}/docs/swagger-ui-bundle.js"
    async with rig.http.get(url) as response:
        assert "SwaggerUIBundle" in await response.text()
        tag = response.headers["ETag"]
    async with rig.http.get(url, headers={"If-None-Match": tag}) as response:
        assert response.status == 304


@pytest.mark.parametrize(
    "path",
    ["/docs/../../etc/passwd", "/docs/%2e%2e%2f__init__.py", "/docs/redoc.standalone.js"],
)
async def test_nothing_else_is_served(rig: Rig, path: str) -> None:
    async with rig.http.get(yarl.URL(rig.url + path, encoded=True)) as response:
        assert response.status == 404


def test_a_version_can_not_bring_markup_along() -> None:
    assert "<b>" not in page("1<b>")
