// @ts-check
// One model in the list: a row where there is room, a card on a phone. It is made once, and later
// only what has changed is written, so that whoever has the focus or a menu in it keeps them.

import { actionsOf } from "./model_actions.js";
import { h, icon, writeFacts } from "./dom.js";
import { clock, count, duration, percent, rate, size } from "./format.js";
import { showPlan } from "./plan.js";
import { menu } from "./popups.js";

/** @typedef {Record<string, any>} Value */
/** @typedef {{text: string, strong?: string, bad?: boolean, after?: string}} Note */
/** @typedef {Note & {at_s: number}} Said What an action came to, and when. */
/** @typedef {{free_bytes: number, note?: Said, busy: string}} Around */

const GOOD = ["ready"];
const PASSING = ["queued", "fetching", "starting", "loading", "backoff", "draining", "stopping"];
const BAD = ["failed", "quarantined"];
const LAST_EXIT_S = 600;
const SAID_S = 60;
const STALLED_S = 5;
const KINDS = /** @type {Record<string, string>} */ ({ image: "sees", audio: "hears", video: "watches" });
const CELLS = ["Reserved", "Measured", "Rows", "Queue", "tok/s", "TTFT", "Prefix hits", "Expires"];

/** Returns the class of a state's dot.
 *  @param {string} state */
export const dotOf = (state) =>
  GOOD.includes(state) ? "good" : PASSING.includes(state) ? "warn" : BAD.includes(state) ? "bad" : "";

/** Makes a row.
 *  @param {import("./console.js").Console} console
 *  @param {(model: Value, action: string) => void} run */
export function makeRow(console, run) {
  /** @type {Value} */
  let model = {};
  let actionsAre = "";
  let badgesAre = "";
  let noteIs = "";
  const swatch = h("span", { class: "swatch" });
  const name = h("span", { class: "mono name" });
  const open = h("button", { type: "button", class: "title", "aria-expanded": "false", onclick: () => toggle() }, swatch, name);
  const badges = h("span", { class: "badges" });
  const dot = h("span", { class: "dot" });
  const state = h("span", {});
  const values = CELLS.map(() => h("span", { class: "value" }));
  const cells = CELLS.map((label, place) => h("div", { class: "cell n" }, h("span", { class: "label" }, label), values[place]));
  const actions = h("div", { class: "actions-of" });
  const bar = h("i");
  const progress = h("div", { class: "progress", hidden: true }, bar);
  const note = h("p", { class: "note", hidden: true });
  const facts = h("dl");
  const plan = h("div", { class: "plan" });
  const ask = h("button", { type: "button", onclick: () => showPlan(console, plan, model.model) });
  const details = h("div", { class: "details", hidden: true }, facts, h("div", { class: "buttons" }, ask), plan);
  const element = h(
    "li",
    { class: "model-row" },
    h("div", { class: "who-is" }, open, badges),
    h("div", { class: "state-of" }, dot, state),
    ...cells,
    actions,
    h("div", { class: "below" }, note, progress),
    details,
  );

  function toggle() {
    details.hidden = !details.hidden;
    open.setAttribute("aria-expanded", String(!details.hidden));
    element.classList.toggle("opened", !details.hidden);
    drawDetails();
  }

  /** @param {Around} around */
  function drawActions(around) {
    const { main, rest } = actionsOf(model);
    const are = JSON.stringify([main, rest, around.busy]);
    if (are === actionsAre) return;
    actionsAre = are;
    const focused = actions.contains(document.activeElement);
    const button = (/** @type {import("./model_actions.js").Action} */ one) =>
      h("button", { type: "button", class: one.look ?? "", onclick: () => run(model, one.id) }, one.label);
    const popup = h("div", { class: "popup", hidden: true }, ...rest.map(button), h("button", { type: "button", onclick: () => toggle() }, "Details"));
    const more = h(
      "button",
      { type: "button", class: "quiet icon", "aria-label": `More for ${model.model}`, "aria-haspopup": "true", "aria-expanded": "false" },
      icon("more"),
    );
    menu(more, popup);
    actions.replaceChildren(
      ...(around.busy ? [h("span", { class: "soft busy", role: "status" }, around.busy)] : []),
      ...main.map(button),
      h("div", { class: "menu" }, more, popup),
    );
    if (focused) more.focus();
  }

  function drawBadges() {
    const words = [
      model.kind && model.kind !== "chat" ? model.kind : "",
      ...(model.media ?? []).map((/** @type {string} */ one) => KINDS[one] ?? one),
      model.pinned ? "pinned" : "",
      model.added ? "added" : "",
    ].filter(Boolean);
    if (words.join() === badgesAre) return;
    badgesAre = words.join();
    badges.replaceChildren(...words.map((word) => h("span", { class: "badge" }, word)));
  }

  /** @param {Note | null} wanted */
  function drawNote(wanted) {
    const is = JSON.stringify(wanted);
    if (is === noteIs) return;
    noteIs = is;
    note.hidden = !wanted;
    note.className = wanted?.bad ? "note bad" : "note";
    if (wanted) note.replaceChildren(wanted.text, wanted.strong ? h("b", { class: "good" }, wanted.strong) : "", wanted.after ?? "");
  }

  function drawDetails() {
    if (details.hidden) return;
    writeFacts(facts, factsOf(model));
    write(ask, model.reserved_bytes ? "What would it need?" : "What if I load it?");
  }

  return {
    element,
    /** @param {Value} now
     *  @param {Value | undefined} figure
     *  @param {Around} around */
    update(now, figure, around) {
      model = now;
      swatch.className = now.reserved_bytes ? `swatch ${console.colour(now.model)}` : "swatch";
      write(name, now.model);
      open.title = now.source;
      drawBadges();
      dot.className = `dot ${dotOf(now.state)}`;
      const passed_s = Math.max(0, Date.now() / 1000 - now.at_s);
      write(state, stateOf(now, passed_s));
      const there = Boolean(now.pid);
      const texts = [
        now.reserved_bytes ? size(now.reserved_bytes) : now.needed_bytes ? `needs ${size(now.needed_bytes)}` : "–",
        there ? size(now.memory_bytes + now.decoder_bytes) : "–",
        there ? `${now.requests_active}/${now.max_rows || 1}` : "–",
        String(now.requests_queued + now.waiting || "–"),
        figure && there ? rate(figure.tokens_per_s) : "–",
        figure?.ttft_s ? duration(figure.ttft_s) : "–",
        percent(figure?.prefix_hit_share),
        now.expires_in_s !== null ? duration(Math.max(0, now.expires_in_s - passed_s)) : there ? "never" : "–",
      ];
      texts.forEach((text, place) => {
        write(values[place], text);
        cells[place].classList.toggle("none", text === "–");
      });
      drawActions(around);
      drawNote(noteOf(now, around, passed_s));
      progress.hidden = !now.phase;
      progress.classList.toggle("unknown", now.fraction === null);
      bar.style.width = `${100 * (now.fraction ?? 1)}%`;
      drawDetails();
    },
  };
}

/** Writes a text where it is another one.
 *  @param {Element} element
 *  @param {string} text */
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** @param {Value} model
 *  @param {number} passed_s Since the model's figures were taken. */
function stateOf(model, passed_s) {
  if (model.phase) return `${model.state} · ${model.phase}${model.fraction === null ? "" : ` ${Math.round(100 * model.fraction)} %`}`;
  // It is sent again when it passes this limit, and then runs on.
  if (model.stalled_s > STALLED_S) return `${model.state} · no progress for ${duration(model.stalled_s + passed_s)}`;
  if (model.retry_in_s !== null && model.state === "backoff") return "restarting";
  return model.state;
}

/** Returns the line below a model, the most pressing one; null for none.
 *  @param {Value} model
 *  @param {Around} around
 *  @param {number} passed_s Since the model's figures were taken.
 *  @returns {Note | null} */
function noteOf(model, around, passed_s) {
  const last = model.last_exit;
  const { note } = around;
  if (note && Date.now() / 1000 - note.at_s < SAID_S && !(last?.at_s > note.at_s)) return note;
  if (model.position) return { text: `Waits for memory, as number ${model.position}. It needs ${size(model.needed_bytes)}.` };
  const again = model.retry_in_s !== null ? ` It is started again in ${duration(Math.max(0, model.retry_in_s - passed_s))}.` : "";
  if (model.problem) return { text: model.problem, bad: true, after: again };
  if (last && Date.now() / 1000 - last.at_s < LAST_EXIT_S) return { ...exitNote(last), after: again };
  if (model.state !== "cold" || !model.needed_bytes) return null;
  const lacks = model.needed_bytes - around.free_bytes;
  if (lacks <= 0) return { text: "Fits in the free memory: nothing is evicted." };
  return { text: `Needs ${size(lacks)} more than is free: idle models are evicted for it, or it waits.` };
}

/** @param {Value} last */
function exitNote(last) {
  const back = last.memory ? `${size(last.memory.returned_bytes)} came back in ${duration(last.memory.took_s)}` : "";
  return { text: `${clock(last.at_s)} ${last.cause}${last.detail ? `: ${last.detail}` : ""}${back ? " · " : ""}`, strong: back };
}

/** @param {Value} model
 *  @returns {[string, string][]} */
function factsOf(model) {
  const exits = Object.entries(model.exits).filter(([, times]) => times);
  const last = model.last_exit;
  /** @type {[string, string | null | false][]} */
  const facts = [
    ["Source", model.source],
    ["Kind", [model.kind, model.family].filter(Boolean).join(", ")],
    ["Aliases", model.aliases.join(", ")],
    ["Context", model.context_length ? `${count(model.context_length)} tokens` : ""],
    ["Weights", model.weights_bytes ? size(model.weights_bytes) : ""],
    ["KV caches, at most", model.kv_capacity_bytes ? size(model.kv_capacity_bytes) : ""],
    ["Kept for full contexts", model.context_bytes ? size(model.context_bytes) : ""],
    ["Reserved", model.reserved_bytes ? `${size(model.reserved_bytes)}: an unload gives it back` : ""],
    ["Next load reserves", model.needed_bytes ? size(model.needed_bytes) : ""],
    ["Peak", model.peak_memory_bytes ? size(model.peak_memory_bytes) : ""],
    ["Process", model.pid ? `${model.pid} (${model.instance})` : ""],
    ["Ranks", model.ranks.map((/** @type {Value} */ one) => `rank ${one.rank}: process ${one.pid}${one.machine ? ` on ${one.machine}` : ""}, ${size(one.memory_bytes)}`).join("; ")],
    ["Loaded", model.loaded_at_s ? clock(model.loaded_at_s) : ""],
    ["Loads", model.loads_total ? `${count(model.loads_total)}, ${duration(model.load_s_total / model.loads_total)} each` : ""],
    ["Requests", count(model.requests_total)],
    ["Tokens", count(model.tokens_total)],
    ["Prefix hits of this worker", model.prompt_tokens_total ? percent(model.cached_tokens_total / model.prompt_tokens_total) : ""],
    ["Restarts", count(model.restarts)],
    ["Exits", exits.map(([cause, times]) => `${cause} ${times}`).join(", ")],
    ["Last exit", last ? `${clock(last.at_s)} ${last.cause}${last.detail ? `: ${last.detail}` : ""}` : ""],
    ["Memory that came back", last?.memory?.detail ?? ""],
    ["Adapters", model.adapters.map((/** @type {Value} */ one) => (one.problem ? `${one.id} (${one.problem})` : one.id)).join(", ")],
    ["Quantized", model.quantized ?? ""],
    ["Remarks", model.remarks.join(" ")],
  ];
  return /** @type {[string, string][]} */ (facts.filter(([, text]) => text));
}
