"""GET / and the small routes that programs ask first."""

from html.parser import HTMLParser

import pytest
import yarl

from tests.support.rigs.router_rig import MODEL, Rig, router_rig

BROWSER = {"Accept": "text/html,application/xhtml+xml"}


class Links(HTMLParser):
    """The paths that a page loads or leads to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.paths: list[str] = []
        self._in_script = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.paths += [value for key, value in attrs if key in ("href", "src") and value]
        # The policy lets nothing run or style that stands in the page itself.
        assert not [key for key, _ in attrs if key.startswith("on") or key == "style"]
        self._in_script = tag == "script"

    def handle_data(self, data: str) -> None:
        assert not (self._in_script and data.strip())


@pytest.mark.parametrize("at", ["/", "/ui"])
async def test_a_browser_gets_a_page_of_which_every_link_leads_somewhere(rig: Rig, at: str) -> None:
    page = yarl.URL(f"{rig.url}{at}")
    async with rig.http.get(page, headers=BROWSER) as response:
        assert (response.status, response.content_type) == (200, "text/html")
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        html = await response.text()
    assert MODEL in html
    paths = Links(html).paths
    assert {"ui/page.css", "ui/frame.js"} <= set(paths)
    for path in paths:
        async with rig.http.get(page.join(yarl.URL(path))) as response:
            assert response.status == 200, path


async def test_a_file_of_the_page_is_sent_once_and_no_other_file_is(rig: Rig) -> None:
    async with rig.http.get(f"{rig.url}/ui/frame.js") as response:
        assert (response.status, response.content_type) == (200, "text/javascript")
        assert "begin();" in await response.text()
        known = {"If-None-Match": response.headers["ETag"]}
    async with rig.http.get(f"{rig.url}/ui/frame.js", headers=known) as response:
        assert (response.status, await response.read()) == (304, b"")
    for name in ("index.html", "files.py", "nothing.js", "..%2ffront.py"):
        async with rig.http.get(yarl.URL(f"{rig.url}/ui/{name}", encoded=True)) as response:
            assert response.status == 404, name


async def test_a_program_gets_json(rig: Rig) -> None:
    _, answer = await rig.json("GET", "/")
    assert answer["name"] == "lmx" and answer["status"] == "healthy"
    assert MODEL in answer["models"]


async def test_where_keys_are_needed_strangers_see_no_models() -> None:
    async with router_rig(api_keys=("an-api-key-for-tests",)) as rig:
        _, body = await rig.json("GET", "/")
        assert body["models"] == []
        async with rig.http.get(f"{rig.url}/", headers=BROWSER) as response:
            assert MODEL not in await response.text()


async def test_the_small_routes(rig: Rig) -> None:
    _, body = await rig.json("GET", "/version")
    assert body == {"version": "1.2.3"}
    async with rig.http.get(f"{rig.url}/ping") as response:
        assert response.status == 200
    async with rig.http.get(f"{rig.url}/favicon.ico") as response:
        assert response.content_type == "image/svg+xml"
    _, found = await rig.json("GET", "/healthz")
    assert found["status"] == "healthy"
