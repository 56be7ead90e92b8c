// @ts-check
// The view Models: the memory budget, every model with what can be done with it, and what is pulled.

import { h } from "./dom.js";
import { size } from "./format.js";
import { budgetBar } from "./memory.js";
import { act } from "./model_actions.js";
import { makeRow } from "./model_row.js";
import { makePulls } from "./pull.js";

/** @typedef {Record<string, any>} Value */

const FIRST_SHOWN = 50;
const MORE_SHOWN = 100;
const SEARCH_FROM = 8;
const TICK_MS = 1000;
const QUIET = ["cold", "failed", "quarantined", "drained"];
const HEADINGS = ["Model", "State", "Reserved", "Measured", "Rows", "Queue", "tok/s", "TTFT", "Prefix hits", "Expires"];

/** Begins to show the models.
 *  @param {HTMLElement} root
 *  @param {import("./console.js").Console} console
 *  @returns {() => void} what ends it */
export function mount(root, console) {
  console.style("models.css");
  /** @type {Value[]} */
  let models = [];
  /** @type {Value} */
  let figures = {};
  /** @type {Value | null} */
  let supervisor = null;
  let most = FIRST_SHOWN;
  let drawing = false;
  /** @type {Map<string, ReturnType<typeof makeRow>>} */
  const rows = new Map();
  /** @type {Map<string, import("./model_row.js").Said>} */
  const notes = new Map();
  /** @type {Map<string, string>} What is being done with a model. */
  const busy = new Map();

  const pulls = makePulls(console);
  const search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search the models", autocomplete: "off", hidden: true });
  const memory = h("section", { class: "card budget-card", "aria-label": "Memory", hidden: true });
  const list = h("ul", { class: "models", role: "list", "aria-label": "Models" });
  const more = h("button", { type: "button", hidden: true });
  const empty = h("p", { class: "soft", role: "status" }, "Asking the server for its models.");
  const headings = h("div", { class: "headings", "aria-hidden": "true" }, ...HEADINGS.map((name) => h("span", {}, name)), h("span"));
  root.append(
    h(
      "div",
      { class: "page" },
      h("div", { class: "heading" }, h("h1", {}, "Models"), h("span", { class: "space" }), search, h("button", { type: "button", onclick: pulls.show }, "Add or pull…")),
      memory,
      pulls.element,
      h("section", { class: "card list-card", "aria-label": "List of the models" }, empty, h("div", { class: "grid" }, headings, list), more),
    ),
    pulls.dialog,
  );

  /** @param {Value} model
   *  @param {string} action */
  async function run(model, action) {
    const id = model.model;
    await act(console, model, action, {
      busy: (text) => {
        if (text) busy.set(id, text);
        else busy.delete(id);
        schedule();
      },
      note: (note) => {
        if (note) notes.set(id, { ...note, at_s: Date.now() / 1000 });
        else notes.delete(id);
        schedule();
      },
    });
  }

  function listed() {
    const wanted = search.value.trim().toLowerCase();
    const fits = (/** @type {Value} */ model) => [model.model, model.source, ...model.aliases].some((text) => text.toLowerCase().includes(wanted));
    const found = wanted ? models.filter(fits) : models;
    if (found.length <= FIRST_SHOWN) return found;
    // What runs is seen without scrolling through hundreds that do not.
    return [...found.filter((model) => !QUIET.includes(model.state)), ...found.filter((model) => QUIET.includes(model.state))];
  }

  function draw() {
    drawing = false;
    const all = listed();
    const shown = all.slice(0, most);
    const free = supervisor ? supervisor.budget_bytes - supervisor.reserved_bytes - supervisor.missing_bytes : 0;
    const kept = new Set(shown.map((model) => model.model));
    for (const [id, row] of rows) {
      if (kept.has(id)) continue;
      row.element.remove();
      rows.delete(id);
    }
    let before = /** @type {Element | null} */ (null);
    for (const model of shown) {
      let row = rows.get(model.model);
      if (!row) rows.set(model.model, (row = makeRow(console, run)));
      row.update(model, figures[model.model], { free_bytes: free, note: notes.get(model.model), busy: busy.get(model.model) ?? "" });
      const place = before ? before.nextElementSibling : list.firstElementChild;
      if (place !== row.element) list.insertBefore(row.element, place);
      before = row.element;
    }
    more.hidden = all.length <= shown.length;
    more.textContent = `Show ${Math.min(MORE_SHOWN, all.length - shown.length)} more of ${all.length}`;
    search.hidden = models.length < SEARCH_FROM && !search.value;
    headings.hidden = !shown.length;
    empty.hidden = Boolean(shown.length);
    if (!models.length && supervisor) empty.textContent = "There is no model yet. Pull one, or add one that is on this machine.";
    else if (!shown.length && supervisor) empty.textContent = "No model has this name.";
  }

  function drawMemory() {
    memory.hidden = !supervisor;
    if (!supervisor) return;
    const held = models.filter((model) => model.reserved_bytes > 0);
    const entries = held.map((model) => {
      const measured = model.memory_bytes + model.decoder_bytes;
      const learned = model.needed_bytes && model.needed_bytes !== model.reserved_bytes ? `, ${size(model.needed_bytes)} learned` : "";
      return h(
        "li",
        {},
        h("span", { class: `swatch ${console.colour(model.model)}` }),
        h("span", { class: "mono name" }, model.model),
        h("span", { class: "soft" }, `${size(measured)} measured of ${size(model.reserved_bytes)} reserved${learned}`),
        model.pinned ? h("span", { class: "badge" }, "pinned") : null,
      );
    });
    const idle = held.filter((model) => !model.pinned && !model.requests_active && !model.requests_queued);
    const back = idle.reduce((sum, model) => sum + model.reserved_bytes, 0);
    const words = [];
    if (idle.length) words.push(`Unloading ${idle.length === 1 ? "the idle model" : `the ${idle.length} idle models`} would give back ${size(back)}.`);
    if (supervisor.missing_bytes > 0) words.push(`${size(supervisor.missing_bytes)} did not come back from processes that ended.`);
    const used = Math.round((100 * supervisor.machine_used_bytes) / (supervisor.machine_memory_bytes || 1));
    words.push(`The machine uses ${used} % of its ${size(supervisor.machine_memory_bytes)}; above ${Math.round(100 * supervisor.memory_soft_line)} % nothing is loaded, and idle models are unloaded.`);
    memory.replaceChildren(
      h("h2", {}, "Memory budget"),
      budgetBar(supervisor, models, console.colour),
      h("ul", { class: "shares", role: "list" }, ...entries),
      h("p", { class: "soft small" }, words.join(" ")),
      ...supervisor.notices.map((/** @type {string} */ notice) => h("p", { class: "warn small" }, notice)),
    );
  }

  function schedule() {
    if (!drawing) requestAnimationFrame(draw);
    drawing = true;
  }

  search.addEventListener("input", () => {
    most = FIRST_SHOWN;
    schedule();
  });
  more.addEventListener("click", () => {
    most += MORE_SHOWN;
    schedule();
  });
  const ends = [
    console.live.on("status", (status) => {
      models = status.models;
      supervisor = status.system?.supervisor ?? null;
      drawMemory();
      schedule();
    }),
    console.live.on("figures", (value) => {
      figures = value.models;
      schedule();
    }),
    // What followed a download ended with the connection.
    console.live.on("connection", ({ state }) => state === "open" && pulls.refresh()),
    console.live.on("event", (event) => event.name.startsWith("download.") && Date.now() / 1000 - event.at_s < 60 && pulls.refresh()),
  ];
  // Times run on without a message.
  const ticking = setInterval(() => document.hidden || schedule(), TICK_MS);
  return () => {
    clearInterval(ticking);
    for (const end of ends) end();
    pulls.close();
  };
}
