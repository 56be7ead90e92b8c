// @ts-check
// Where the time of a request went, as one bar.

import { h } from "./dom.js";
import { duration } from "./format.js";

/** @typedef {"load" | "queue" | "render" | "cached" | "prefill" | "decode"} Part */

/** The parts in the order in which they happen.
 *  @type {Part[]} */
const PARTS = ["load", "queue", "render", "cached", "prefill", "decode"];

const SCALES_S = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600];

/** Returns how long each part took. The prefill is divided as the prompt's tokens are: those that were
 *  cached took next to nothing, but they are what the rest is to be compared with.
 *  @param {any} item A request as GET /admin/requests has it.
 *  @param {number} passed_s How long ago that was so.
 *  @returns {Array<[Part, number]>} */
export function partsOf(item, passed_s) {
  /** @param {string} phase */
  const took = (phase) => (item.phases[`${phase}_s`] ?? 0) + (item.phase === phase ? passed_s : 0);
  const share = item.prompt_tokens ? Math.min(1, (item.cached_tokens ?? 0) / item.prompt_tokens) : 0;
  const prefill_s = took("prefill");
  /** @type {Array<[Part, number]>} */
  const parts = [
    ["load", took("load")],
    ["queue", took("queue")],
    ["render", took("render")],
    ["cached", prefill_s * share],
    ["prefill", prefill_s * (1 - share)],
    ["decode", took("decode")],
  ];
  return parts.filter(([, part_s]) => part_s > 0);
}

/** Returns how many seconds a whole bar stands for: enough for nine of ten requests.
 *  @param {number[]} ages_s */
export function scaleOf(ages_s) {
  const sorted = Float64Array.from(ages_s).sort();
  const most_s = sorted.length ? sorted[Math.floor((sorted.length - 1) * 0.9)] : 0;
  return SCALES_S.find((one) => one >= most_s) ?? most_s;
}

/** Returns the same for people.
 *  @param {Array<[Part, number]>} parts */
export const inWords = (parts) => parts.map(([part, part_s]) => `${part} ${duration(part_s)}`).join(", ");

/** Returns an empty bar. */
export const waterfall = () => h("div", { class: "waterfall", role: "img" });

/** Draws a request's parts. Only what has changed is touched: hundreds of bars may be drawn each second.
 *  @param {HTMLElement} bar
 *  @param {Array<[Part, number]>} parts
 *  @param {number} scale_s */
export function drawWaterfall(bar, parts, scale_s) {
  while (bar.children.length > parts.length) bar.lastElementChild?.remove();
  let from = 0;
  parts.forEach(([part, part_s], index) => {
    const piece = /** @type {HTMLElement} */ (bar.children[index] ?? bar.appendChild(h("i")));
    const width = Math.min((100 * part_s) / scale_s, 100 - from);
    if (piece.className !== part) piece.className = part;
    piece.style.width = `${width.toFixed(2)}%`;
    from += width;
  });
  bar.classList.toggle("over", from >= 99.99 && parts.reduce((sum, [, part_s]) => sum + part_s, 0) > scale_s);
  const label = inWords(parts) || "nothing yet";
  if (bar.getAttribute("aria-label") !== label) bar.setAttribute("aria-label", label);
}

/** Returns what the colours mean. */
export function legend() {
  const names = PARTS.map((part) => h("li", {}, h("i", { class: part }), part));
  return h("ul", { class: "legend", "aria-label": "Colours of the bars" }, ...names);
}
