// @ts-check
// The view of what happens: the events, and the log of a process, live.

import { copyBy, h } from "./dom.js";
import { clock, count } from "./format.js";

/** @typedef {Record<string, any>} Value */
/** @typedef {object} Entry
 *  @property {number} rank The level, as a place in LEVELS.
 *  @property {string} model
 *  @property {string} text The same as one text, to be searched and copied.
 *  @property {boolean} isRaw Whether it is lines that are no record, such as stacks.
 *  @property {HTMLElement} element */

const MOST = 1000;
const LEVELS = ["debug", "info", "warning", "error"];
const AT_END_PX = 40;
const MOST_RAW_CHARACTERS = 64_000;
const EVENTS = "events";
const PROCESSES = ["router", "supervisor"];
const GRAVE = ["crash", "signal", "out_of_memory", "hang", "load_failed", "host"];
const KNOWN = ["event", "level", "timestamp", "model", "detail", "exception"];

/** Begins to show them.
 *  @param {HTMLElement} root
 *  @param {import("./console.js").Console} console
 *  @returns {() => void} what ends it */
export function mount(root, console) {
  console.style("logs.css");
  /** @type {Entry[]} */
  let entries = [];
  /** @type {Entry[]} What came while the list stood still. */
  let held = [];
  let paused = false;
  let restarted = false;
  let waiting = false;
  /** @type {string | null} */
  let names = null;

  const source = h("select", { "aria-label": "What is shown" });
  const model = h("select", { "aria-label": "Of which model" });
  const level = h("select", { "aria-label": "From which level" }, ...LEVELS.map((one, place) => h("option", { value: String(place) }, place ? `${one} and above` : "all levels")));
  const search = h("input", { type: "search", placeholder: "Name or text", "aria-label": "Search by name or text", autocomplete: "off" });
  const pause = h("button", { type: "button", "aria-pressed": "false" }, "Pause");
  const copy = h("button", { type: "button" }, "Copy");
  const list = h("ol", { class: "lines", "aria-label": "Lines", tabIndex: 0 });
  const state = h("p", { class: "soft small", role: "status" });
  root.append(
    h(
      "div",
      { class: "page logs" },
      h("div", { class: "heading" }, h("h1", {}, "Logs & events"), h("span", { class: "space" }), pause, copy),
      h("div", { class: "filters" }, source, model, level, search),
      list,
      state,
    ),
  );

  const isEvents = () => source.value === EVENTS;

  /** @param {Entry} entry */
  function fits(entry) {
    if (entry.rank < Number(level.value)) return false;
    if (isEvents() && model.value && entry.model !== model.value) return false;
    return entry.text.toLowerCase().includes(search.value.trim().toLowerCase());
  }

  /** @param {Entry} entry */
  function add(entry) {
    const into = paused ? held : entries;
    into.push(entry);
    if (into.length > MOST) into.splice(0, into.length - MOST).forEach((one) => one.element.remove());
    if (paused) return say();
    entry.element.hidden = !fits(entry);
    schedule();
  }

  function schedule() {
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  }

  function draw() {
    waiting = false;
    const wasAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < AT_END_PX;
    list.append(...entries.filter((entry) => entry.element.parentElement !== list).map((entry) => entry.element));
    if (wasAtEnd) list.scrollTop = list.scrollHeight;
    say();
  }

  function say() {
    const shown = entries.filter((entry) => !entry.element.hidden).length;
    const more = held.length ? `, ${count(held.length)} more since the pause` : "";
    state.textContent = `${count(shown)} of the latest ${count(entries.length)} lines${more}.`;
  }

  function filter() {
    for (const entry of entries) entry.element.hidden = !fits(entry);
    draw();
    list.scrollTop = list.scrollHeight;
  }

  function clear() {
    entries = [];
    held = [];
    restarted = false;
    list.replaceChildren();
    say();
  }

  /** The stream begins with the latest lines, each time that it is opened. What is being read stays. */
  function restart() {
    if (isEvents()) return;
    if (!paused) return clear();
    held = [];
    restarted = true;
  }

  function takeSource() {
    clear();
    model.hidden = !isEvents();
    console.live.logs(isEvents() ? "" : source.value.slice(source.value.indexOf(":") + 1));
    if (isEvents()) {
      stopEvents();
      stopEvents = console.live.on("event", (event) => isEvents() && add(eventEntry(console, event)));
    }
  }

  /** @param {string} line */
  function takeLine(line) {
    const entry = lineEntry(line);
    const before = (paused ? held : entries).at(-1);
    if (entry.isRaw && before?.isRaw && before.text.length < MOST_RAW_CHARACTERS) {
      before.text += `\n${entry.text}`;
      drawRaw(before);
      before.element.hidden = !fits(before);
      return say();
    }
    add(entry);
  }

  /** @param {import("./live.js").Status} status */
  function takeModels(status) {
    const ids = status.models.map((one) => one.model);
    if (ids.join("\n") === names) return;
    names = ids.join("\n");
    const [was, of] = [source.value || EVENTS, model.value];
    source.replaceChildren(
      h("option", { value: EVENTS }, "Events"),
      ...PROCESSES.map((one) => h("option", { value: `log:${one}` }, `Log of the ${one}`)),
      ...ids.map((id) => h("option", { value: `log:${id}` }, `Log of ${id}`)),
    );
    model.replaceChildren(h("option", { value: "" }, "all models"), ...ids.map((id) => h("option", { value: id }, id)));
    source.value = was;
    model.value = of;
    // What was chosen may not be there any more.
    if (source.value !== was) {
      source.value = EVENTS;
      takeSource();
    }
    if (model.value !== of) {
      model.value = "";
      filter();
    }
  }

  source.addEventListener("change", takeSource);
  model.addEventListener("change", filter);
  level.addEventListener("change", filter);
  search.addEventListener("input", filter);
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume" : "Pause";
    pause.setAttribute("aria-pressed", String(paused));
    const later = held;
    held = [];
    if (!paused && restarted) clear();
    if (!paused) later.forEach(add);
    say();
  });
  copy.addEventListener("click", () => copyBy(copy, entries.filter((entry) => !entry.element.hidden).map((entry) => entry.text).join("\n")));

  let stopEvents = () => {};
  takeModels({ at_s: 0, problem: null, system: null, models: [] });
  source.value = EVENTS;
  takeSource();
  const ends = [
    console.live.on("status", takeModels),
    console.live.on("log", (value) => isEvents() || takeLine(value.line)),
    console.live.on("connection", (now) => now.state === "open" && restart()),
  ];
  return () => {
    stopEvents();
    for (const end of ends) end();
    console.live.logs("");
  };
}

/** @param {import("./console.js").Console} console
 *  @param {Value} event
 *  @returns {Entry} */
function eventEntry(console, event) {
  const grave = GRAVE.includes(event.data?.cause) || /fail|quarantin|reject/.test(event.name);
  const rank = LEVELS.indexOf(grave ? "error" : ["memory.pressure", "supervisor.notice"].includes(event.name) ? "warning" : "info");
  const data = Object.keys(event.data ?? {}).length ? JSON.stringify(event.data, null, 2) : "";
  const text = [clock(event.at_s), event.name, event.model, event.detail, data && JSON.stringify(event.data)].filter(Boolean).join(" ");
  const words = h(
    "span",
    { class: "words" },
    h("span", { class: "name" }, event.name),
    event.model ? h("span", { class: "of" }, h("span", { class: `swatch ${console.colour(event.model)}` }), event.model) : null,
    h("span", {}, event.detail),
  );
  return { rank, model: event.model ?? "", text, isRaw: false, element: row(clock(event.at_s), rank, words, data) };
}

/** Returns a line of a log; most are JSON objects.
 *  @param {string} line
 *  @returns {Entry} */
function lineEntry(line) {
  /** @type {any} */
  let value = null;
  try {
    value = JSON.parse(line);
  } catch {
    // It is no record: stacks, or what a library wrote.
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    const element = h("li", { class: "raw" });
    /** @type {Entry} */
    const entry = { rank: LEVELS.indexOf("error"), model: "", text: line, isRaw: true, element };
    drawRaw(entry);
    return entry;
  }
  const rank = Math.max(0, LEVELS.indexOf(String(value.level ?? "info").replace("critical", "error")));
  const rest = Object.entries(value).filter(([name]) => !KNOWN.includes(name));
  const fields = rest.map(([name, one]) => `${name}=${typeof one === "string" ? one : JSON.stringify(one)}`).join(" ");
  const at = value.timestamp ? clock(Date.parse(value.timestamp) / 1000) : "";
  const words = h(
    "span",
    { class: "words" },
    h("span", { class: "name" }, String(value.event ?? "")),
    value.model ? h("span", { class: "of" }, String(value.model)) : null,
    value.detail ? h("span", {}, String(value.detail)) : null,
    fields ? h("span", { class: "soft" }, fields) : null,
  );
  return { rank, model: String(value.model ?? ""), text: line, isRaw: false, element: row(at, rank, words, String(value.exception ?? "")) };
}

/** @param {string} at
 *  @param {number} rank
 *  @param {HTMLElement} words
 *  @param {string} folded What is shown when it is opened. */
function row(at, rank, words, folded) {
  const first = [h("time", {}, at), h("span", { class: `level ${LEVELS[rank]}` }, LEVELS[rank]), words];
  if (!folded) return h("li", {}, h("div", { class: "line" }, ...first));
  return h("li", {}, h("details", {}, h("summary", { class: "line" }, ...first), h("pre", {}, folded)));
}

/** Draws lines that are no record, folded where they are many.
 *  @param {Entry} entry */
function drawRaw(entry) {
  const lines = entry.text.split("\n");
  if (lines.length === 1) return entry.element.replaceChildren(h("div", { class: "line" }, h("span", { class: "words" }, entry.text)));
  const isStacks = lines.some((line) => line.includes("most recent call first"));
  const title = isStacks ? `Stacks of the threads, ${lines.length} lines` : `${lines.length} lines: ${lines[0]}`;
  const open = entry.element.querySelector("details")?.open ?? false;
  entry.element.replaceChildren(h("details", { open }, h("summary", { class: "line" }, h("span", { class: "words" }, title)), h("pre", {}, entry.text)));
}
