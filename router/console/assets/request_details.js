// @ts-check
// One request in all its figures: why its prompt was read again, what it asked, and how another model
// answers the same.

import { posted, url } from "./api.js";
import { curlOf } from "./copy_as.js";
import { copyBy, h, writeFacts } from "./dom.js";
import { count, duration } from "./format.js";
import { drawWaterfall, inWords, legend, partsOf, waterfall } from "./waterfall.js";

/** @typedef {any} Item */

const MOST_AHEAD = 20;
/** What stands in the place of a file's content. */
const FILE = /"\[[\w.+/-]+, \d+ characters\]"/;

/** Why a prompt is read again, for people.
 *  @type {Record<string, string>} */
const REREAD = {
  differs: "The prompt departs from the earlier one",
  answer: "The prompt departs from the earlier one in the answer or behind it",
  media: "An image, a sound or a video is another one",
  evicted: "The prefix cache had no memory to keep what was computed",
  not_cuttable: "What is kept of the earlier prompt can only be used whole by this model",
  disk: "What was computed was on the disk, and was not read in time",
  prompt_logprobs: "The request wants the logprobs of its prompt, so all of it is computed",
  no_cache: "The model has no prefix cache",
};
const DEPARTS = new Set(["differs", "answer", "media"]);

/** Returns how long ago what is known of a request was so; it stands still once the request has ended.
 *  @param {Item} item */
export const passed = (item) => (item.ended === null ? (performance.now() - item.at_ms) / 1000 : 0);

/** Returns whose a request is.
 *  @param {Item} item */
export const whose = (item) => [item.key ? `key ${item.key}` : "", item.client ?? ""].filter(Boolean).join(" · ");

/** Returns what people call the state of a request.
 *  @param {Item} item */
export function stateOf(item) {
  if (item.cancelled && item.ended === null) return "is being cancelled";
  if (item.error) return item.error;
  return item.waits_for ? item.waits_for.text : item.phase && item.state === "running" ? item.phase : item.state;
}

/** Returns the details panel, a dialog.
 *  @param {import("./console.js").Console} console
 *  @param {{all: () => Item[], cancel: (item: Item) => void, open: (id: string) => void}} actions */
export function requestDetails(console, actions) {
  /** @type {Item} */
  let shown = null;
  /** @type {AbortController | null} */
  let replaying = null;
  let aheadIs = "";
  let rereadIs = "";
  const title = h("h2", { id: "request-title", tabIndex: -1 });
  const bar = waterfall();
  const facts = h("dl", { class: "facts" });
  const ahead = h("div", { class: "ahead" });
  const reread = h("div", { class: "reread" });
  const captured = h("div", { class: "captured" });
  const stop = h("button", { type: "button", class: "danger", onclick: () => actions.cancel(shown) }, "Cancel the request");
  const element = h(
    "dialog",
    { class: "request-details", "aria-labelledby": "request-title", onclose: () => replaying?.abort() },
    title,
    bar,
    legend(),
    facts,
    ahead,
    reread,
    captured,
    h("div", { class: "buttons" }, stop, h("span", { class: "space" }), h("button", { type: "button", class: "main", onclick: () => element.close() }, "Close")),
  );

  /** @param {Item} item */
  function open(item) {
    shown = item;
    captured.replaceChildren(...(item.captured ? [showButton()] : []));
    draw();
    if (!element.open) element.showModal();
    title.focus();
  }

  function refresh() {
    if (!element.open) return;
    const now = actions.all().find((item) => item.id === shown.id);
    if (!now || (now === shown && now.ended !== null)) return;
    shown = now;
    draw();
  }

  function draw() {
    const item = shown;
    const passed_s = passed(item);
    title.textContent = `${item.family} · ${item.model}`;
    const parts = partsOf(item, passed_s);
    drawWaterfall(bar, parts, Math.max(item.age_s + passed_s, 0.001));
    stop.hidden = item.ended !== null;
    stop.disabled = item.cancelled;
    /** @type {Array<[string, string | null]>} */
    const rows = [
      ["State", stateOf(item)],
      ["Status", item.http_status === null ? null : `${item.http_status}`],
      ["Error", item.error_message],
      ["Took", duration(item.age_s + passed_s)],
      ["Time to first token", item.ttft_s === null ? null : duration(item.ttft_s)],
      ["Phases", inWords(parts) || null],
      ["Prompt", item.prompt_tokens === null ? null : `${count(item.prompt_tokens)} tokens${item.cached_tokens === null ? "" : `, ${count(item.cached_tokens)} of them cached`}`],
      ["Answer", `${count(item.tokens)} tokens${item.stream ? ", streamed" : ""}`],
      ["From", whose(item) || "no key"],
      ["Came", new Date(item.created * 1000).toLocaleString()],
      ["Id", item.id],
      ["Request id", item.request_id],
    ];
    writeFacts(facts, /** @type {[string, string][]} */ (rows.filter(([, value]) => value)));
    drawAhead(item);
    drawReread(item);
  }

  /** Shows who the request waits for.
   *  @param {Item} item */
  function drawAhead(item) {
    const wait = item.waits_for;
    const before = actions
      .all()
      .filter((one) => wait && one.ended === null && one.id !== item.id && one.model === wait.model)
      .filter((one) => one.state === "running" || (one.state === item.state && one.created < item.created));
    const are = JSON.stringify([wait, before.map((one) => [one.id, one.family, whose(one), stateOf(one)])]);
    if (are === aheadIs) return;
    aheadIs = are;
    if (!wait) return ahead.replaceChildren();
    const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset.id;
    const buttons = before.slice(0, MOST_AHEAD).map((one) =>
      h(
        "li",
        {},
        h("button", { type: "button", class: "small", "data-id": one.id, onclick: () => actions.open(one.id) }, `${one.family} · ${whose(one) || "no key"} · ${stateOf(one)}`),
      ),
    );
    const more = before.length - buttons.length;
    ahead.replaceChildren(
      h("h3", {}, "It waits for"),
      h("p", {}, wait.text),
      wait.evicting.length ? h("p", { class: "soft" }, `Being unloaded for it: ${wait.evicting.join(", ")}`) : "",
      buttons.length ? h("ul", { "aria-label": "Requests before it" }, ...buttons) : "",
      more > 0 ? h("p", { class: "soft" }, `and ${more} more`) : "",
    );
    if (focused) /** @type {HTMLElement | null} */ (ahead.querySelector(`[data-id="${CSS.escape(focused)}"]`))?.focus();
  }

  /** @param {Item} item */
  function drawReread(item) {
    const why = item.reread;
    if (JSON.stringify(why) === rereadIs) return;
    rereadIs = JSON.stringify(why);
    if (!why) return reread.replaceChildren();
    const departs = DEPARTS.has(why.reason);
    const place = departs ? "first difference at token" : "computed again from token";
    const texts = [why.before, why.was, why.now].some((text) => text !== null);
    reread.replaceChildren(
      h("h3", {}, "Why the prompt was read again"),
      h("p", {}, `${count(why.cached_tokens)} of ${count(why.expected_tokens)} tokens that had been computed before were cached. ${REREAD[why.reason] ?? why.reason}: ${place} ${count(why.position)}.`),
      texts
        ? h(
            "dl",
            { class: "facts texts" },
            ...[["Before", why.before], ["Was", why.was], ["Now", why.now]].flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, h("code", {}, text ?? ""))]),
          )
        : h("p", { class: "soft" }, departs ? "The text around it is shown where server.show_rereads is set." : ""),
    );
  }

  function showButton() {
    return h("button", { type: "button", onclick: show }, "Show what it asked");
  }

  async function show() {
    const item = shown;
    try {
      const found = await console.request(`admin/requests/${encodeURIComponent(item.id)}/capture`);
      if (shown.id !== item.id) return;
      drawCapture(item, found);
    } catch (error) {
      if (shown.id !== item.id) return;
      captured.replaceChildren(h("p", { class: "fault", role: "alert" }, /** @type {Error} */ (error).message));
    }
  }

  /** @param {Item} item
   *  @param {any} found */
  function drawCapture(item, found) {
    if (found.body === null) {
      captured.replaceChildren(h("p", { class: "soft" }, "What it asked is too large to be captured."));
      return;
    }
    const text = JSON.stringify(found.body, null, 2);
    const command = curlOf(url(found.path.slice(1)), found.body, item.owner !== null);
    const answer = h("div", { class: "answer" });
    const select = h("select", {}, ...modelsSeen().map((one) => h("option", {}, one)));
    const files = FILE.test(text);
    const run = h("button", { type: "button", disabled: files, onclick: () => replay(found, select.value, answer) }, "Replay");
    captured.replaceChildren(
      h("h3", {}, "What it asked"),
      h("p", { class: "soft" }, `${found.method} ${found.path}. Keys and the content of files are left out${files ? ": it had files, so it can't be asked again from here" : ""}.`),
      h("pre", { tabIndex: 0, "aria-label": "The body" }, text),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", onclick: (/** @type {any} */ event) => copyBy(event.target, command) }, "Copy as curl"),
        h("span", { class: "space" }),
        h("label", { class: "check" }, "Model", select),
        run,
      ),
      answer,
    );
    select.value = item.model;
  }

  /** Returns the models that a replay may ask: those that the console knows.
   *  @returns {string[]} */
  function modelsSeen() {
    /** @type {string[]} */
    let ids = [];
    console.live.on("status", (status) => (ids = status.models.map((/** @type {any} */ one) => one.model)))();
    return [...new Set([shown.model, ...ids, ...actions.all().map((item) => item.model)])];
  }

  /** @param {any} found
   *  @param {string} model
   *  @param {HTMLElement} answer */
  async function replay(found, model, answer) {
    replaying?.abort();
    const mine = (replaying = new AbortController());
    answer.replaceChildren(h("p", { class: "soft" }, `${model} answers …`));
    const began_ms = performance.now();
    try {
      const asked = posted({ ...found.body, model, stream: false, stream_options: undefined });
      const made = await (await console.open(found.path.slice(1), { ...asked, signal: mine.signal })).json();
      const took = duration((performance.now() - began_ms) / 1000);
      answer.replaceChildren(h("p", { class: "soft" }, `${model} answered in ${took}:`), h("pre", { tabIndex: 0, "aria-label": "The answer" }, answerText(made)));
      console.announce(`${model} has answered`);
    } catch (error) {
      if (mine.signal.aborted) return;
      answer.replaceChildren(h("p", { class: "fault", role: "alert" }, /** @type {Error} */ (error).message));
    }
  }

  return { element, open, refresh };
}

/** Returns the text of an answer of any of the APIs; all of it as JSON where it has none.
 *  @param {any} made
 *  @returns {string} */
export function answerText(made) {
  const texts = [
    ...(made.choices ?? []).map((/** @type {any} */ one) => one.message?.content ?? one.text),
    ...(Array.isArray(made.content) ? made.content : []).map((/** @type {any} */ one) => one.text),
    ...(Array.isArray(made.output) ? made.output : []).flatMap((/** @type {any} */ one) => (one.content ?? []).map((/** @type {any} */ part) => part.text)),
    made.message?.content,
    made.response,
  ].filter((text) => typeof text === "string" && text);
  return texts.length ? texts.join("\n\n") : JSON.stringify(made, null, 2);
}
