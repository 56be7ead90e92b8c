"""The operator's part of the page at / in a real browser: the admin key, the models and what can be
done with them, and the logs.

All tests share a browser and a server; each begins with a tab that knows no key.
"""

import json
import os
import re
from collections.abc import Iterator

import pytest
import pytest_asyncio

from tests.e2e.conftest import API_KEY
from tests.support.clients.chromium import Page
from tests.support.clients.console_page import (
    AXE,
    COLOURS_CHANGED,
    DESKTOP,
    PHONE,
    at,
    keep_keys,
    load_axe,
    until,
)
from tests.support.fakes.fake_hub import FakeHub, Fault, fake_hub
from tests.support.fakes.macmon import fake_macmon
from tests.support.models.model_folders import write_model
from tests.support.rigs.rig import Rig, ask, http, rig, scripted
from tests.support.rigs.rig import Stream as Answer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]

HOSTILE = "<img src=x onerror=window.broken=1>"
WEIGHTS = "model.safetensors"
WEIGHTS_BYTES = 300_000
REPOSITORY = "org/pulled"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    folder = write_model(tmp_path_factory.mktemp("hub") / "pulled", WEIGHTS_BYTES)
    (folder / "tokenizer.json").write_text("{}")
    with fake_hub() as running:
        running.add_folder(REPOSITORY, folder)
        yield running


@pytest.fixture(scope="module")
def lmx(hub: FakeHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """``left`` and ``right`` fill the budget; ``third`` fits in place of one of them."""
    config = {
        "security": {"api_keys": [API_KEY]},
        "models": [
            scripted("left", memory_bytes="100 MiB"),
            scripted("right", memory_bytes="100 MiB"),
            scripted("third", memory_bytes="100 MiB", preload=False),
        ],
        "memory": {"budget_bytes": "250 MiB", "min_residency_s": 0},
        # The router gives a supervisor up that has not answered five beats.
        "timing": {"beat_timeout_s": 6.0, "beat_interval_s": 0.5},
    }
    macmon = fake_macmon(tmp_path_factory.mktemp("bin"))
    path = os.pathsep.join((str(macmon.parent), os.environ["PATH"]))
    with rig(config, {"HF_ENDPOINT": hub.endpoint, "PATH": path}) as running:
        for model in ("left", "right"):
            running.wait_state(model, "ready", deadline_s=300)
        yield running


@pytest.fixture
def origin(lmx: Rig) -> str:
    return lmx.url.removesuffix("/v1")


@pytest.fixture
def admin_key(lmx: Rig) -> str:
    return (lmx.home / "admin.key").read_text().strip()


async def show(page: Page, origin: str, view: str, key: str = "") -> None:
    """Open a view in a tab that knows this admin key alone."""
    await keep_keys(page, origin, api_key=API_KEY, admin_key=key)
    await page.open(f"{origin}/#/{view}")


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Page, origin: str, admin_key: str) -> Page:
    """The models, as an operator sees them."""
    await browser.ask("Emulation.setDeviceMetricsOverride", **DESKTOP)
    await show(browser, origin, "models", admin_key)
    await until(browser, f"Boolean({row('left')})", "the models")
    return browser


def row(model: str) -> str:
    return (
        '[...document.querySelectorAll(".model-row")].find((one) => one.querySelector(".name")'
        f".textContent === {json.dumps(model)})"
    )


def state(model: str) -> str:
    return f'{row(model)}?.querySelector(".state-of").textContent'


def note(model: str) -> str:
    return f'({row(model)}?.querySelector(".note:not([hidden])")?.textContent ?? "")'


async def do(page: Page, model: str, action: str, *, sure: bool = False) -> None:
    """Press a button of a model, which may stand in its menu."""
    button = (
        f'[...{row(model)}.querySelectorAll(".actions-of button")].find((one) => one.textContent'
        f" === {json.dumps(action)})"
    )
    await until(page, f"Boolean({button})", f"{action} for {model}")
    await page.run(f"{button}.click()")
    if sure:
        await until(page, f"{at('sure')}.open", "a question first")
        await page.run(f"{at('sure-yes')}.click()")


async def test_the_admin_key(browser: Page, origin: str, admin_key: str) -> None:
    """It is asked for once for the tab, a wrong one is said, and it can be forgotten; without it no
    name of a model is shown, and nothing of the operator's is requested."""
    await browser.ask("Emulation.setDeviceMetricsOverride", **DESKTOP)
    await show(browser, origin, "chat")
    await until(browser, "document.body.classList.contains('ready')", "the chat")
    asked = "performance.getEntriesByType('resource').map((one) => one.name)"
    assert not [one for one in await browser.run(asked) if "/admin" in one]
    await browser.run("location.hash = '#/models'")
    await until(browser, f"{at('admin')}.open", "the field for the key")
    assert "left" not in await browser.run(f"{at('view')}.textContent")
    # The question belongs to the view: it closes with it, and comes again.
    await browser.run("location.hash = '#/chat'")
    await until(browser, f"!{at('admin')}.open", "no question in the chat")
    await browser.run("location.hash = '#/models'")
    await until(browser, f"{at('admin')}.open", "the field for the key, again")

    async def give(key: str) -> str:
        await browser.run(
            f"{at('admin-key')}.value = {json.dumps(key)}; {at('admin-fault')}.textContent = '';"
            f"{at('admin-save')}.click()"
        )
        fault = f"!{at('admin')}.open || {at('admin-fault')}.textContent"
        return str(await until(browser, fault, "what becomes of the key"))

    assert "not right" in await give("another-key-of-16-letters")
    assert "another key of the server" in await give(API_KEY)
    assert "a space" in await give("two words")
    assert await browser.run("sessionStorage.getItem('lmx-admin-key')") is None
    assert await give(admin_key) == "True"
    await until(browser, f"Boolean({row('left')})", "the models")
    assert await browser.run("localStorage.getItem('lmx-admin-key')") is None, "for the tab alone"
    await browser.run("location.hash = '#/logs'")
    await until(browser, "document.querySelectorAll('.lines li').length > 2", "no other question")
    await browser.run(f"{at('operator')}.click(); {at('forget-admin-key')}.click()")
    await until(
        browser, "Boolean(document.querySelector('.locked'))", "a view that is locked again"
    )
    assert "left" not in await browser.run(f"{at('view')}.textContent")
    assert await browser.run(f"{at('budget')}.hidden && {at('rate')}.hidden")


async def test_an_operator_s_key_sees_all_and_changes_nothing(
    browser: Page, origin: str, lmx: Rig
) -> None:
    """What a button may not do is said in the words of the answer; and a key that is revoked ends
    the stream."""
    viewer = lmx.cli("key", "add", "viewer", "--scope", "operator").stdout.strip()
    try:
        await browser.ask("Emulation.setDeviceMetricsOverride", **DESKTOP)
        await show(browser, origin, "models", viewer)
        await until(browser, f"{state('left')} === 'ready'", "the models")
        words = "The key 'viewer' is not enough here: it has the scope operator"
        for action, sure in (("Pin", False), ("Unload", False), ("Kill", True)):
            await do(browser, "left", action, sure=sure)
            said = await until(
                browser, f"{note('left')}.includes('viewer') && {note('left')}", "it"
            )
            assert words in said, said
            assert "needs the scope admin" in said, said
            assert not await browser.run(f"{at('admin')}.open"), "it asks for no other key"
        assert await browser.run(f"{state('left')}") == "ready"
        for view, there in (
            ("requests", ".requests, .heading"), ("usage", ".heading"), ("logs", ".lines li"),
            ("machines", ".machine .memory"),
        ):  # fmt: skip
            await browser.run(f"location.hash = '#/{view}'")
            found = f"Boolean(document.querySelector('#view {there}'))"
            await until(browser, found, f"the view {view}")
            assert not await browser.run("Boolean(document.querySelector('.locked'))"), view
        await browser.run("location.hash = '#/models'")
        await until(browser, f"{state('left')} === 'ready'", "the models")
    finally:
        assert lmx.cli("key", "revoke", "viewer").returncode == 0
    await until(browser, f"{at('admin')}.open", "a question for another key")
    # Where no key is needed there is no question: what the header showed is gone.
    second = lmx.cli("key", "add", "second", "--scope", "operator").stdout.strip()
    try:
        await show(browser, origin, "models", second)
        await until(browser, f"{state('left')} === 'ready' && !{at('rate')}.hidden", "the header")
        await browser.run("location.hash = '#/chat'")
    finally:
        assert lmx.cli("key", "revoke", "second").returncode == 0
    await until(browser, f"{at('budget')}.hidden && {at('rate')}.hidden", "no figures")
    assert await browser.run(f"{at('count-models')}.textContent") == ""
    # One that the view before has asked closes with it.
    await until(browser, f"!{at('admin')}.open", "no question in the chat")


async def test_one_is_killed_and_the_other_stream_continues(page: Page, lmx: Rig) -> None:
    """The row shows the memory that came back, and the model is back by itself."""
    async with http() as session:
        url = lmx.url
        session.headers["Authorization"] = f"Bearer {API_KEY}"
        script = {"tokens": 400, "step_s": 0.02, "text": "word "}
        other = Answer(session, url, ask("right", json.dumps(script)))
        cut = Answer(session, url, ask("left", json.dumps({**script, "tokens": 4000})))
        await other.has_text(10)
        await cut.has_text(10)
        await do(page, "left", "Kill", sure=True)
        # The state of the model may show its exit before the command has its answer.
        await until(page, f"/^Killed by you.* came back in/.test({note('left')})", "its memory")
        await other.ended()
        await cut.ended()
    assert [error["code"] for error in cut.errors] == ["worker_killed"]
    assert (other.errors, other.done, other.text.count("word")) == ([], True, 400)
    await until(page, f"{state('left')} === 'ready'", "the model")
    spoken = await page.run(f"{at('announce')}.textContent")
    assert spoken.startswith("left: Killed by you"), spoken
    # The machine measured what both took, if only by a program that says so.
    power = f"/tok.s . [0-9]+ W/.test({at('rate')}.textContent)"
    await until(page, power, "the machine's power")


async def test_what_can_be_done_with_a_model(page: Page) -> None:
    """Pin and eviction, unload, drain and back, and what a load would need."""
    await do(page, "left", "Pin")
    await until(
        page, f"{row('left')}.querySelector('.badges').textContent.includes('pinned')", "a badge"
    )
    await page.run(f"{row('third')}.querySelector('.title').click()")
    plan = f"{row('third')}.querySelector('.plan')"
    await page.run(f"{row('third')}.querySelector('.details button').click()")
    await until(page, f"Boolean({plan}?.querySelector('.sum'))", "the plan, line by line")
    assert "right" in await page.run(f"{plan}.textContent"), "who would be evicted"
    await do(page, "third", "Load")
    await until(page, f"{state('third')} === 'ready'", "a model that is loaded", 300)
    assert await until(page, f"{state('right')} === 'cold'", "one that was evicted")
    assert await page.run(state("left")) == "ready", "the pinned one stays"
    await do(page, "third", "Unload")
    await until(page, f"{note('third')}.startsWith('Unloaded by you')", "what came back")
    await do(page, "left", "Unpin")
    await until(
        page, f"!{row('left')}.querySelector('.badges').textContent.includes('pinned')", "no badge"
    )
    await do(page, "left", "Drain")
    await until(page, f"{state('left')} === 'drained'", "a model that takes no request")
    await do(page, "left", "Resume")
    await until(page, f"{state('left')} === 'ready'", "the model again", 300)
    await do(page, "right", "Load")
    await until(page, f"{state('right')} === 'ready'", "the other one", 300)


async def test_a_pull_with_its_progress(page: Page, hub: FakeHub) -> None:
    hub.faults[WEIGHTS] = Fault(wait_after_bytes=WEIGHTS_BYTES // 2)
    add = (
        '[...document.querySelectorAll(".heading button")].find((one) => one.textContent'
        '.startsWith("Add"))'
    )
    await page.run(f"{add}.click(); {at('pull-source')}.value = {json.dumps(REPOSITORY)}")
    await page.run("document.querySelector('dialog.pull .buttons button').click()")
    shown = "document.querySelector('dialog.pull .plan .sum')"
    await until(page, f"Boolean({shown})", "its size and whether it fits")
    await page.run(
        f"{at('pull-name')}.value = 'mine';"
        "document.querySelector('dialog.pull form').requestSubmit()"
    )
    said = "document.querySelector('dialog.pull .fault').textContent"
    assert "are for Add" in await page.run(said), "a pull has no name of its own"
    # What fails while a dialog is open is said in it: the page behind it can't be reached.
    await page.run("import('/ui/console.js').then(({ shared }) => shared.fail('It failed.'))")
    fault = "document.querySelector('dialog.pull .toast')"
    assert await page.run(f"{fault}.textContent") == "It failed."
    await page.run(f"{fault}.querySelector('button').click()")
    assert await page.run(f"{fault} === null")
    await page.run(f"{at('pull-name')}.value = ''")
    await page.run("document.querySelector('dialog.pull form').requestSubmit()")
    line = "document.querySelector('.downloads li')"
    found = await until(
        page, f"/[1-9]\\d* %/.test({line}?.textContent) && {line}.textContent", "it"
    )
    assert REPOSITORY in found
    del hub.faults[WEIGHTS]
    await until(page, f"{line}.textContent.includes('complete')", "its end")
    await until(page, f"Boolean({row(REPOSITORY)})", "the model among the others")


LATE = """(async () => {
  const { makePulls } = await import("/ui/pull.js");
  const sent = [];
  const answers = [];
  const request = (path) => {
    sent.push(path);
    return new Promise((answer, refuse) => answers.push(Object.assign(answer, { refuse })));
  };
  const failed = [];
  const pulls = makePulls({ request, announce() {}, fail: (error) => failed.push(error.message) });
  document.body.append(pulls.dialog);
  const find = (part) => pulls.dialog.querySelector(part);
  const plan = (message) => ({ message, lines: [], evicts: [], outcome: "loaded", need_bytes: 0,
    free_bytes: 0, budget_bytes: 0, model: "org/m" });
  const settled = () => new Promise((done) => setTimeout(done));
  pulls.show();
  find("input").value = "a-short-name";
  find(".buttons button").click();
  find(".buttons button").click();
  answers[1](plan("the second"));
  await settled();
  answers[0](plan("the first"));
  await settled();
  const shown = find(".plan b").textContent;
  find("form").requestSubmit();
  pulls.dialog.close();
  answers[2](plan(""));
  await settled();
  const refuse = () => answers[4].refuse(new Error("no plan"));
  for (const settle of [() => answers[3](plan("")), refuse]) {
    pulls.show();
    find("form").requestSubmit();
    pulls.dialog.close();
    pulls.show();
    settle();
    await settled();
    pulls.dialog.close();
  }
  const fault = find(".fault").textContent;
  pulls.dialog.remove();
  return { shown, fault, failed, pulled: sent.filter((path) => !path.includes("plan")) };
})()"""


async def test_an_answer_that_is_late_changes_nothing(page: Page) -> None:
    """What a load needs is that of the last look, and what was cancelled is not pulled."""
    assert await page.run(LATE) == {
        "shown": "the second",
        "fault": "",
        "failed": [],
        "pulled": [],
    }


async def test_a_view_that_could_not_be_had_is_asked_for_again(page: Page, origin: str) -> None:
    again = "document.querySelector('#view button.main')"
    await page.ask("Network.enable")
    await page.ask("Network.setCacheDisabled", cacheDisabled=True)
    for script, view, there in (
        ("logs_view.js", "#/logs", "document.querySelector('.lines li')"),
        ("app.js", "", "document.querySelector('body.ready')"),
    ):
        await page.ask("Network.setBlockedURLs", urls=[f"*/ui/{script}"])
        await page.open("about:blank#")
        await page.open(f"{origin}/{view}")
        await until(page, f"{again}?.textContent === 'Try again'", "a way to ask again")
        await page.ask("Network.setBlockedURLs", urls=[])
        await page.run(f"setTimeout(() => {again}.click())")
        await until(page, f"Boolean({there})", script)
    await page.ask("Network.setCacheDisabled", cacheDisabled=False)
    await page.ask("Network.disable")


MOUNTED = """(async () => {
  const { mount } = await import("/ui/models_view.js");
  const [first] = STATUS.models;
  const models = Array.from({ length: 500 }, (_, place) => ({
    ...first, model: place ? `model-${place}` : HOSTILE, problem: HOSTILE, state: "failed",
    pid: null,
  }));
  const listeners = {};
  const root = document.createElement("div");
  document.body.append(root);
  const shared = {
    request: async () => ({ downloads: [] }), style() {}, announce() {}, fail() {},
    colour: () => "c0",
    live: { on: (topic, listener) => ((listeners[topic] = listener), () => {}) },
  };
  const end = mount(root, shared);
  const frame = () => new Promise(requestAnimationFrame);
  const told = { ...STATUS, models };
  const times = [];
  for (let round = 0; round < 20; round += 1) {
    const began = performance.now();
    listeners.status({ ...told, models: models.map((one) => ({ ...one, waiting: round })) });
    await frame(); await frame();
    times.push(performance.now() - began);
  }
  const rows = root.querySelectorAll(".model-row").length;
  const images = root.querySelectorAll("img").length;
  const search = root.querySelector("input[type=search]");
  search.value = "model-499";
  search.dispatchEvent(new Event("input"));
  await frame(); await frame();
  const found = [...root.querySelectorAll(".model-row .name")].map((one) => one.textContent);
  end();
  root.remove();
  return { rows, found, images, times, broken: window.broken ?? null };
})()"""


async def test_500_models_and_hostile_names(page: Page, lmx: Rig) -> None:
    """The page shows a part of them, finds each, and takes no name for HTML."""
    status = json.dumps(
        {
            "at_s": 0,
            "problem": None,
            "system": lmx.status(),
            "models": [{**lmx.worker("left"), "at_s": 0}],
        }
    )
    script = MOUNTED.replace("STATUS", "status").replace("HOSTILE", json.dumps(HOSTILE))
    shown = await page.run(f"(() => {{ const status = {status}; return {script}; }})()")
    print("ms for an update of 500 models:", sorted(round(one) for one in shown["times"]))
    assert shown["rows"] <= 60 and shown["found"] == ["model-499"]
    assert shown["broken"] is None
    assert shown["images"] == 0


ROW = """(async () => {
  const { makeRow } = await import("/ui/model_row.js");
  const row = makeRow({ colour: () => "c0" }, () => {});
  const now_s = Date.now() / 1000;
  const shown = (change, note) => {
    const now = { ...MODEL, at_s: now_s - 30, ...change };
    row.update(now, undefined, { free_bytes: 0, note, busy: "" });
    return [".note", ".state-of"].map((part) => row.element.querySelector(part).textContent);
  };
  const note = { text: "Loaded in 3.0 s.", at_s: now_s - 10 };
  const last_exit = { ...EXIT, at_s: now_s - 5 };
  return {
    fresh: shown({}, note)[0],
    crashed: shown({ last_exit }, note)[0],
    old: shown({ last_exit: null, problem: "It does not fit." }, { ...note, at_s: now_s - 90 })[0],
    stalled: shown({ stalled_s: 6 })[1],
    steps: shown({ stalled_s: 4 })[1],
  };
})()"""


async def test_what_an_action_came_to_hides_no_later_failure(page: Page, lmx: Rig) -> None:
    model = json.dumps({**lmx.worker("left"), "last_exit": None, "problem": None})
    exit_ = json.dumps({"cause": "crash", "detail": "signal 11", "memory": None})
    shown = await page.run(ROW.replace("MODEL", model).replace("EXIT", exit_))
    assert shown["fresh"] == "Loaded in 3.0 s."
    assert shown["crashed"].endswith("crash: signal 11")
    assert shown["old"] == "It does not fit."
    # The time without progress runs on; what may be a long step is not made a stall.
    assert re.fullmatch(r"ready · no progress for (\d\d s|\d min)", shown["stalled"]), shown
    assert shown["steps"] == "ready"


PEERS = """(async () => {
  const { mount } = await import("/ui/machines_view.js");
  const peer = (name, more) => ({
    name, url: "https://studio:8000", kind: "lmx", pinned: true, answers: true, problem: null,
    drained: false, free_bytes: 2 ** 30, budget_bytes: 4 * 2 ** 30, running: 1,
    forwarded: { idle: 3 },
    models: [{ id: HOSTILE, state: "ready", running: 5, rows: 4 }], ...more,
  });
  const root = document.createElement("div");
  document.body.append(root);
  const known = { machine: "desk", peers: [
    peer(HOSTILE),
    peer("far", { url: "javascript:alert(1)", answers: false, problem: "it is gone" }),
  ] };
  let asked = 0;
  let faults = 0;
  const request = async () => {
    asked += 1;
    if (asked === 2) throw new Error("it fails once");
    return known;
  };
  const end = mount(root, {
    request, style() {}, announce() {}, fail: () => { faults += 1; }, colour: () => "c0",
    live: { on: () => () => {} },
  });
  await new Promise((done) => setTimeout(done));
  const focused = root.querySelector("a");
  focused.focus();
  known.peers[0].running = 2;
  const deadline_ms = performance.now() + 60_000;
  while (!root.innerText.includes("2 under way") && performance.now() < deadline_ms)
    await new Promise((done) => setTimeout(done, 50));
  const cards = [...root.querySelectorAll(".machine:not([hidden])")];
  const found = {
    texts: cards.map((one) => one.innerText), images: root.querySelectorAll("img").length,
    links: [...root.querySelectorAll("a")].map((one) => one.href),
    bars: [...root.querySelectorAll(".memory")].map((one) => one.getAttribute("aria-label")),
    faults, kept: document.activeElement === focused,
  };
  end();
  root.remove();
  return found;
})()"""


NO_SUPERVISOR = """(async () => {
  const { shared } = await import("/ui/console.js");
  const own = window.fetch;
  const problem = "The supervisor does not answer.";
  const status = { at_s: Date.now() / 1000, whole: false, problem, system: null, models: [] };
  const sent = new TextEncoder().encode(`event: status\ndata: ${JSON.stringify(status)}\n\n`);
  window.downloads = 0;
  window.fetch = (address, options) => {
    const { pathname } = new URL(address);
    if (pathname.endsWith("admin/models/download")) window.downloads += 1;
    if (!pathname.endsWith("admin/live")) return own(address, options);
    const body = new ReadableStream({ start: (sender) => sender.enqueue(sent) });
    return Promise.resolve(new Response(body));
  };
  window.answerAgain = () => {
    window.fetch = own;
    shared.live.logs("");
  };
  // The stream is opened again for another log.
  shared.live.logs("router");
})()"""


async def test_figures_that_are_not_current_are_marked(page: Page) -> None:
    """A supervisor that does not answer is said in the header, and not when it answers again."""
    await page.run(NO_SUPERVISOR)
    marked = "document.body.classList.contains('stale')"
    said = f"{at('where')}.textContent === 'The supervisor does not answer.'"
    await until(page, f"{said} && {marked}", "what is wrong")
    assert await page.run(f"Boolean({row('left')})"), "what was known stays"
    await until(page, "window.downloads > 0", "the downloads are followed again")
    await page.run("answerAgain()")
    await until(page, f"!({said}) && !{marked}", "it answers again")

    # A menu that is closed by its key leaves the focus at its button.
    await page.run(f"{at('operator')}.click()")
    await page.run("document.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }))")
    assert await page.run(f"{at('operator-menu')}.hidden")
    assert await page.run(f"document.activeElement === {at('operator')}")

    await page.ask("Emulation.setTimezoneOverride", timezoneId="Asia/Tokyo")
    early = await page.run("import('/ui/format.js').then(({ clock }) => clock(20 * 3600))")
    await page.ask("Emulation.setTimezoneOverride", timezoneId="")
    assert early == "1970-01-02 05:00:00", "the date is local, as the time is"


async def test_a_machine_is_drained_and_its_peers_are_shown(page: Page, lmx: Rig) -> None:
    await page.run("location.hash = '#/machines'")
    button = "document.querySelector('.machine button')"
    await until(page, f"{button}?.textContent === 'Drain'", "this machine")
    await page.run(f"{button}.click()")
    await until(page, f"{at('sure')}.open", "a question first")
    await page.run(f"{at('sure-yes')}.click()")
    await until(page, f"{button}?.textContent === 'Undrain'", "it is drained")
    assert lmx.status()["supervisor"]["drained"]
    await page.run(f"{button}.click()")
    await until(page, f"{button}?.textContent === 'Drain'", "it is not drained any more")
    shown = await page.run(PEERS.replace("HOSTILE", json.dumps(HOSTILE)))
    first, second = shown["texts"]
    assert f"{HOSTILE}\nanswers" in first
    assert "4 running, 1 waiting" in first and "2 under way, 3 ended" in first
    assert "it is gone" in second
    assert shown["images"] == 0
    assert shown["links"] == ["http://studio:8000/#/models"]
    assert shown["bars"] == ["3.0 GiB of 4.0 GiB reserved"] * 2
    assert shown["faults"] == 1, "it asks again after a fault"
    assert shown["kept"], "a later figure leaves the focus where it is"


async def test_logs_and_events(page: Page, lmx: Rig) -> None:
    """Filtered by model, level and text; what is no record is folded; nothing becomes HTML."""
    log = lmx.home / "logs" / "worker-right.log"
    stacks = ["Thread 0x01 (most recent call first):", '  File "engine.py", line 7 in step']
    record = {"event": HOSTILE, "level": "warning", "timestamp": "2026-01-02T03:04:05Z", "n": 1}
    with log.open("a") as file:
        file.write(
            "\n".join([*stacks, json.dumps(record), '{"event": "calm", "level": "info"}', ""])
        )
    await page.run("location.hash = '#/logs'")
    lines = "[...document.querySelectorAll('.lines li:not([hidden])')]"
    texts = f"{lines}.map((one) => one.textContent)"
    await until(page, f"{texts}.some((one) => one.includes('worker.ready'))", "events")

    async def choose(label: str, value: str) -> None:
        box = f"document.querySelector('.filters [aria-label^=\"{label}\"]')"
        await page.run(
            f"{box}.value = {json.dumps(value)};"
            f"for (const kind of ['input', 'change']) {box}.dispatchEvent(new Event(kind))"
        )

    await choose("Of which", "left")
    shown = await page.run(texts)
    assert shown and all("left" in one for one in shown), shown
    await choose("What is", "log:right")
    await until(page, f"{texts}.some((one) => one.includes('calm'))", "the log")
    folded = await page.run(f"{lines}.find((one) => one.matches('.raw'))?.textContent")
    assert folded.startswith("Stacks of the threads") and stacks[1] in folded
    await choose("From which", "2")
    assert not [one for one in await page.run(texts) if "calm" in one]
    await choose("Search", "onerror")
    assert len(await page.run(texts)) == 1
    assert await page.run("document.querySelectorAll('#view img').length") == 0
    assert await page.run("window.broken ?? null") is None


LOGS = """(async () => {
  const { mount } = await import("/ui/logs_view.js");
  const listeners = {};
  const asked = [];
  const root = document.createElement("div");
  document.body.append(root);
  const end = mount(root, {
    style() {}, colour: () => "c0",
    live: {
      on: (topic, listener) => ((listeners[topic] = listener), () => {}),
      logs: (name) => asked.push(name),
    },
  });
  const [source, model] = root.querySelectorAll("select");
  const models = (...ids) => listeners.status({ models: ids.map((model) => ({ model })) });
  models("left", "right");
  source.value = "log:right";
  source.dispatchEvent(new Event("change"));
  const search = root.querySelector("input");
  search.value = "needle";
  search.dispatchEvent(new Event("input"));
  listeners.log({ line: "what is no record" });
  const before = root.querySelectorAll("li:not([hidden])").length;
  listeners.log({ line: "with a needle in it" });
  await new Promise(requestAnimationFrame);
  const after = root.querySelectorAll("li:not([hidden])").length;
  model.value = "right";
  models("left");
  const left = [source.value, model.value, root.querySelectorAll("li").length];
  end();
  root.remove();
  return { before, after, left, asked };
})()"""


async def test_lines_that_are_searched_and_a_model_that_is_removed(page: Page) -> None:
    shown = await page.run(LOGS)
    assert (shown["before"], shown["after"]) == (0, 1), "lines that are one entry are searched too"
    assert shown["left"] == ["events", "", 0], "nothing of the model that is gone"
    assert shown["asked"] == ["", "right", "", ""], "the last one as the view ends"


@pytest.mark.parametrize("view", ["models", "logs", "machines"])
async def test_everybody_can_use_it(page: Page, view: str) -> None:
    await load_axe(page)
    await page.run(f"location.hash = '#/{view}'")
    ready = {
        "models": f"Boolean({row('left')})",
        "logs": "Boolean(document.querySelector('.lines li'))",
        "machines": "Boolean(document.querySelector('.machine .memory'))",
    }
    await until(page, ready[view], view)
    if view == "models":
        await page.run(f"{row('left')}.querySelector('.title').click()")
    for size in (DESKTOP, PHONE):
        await page.ask("Emulation.setDeviceMetricsOverride", **size)
        for colours in ("light", "dark"):
            media = [{"name": "prefers-color-scheme", "value": colours}]
            await page.ask("Emulation.setEmulatedMedia", features=media)
            await page.run(COLOURS_CHANGED)
            assert await page.run(AXE) == [], (view, size["width"], colours)
        wide = await page.run(
            "[document.documentElement, document.getElementById('view')]"
            ".map((one) => one.scrollWidth - one.clientWidth)"
        )
        assert wide == [0, 0], (view, size["width"])
    await page.ask("Emulation.setEmulatedMedia", features=[])
