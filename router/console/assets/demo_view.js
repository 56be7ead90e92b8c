// @ts-check
// The story that `lmx demo --two` opens: two models answer the same question, one is killed in
// mid-answer, the other continues, and the killed one comes back. It uses the routes that everybody
// has, and does nothing before somebody begins it.

import { chat } from "./api.js";
import { h } from "./dom.js";
import { duration, many } from "./format.js";

const QUESTION = "Write a long story about a lighthouse keeper and the sea.";
const MOST_TOKENS = 1500;
const SHOWN_MS = 3000;
const LOOK_MS = 200;
const PROMISE = "its memory comes back, and the other one's answer continues without a pause.";
const STEPS = [
  "Load two models, each in a process of its own",
  "Ask both the same question",
  "Kill one in the middle of its answer",
  "The other one continues",
  "The killed one is back, and answers again",
];

/** @typedef {object} Column
 *  @property {string} model
 *  @property {HTMLElement} element
 *  @property {HTMLElement} state
 *  @property {HTMLElement} text
 *  @property {HTMLElement} fault
 *  @property {number} tokens
 *  @property {number} lastMs When the last token came; 0 before the first.
 *  @property {number} pauseMs The longest time between two tokens since it was set to 0.
 *  @property {boolean} ended */

/** Begins to show the story.
 *  @param {HTMLElement} root
 *  @param {import("./console.js").Console} console
 *  @returns {() => void} a function that ends it */
export function mount(root, console) {
  console.style("demo.css");
  let ending = new AbortController();
  /** @type {any[]} */
  let models = [];
  /** @type {Column[]} */
  let shown = [];
  let playing = false;
  const button = h("button", { type: "button", class: "main", disabled: true, onclick: () => play() }, "Begin");
  const intro = h("p", { class: "soft" }, "Waiting for the models");
  const steps = h("ol", { class: "steps" }, ...STEPS.map((step) => h("li", {}, h("span", {}, step), h("small"))));
  const columns = h("div", { class: "columns" });
  root.append(
    h("div", { class: "page demo" }, h("div", { class: "heading" }, h("h1", {}, "One is killed, the other continues"), button), intro, steps, columns),
  );

  const chosen = () => models.filter((model) => ["chat", null, undefined].includes(model.kind)).slice(0, 2);
  const stopStatus = console.live.on("status", (status) => {
    models = status.models;
    const two = chosen();
    for (const column of shown) {
      const state = models.find(({ model }) => model === column.model)?.state ?? "";
      column.state.textContent = state;
      column.state.className = `state ${state}`;
    }
    if (playing) return;
    button.disabled = two.length < 2;
    intro.textContent =
      two.length < 2
        ? "The story needs two models that chat: `lmx demo --two` serves two small ones."
        : `${two[0].model} and ${two[1].model} answer a question. Then ${two[1].model} is killed: ${PROMISE}`;
  });

  /** @param {number} place
   *  @param {string} text
   *  @param {boolean} [done] */
  function step(place, text, done = false) {
    const item = steps.children[place];
    item.className = done ? "done" : "now";
    /** @type {HTMLElement} */ (item.lastChild).textContent = text;
    if (done) console.announce(`${STEPS[place]}: ${text}`);
  }

  async function play() {
    const { signal } = (ending = new AbortController());
    playing = button.disabled = true;
    for (const item of steps.children) item.className = "";
    shown = chosen().map(({ model }) => columnOf(model, console.colour(model)));
    columns.replaceChildren(...shown.map(({ element }) => element));
    try {
      await tell(signal);
    } catch (error) {
      if (!signal.aborted) console.fail(error);
    }
    if (signal.aborted) return;
    playing = button.disabled = false;
    button.textContent = "Once more";
  }

  /** @param {AbortSignal} signal */
  async function tell(signal) {
    const [one, other] = shown;
    step(0, "");
    for (const { model } of shown) await console.request("admin/models/load", { body: { model_id: model } });
    step(0, "both are ready", true);

    step(1, "");
    for (const column of shown) stream(column, signal);
    await until(() => shown.every(({ tokens, ended }) => tokens > 0 || ended), signal);
    await until(after(SHOWN_MS), signal);
    step(1, "both write", true);

    step(2, "");
    const before = one.tokens;
    one.pauseMs = 0;
    const killedMs = performance.now();
    const { memory } = await console.request(`admin/workers/${encodeURIComponent(other.model)}/kill`, { method: "POST" });
    await until(() => other.ended, signal);
    step(2, `${many(other.tokens, "piece")} written${memory ? `; ${memory.detail}` : ""}`, true);

    const since = () =>
      `${many(one.tokens - before, "more piece")} from ${one.model} since, its longest pause ${duration(one.pauseMs / 1000)}`;
    const telling = setInterval(() => step(3, since()), LOOK_MS);
    try {
      step(4, "");
      // The load waits until the model is ready, whoever began it.
      await console.request("admin/models/load", { body: { model_id: other.model } });
      const backS = (performance.now() - killedMs) / 1000;
      step(4, `ready ${duration(backS)} after the kill`);
      other.tokens = 0;
      other.text = h("p", { class: "text" });
      other.element.append(other.text);
      stream(other, signal);
      await until(() => other.tokens > 0 || other.ended, signal);
      await until(after(SHOWN_MS), signal);
      step(4, `ready ${duration(backS)} after the kill, and it writes`, true);
    } finally {
      clearInterval(telling);
    }
    step(3, since(), true);
  }

  return () => {
    ending.abort();
    stopStatus();
  };
}

/** @param {string} model
 *  @param {string} colour
 *  @returns {Column} */
function columnOf(model, colour) {
  const state = h("span", { class: "state" });
  const text = h("p", { class: "text" });
  const fault = h("p", { class: "fault", hidden: true });
  const title = h("h2", {}, h("i", { class: `swatch ${colour}` }), h("span", { class: "mono" }, model), state);
  const element = h("section", { class: "card", "aria-label": model, tabIndex: 0 }, title, h("p", { class: "asked" }, QUESTION), text, fault);
  return { model, element, state, text, fault, tokens: 0, lastMs: 0, pauseMs: 0, ended: false };
}

/** Has the column's model write into it. Never throws: what goes wrong stands in the column.
 *  @param {Column} column
 *  @param {AbortSignal} signal */
async function stream(column, signal) {
  column.ended = false;
  column.lastMs = 0;
  const body = { model: column.model, messages: [{ role: "user", content: QUESTION }], max_tokens: MOST_TOKENS, temperature: 0.7 };
  try {
    for await (const { chunk } of chat(body, signal)) {
      const delta = chunk?.choices[0]?.delta ?? {};
      const text = delta.content ?? delta.reasoning_content;
      if (!text) continue;
      const now = performance.now();
      if (column.lastMs) column.pauseMs = Math.max(column.pauseMs, now - column.lastMs);
      column.lastMs = now;
      column.tokens += 1;
      column.text.append(text);
      column.element.scrollTop = column.element.scrollHeight;
    }
  } catch (/** @type {any} */ error) {
    if (signal.aborted) return;
    column.fault.hidden = false;
    column.fault.replaceChildren(h("code", {}, error.code), ` ${error.message}`);
    column.element.scrollTop = column.element.scrollHeight;
  } finally {
    column.ended = true;
  }
}

/** @param {number} ms */
function after(ms) {
  const endMs = performance.now() + ms;
  return () => performance.now() >= endMs;
}

/** Waits until a condition is met.
 *  @param {() => boolean} condition
 *  @param {AbortSignal} signal */
async function until(condition, signal) {
  while (!condition()) {
    signal.throwIfAborted();
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
}
