"""POST /ui/markdown: its process, its limits, and who may ask."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lmx.router.console import markdown_process
from lmx.router.console.markdown import LONGEST_BODY_BYTES
from tests.support.rigs.router_rig import router_rig

KEY = "an-api-key-for-tests"
SLOW = "lmx-test-slow"


def children() -> list[psutil.Process]:
    """The processes that render for this one."""
    found = []
    for one in psutil.Process().children():
        # It may be gone between two looks.
        with contextlib.suppress(psutil.Error):
            if any("markdown" in word for word in one.cmdline()):
                found.append(one)
    return found


@pytest.fixture
def slow_lexer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Has the process render by a program in which one text never ends, within one call of re. It
    begins with that text when the file that is yielded is gone."""
    hold = tmp_path_factory.mktemp("slow") / "hold"
    hold.touch()
    program = hold.with_name("markdown_slow.py")
    program.write_text(
        "import os, re, time\n"
        "from lmx.router.console import markdown_main\n"
        "tree = markdown_main.markdown_tree\n"
        "def slow(text):\n"
        f"    while text == {SLOW!r} and os.path.exists({str(hold)!r}): time.sleep(0.01)\n"
        f"    if text == {SLOW!r}: re.match('(a+)+b', 'a' * 64)\n"
        "    if text == 'still': time.sleep(2)\n"
        "    return tree(text)\n"
        "markdown_main.markdown_tree = slow\n"
        "markdown_main.main(1)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        command = (markdown_process._COMMAND[0], "-P", str(program))
        patch.setattr(markdown_process, "_COMMAND", command)
        yield hold


async def test_texts_become_trees_in_a_process_that_starts_with_the_first() -> None:
    async with router_rig() as rig:
        assert children() == []
        status, answer = await rig.post_json("/ui/markdown", blocks=["*a*", "", "b"])
        trees = [[["p", {}, ["em", {}, "a"]]], [], [["p", {}, "b"]]]
        assert (status, answer) == (200, {"blocks": trees})
        (process,) = children()
        many = await asyncio.gather(
            *(rig.post_json("/ui/markdown", blocks=[f"text {number}"]) for number in range(16))
        )
        for number, (status, answer) in enumerate(many):
            assert (status, answer) == (200, {"blocks": [[["p", {}, f"text {number}"]]]})
        assert children() == [process]
    assert children() == []


async def test_a_text_that_never_ends_costs_no_stream(slow_lexer: Path) -> None:
    async with router_rig() as rig, asyncio.timeout(90):
        slow = asyncio.create_task(rig.post_json("/ui/markdown", blocks=[SLOW]))
        other = asyncio.create_task(rig.post_json("/ui/markdown", blocks=["after"]))
        while not children():
            await asyncio.sleep(0.01)
        assert (await rig.chat_json())[0] == 200
        assert not slow.done()
        slow_lexer.unlink()
        status, answer = await slow
        assert (status, answer["error"]["code"]) == (400, "invalid_value")
        assert (await other)[0] == 200
        # One that is killed by somebody else is started again.
        for process in children():
            os.kill(process.pid, 9)
        while children():
            await asyncio.sleep(0.01)
        assert (await rig.post_json("/ui/markdown", blocks=["again"]))[0] == 200
        # A client that leaves: the next one must not get its answer.
        left = asyncio.create_task(rig.post_json("/ui/markdown", blocks=[SLOW]))
        await asyncio.sleep(0.1)
        left.cancel()
        status, answer = await rig.post_json("/ui/markdown", blocks=["mine"])
        assert (status, answer) == (200, {"blocks": [[["p", {}, "mine"]]]})


async def test_a_process_that_stands_still_is_waited_for(slow_lexer: Path) -> None:
    """For twice the time of the processor that a text may take."""
    async with router_rig() as rig:
        status, answer = await rig.post_json("/ui/markdown", blocks=["still"])
        assert (status, answer) == (200, {"blocks": [[["p", {}, "still"]]]})


async def test_a_process_that_is_idle_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown_process, "_IDLE_S", 0.05)
    async with router_rig() as rig, asyncio.timeout(90):
        assert (await rig.post_json("/ui/markdown", blocks=["a"]))[0] == 200
        while children():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("limit", "code"), [("_MOST_WAITING", "queue_full"), ("_MOST_OWN", "rate_limit_exceeded")]
)
async def test_its_limits(
    slow_lexer: Path, monkeypatch: pytest.MonkeyPatch, limit: str, code: str
) -> None:
    monkeypatch.setattr(markdown_process, limit, 2)
    async with router_rig(api_keys=(KEY,)) as rig, asyncio.timeout(90):
        assert (await rig.post_json("/ui/markdown", blocks=["a"]))[0] == 401
        rig.http.headers["Authorization"] = f"Bearer {KEY}"
        for blocks, status in (
            ("a", 400), ([1], 400), (["a"] * 257, 400), (["a" * LONGEST_BODY_BYTES], 413),
        ):  # fmt: skip
            assert (await rig.post_json("/ui/markdown", blocks=blocks))[0] == status
        slow = asyncio.create_task(rig.post_json("/ui/markdown", blocks=[SLOW]))
        while not children():
            await asyncio.sleep(0.01)
        others = [
            asyncio.create_task(rig.post_json("/ui/markdown", blocks=[text])) for text in "bc"
        ]
        # One of them has the other place.
        (ended,), (waits,) = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        status, refused = ended.result()
        assert status == 429
        slow_lexer.unlink()
        assert ((await slow)[0], (await waits)[0]) == (400, 200)
        assert refused["error"]["code"] == code
