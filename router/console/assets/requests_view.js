// @ts-check
// The requests of all clients: those under way and the last ones that ended, where their time went, who
// waits for whom, and what they asked.

import { makeBatchList } from "./batch_list.js";
import { h } from "./dom.js";
import { count as many, duration } from "./format.js";
import { passed, requestDetails, stateOf, whose } from "./request_details.js";
import { VirtualList } from "./virtual_list.js";
import { drawWaterfall, legend, partsOf, scaleOf, waterfall } from "./waterfall.js";

/** @typedef {any} Item A request as GET /admin/requests has it, and when that came (`at_ms`, see live.js). */

const TICK_MS = 1000;
const ROW_PX = 56;
const CARD_PX = 124;

const UNDER_WAY = new Set(["waiting", "queued", "running"]);

/** @type {Record<string, (item: Item) => boolean>} */
const STATES = {
  "All": () => true,
  "Under way": (item) => UNDER_WAY.has(item.state),
  "Waiting": (item) => item.waits_for !== null,
  "Ended": (item) => !UNDER_WAY.has(item.state),
  "Failed": (item) => item.state === "failed" || item.state === "interrupted",
  "Read again": (item) => item.reread !== null,
};

/** @param {HTMLElement} element
 *  @param {string} text */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Shows the view.
 *  @param {HTMLElement} root
 *  @param {import("./console.js").Console} console
 *  @returns {() => void} */
export function mount(root, console) {
  /** @type {Item[]} */
  let live = [];
  /** @type {Item[]} */
  let ended = [];
  let scale_s = 1;
  /** The places of the requests since the pointer came onto the list: none moves under it.
   *  @type {Map<string, number> | null} */
  let held = null;
  const narrow = matchMedia("(max-width: 52rem)");
  const details = requestDetails(console, { all: () => [...live, ...ended], cancel, open });

  const state = choice("State", Object.keys(STATES));
  const model = choice("Model", ["All"]);
  const key = choice("Key", ["All"]);
  const count = h("p", { class: "soft count" });
  const axis = h("p", { class: "soft axis", "aria-hidden": "true" });
  const empty = h("p", { class: "soft empty", hidden: true });
  const batches = makeBatchList((batch) => cancelBy(`admin/batches/${encodeURIComponent(batch.id)}/cancel`));
  const list = new VirtualList("Requests", makeRow, () => (narrow.matches ? CARD_PX : ROW_PX));
  list.element.addEventListener("pointerenter", () => {
    held = new Map(list.items.map((item, place) => [item.id, place]));
  });
  list.element.addEventListener("pointerleave", () => {
    held = null;
    refresh();
  });
  console.style("requests.css");
  root.append(
    h(
      "section",
      { class: "page requests", "aria-labelledby": "requests-title" },
      h("header", { class: "heading" }, h("h1", { id: "requests-title" }, "Requests"), count, legend(), batches.element),
      h("div", { class: "filters" }, state.label, model.label, key.label, axis),
      empty,
      list.element,
    ),
    details.element,
  );

  /** @param {string} name
   *  @param {string[]} options */
  function choice(name, options) {
    const select = h("select", { onchange: refresh }, ...options.map((one) => h("option", {}, one)));
    return { select, label: h("label", {}, h("span", {}, name), select) };
  }

  /** Offers the values that there are, and keeps what is chosen.
   *  @param {HTMLSelectElement} select
   *  @param {Iterable<string>} values */
  function offer(select, values) {
    const wanted = ["All", ...[...new Set(values)].sort()];
    if (!wanted.includes(select.value)) wanted.push(select.value);
    if (wanted.join("\n") === [...select.options].map((one) => one.value).join("\n")) return;
    const chosen = select.value;
    select.replaceChildren(...wanted.map((one) => h("option", {}, one)));
    select.value = chosen;
  }

  function makeRow() {
    /** @type {Item} */
    let shown = null;
    const name = h("span", { class: "mono name" });
    const who = h("span", { class: "soft whose" });
    const open_ = h("button", { class: "open", type: "button", onclick: () => open(shown.id) }, name, who);
    const bar = waterfall();
    const why = h("span", { class: "why" });
    const tokens = h("span", { class: "soft tokens" });
    const took = h("span", { class: "took" });
    const stop = h("button", { class: "small danger", type: "button", onclick: () => cancel(shown) }, "Cancel");
    const element = h("li", { class: "request" }, open_, h("div", { class: "time" }, bar, why), tokens, took, stop);
    /** @param {Item} item */
    const update = (item) => {
      const passed_s = passed(item);
      shown = item;
      element.dataset.state = item.state;
      say(name, `${item.family} · ${item.model}`);
      say(who, [whose(item) || "no key", item.machine ? `on ${item.machine}` : ""].filter(Boolean).join(" · "));
      say(why, stateOf(item));
      why.classList.toggle("bad", item.state === "failed" || item.state === "interrupted");
      say(tokens, tokensOf(item));
      say(took, duration(item.age_s + passed_s));
      stop.hidden = item.ended !== null;
      stop.disabled = item.cancelled;
      stop.setAttribute("aria-label", `Cancel ${item.family} of ${item.model}`);
      drawWaterfall(bar, partsOf(item, passed_s), scale_s);
    };
    return { element, update };
  }

  function refresh() {
    const every = [...live].reverse().concat(ended);
    offer(model.select, every.map((item) => item.model));
    offer(key.select, every.map((item) => item.key ?? "none"));
    /** @param {Item} item */
    const fits = (item) =>
      STATES[state.select.value](item) &&
      (model.select.value === "All" || item.model === model.select.value) &&
      (key.select.value === "All" || (item.key ?? "none") === key.select.value);
    const fitting = every.filter(fits);
    const items = held ? inPlace(fitting, held) : fitting;
    scale_s = scaleOf(items.map((item) => item.age_s + passed(item)));
    const waiting = live.filter((item) => item.waits_for !== null).length;
    const newer = fitting.length - items.length;
    const hint = newer ? ` · ${newer} more when the pointer leaves the list` : "";
    say(count, `${live.length} under way, ${waiting} of them waiting · ${ended.length} ended${hint}`);
    say(axis, items.length ? `A whole bar is ${duration(scale_s)}` : "");
    empty.hidden = items.length > 0;
    say(empty, every.length ? "No request is like this." : "No request has come yet.");
    list.show(items);
    details.refresh();
  }

  /** @param {import("./live.js").Requests} now */
  function take(now) {
    ({ live, ended } = now);
    refresh();
  }

  /** @param {string} id */
  function open(id) {
    const item = [...live, ...ended].find((one) => one.id === id);
    if (item) details.open(item);
  }

  /** @param {Item} item */
  function cancel(item) {
    return cancelBy(`admin/requests/${encodeURIComponent(item.id)}/cancel`);
  }

  /** @param {string} path */
  async function cancelBy(path) {
    try {
      await console.request(path, { method: "POST" });
      console.announce("Cancelled");
    } catch (error) {
      console.fail(error);
    }
  }

  const stop = console.live.on("requests", take);
  const stopBatches = console.live.on("batches", (now) => batches.show(now.batches));
  // What is under way grows without a message.
  const ticking = setInterval(() => document.hidden || !live.length || (list.draw(), details.refresh()), TICK_MS);
  const resize = () => list.show(list.items);
  narrow.addEventListener("change", resize);
  refresh();
  return () => {
    stop();
    stopBatches();
    clearInterval(ticking);
    narrow.removeEventListener("change", resize);
    list.close();
    root.replaceChildren();
  };
}

/** @param {Item[]} items
 *  @param {Map<string, number>} held */
const inPlace = (items, held) =>
  items.filter((item) => held.has(item.id)).sort((one, other) => (held.get(one.id) ?? 0) - (held.get(other.id) ?? 0));

/** @param {Item} item */
function tokensOf(item) {
  if (item.prompt_tokens === null) return "";
  const cached = item.cached_tokens ? `\n${many(item.cached_tokens)} cached` : "";
  return `${many(item.prompt_tokens)} + ${many(item.tokens)} tokens${cached}`;
}
