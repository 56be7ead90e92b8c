// @ts-check
// Charts of SVG: a calendar of days, and lines over time. Words and tables next to them hold the same
// for whoever does not see them.

import { h, svg } from "./dom.js";

const CELL = 13;
const GAP = 2;
const LEFT = 30;
const TOP = 18;
const LEVELS = 4;
const DAY_MS = 86_400_000;
const WIDTH = 600;
const HEIGHT = 120;
const MONTH = new Intl.DateTimeFormat("en", { month: "short", timeZone: "UTC" });

/** Returns the days from the first to the last, both as 2026-11-27.
 *  @param {string} first
 *  @param {string} last */
export function daysBetween(first, last) {
  const days = [];
  // Days have no time zone here: the server has said which they are.
  for (let at = Date.parse(first); at <= Date.parse(last); at += DAY_MS) days.push(new Date(at).toISOString().slice(0, 10));
  return days;
}

/** Returns how dark a value is shown, from 0 (none) to 4. The root keeps one day of very much from
 *  making all others pale.
 *  @param {number} value
 *  @param {number} most */
export const level = (value, most) => (value ? Math.max(1, Math.ceil(LEVELS * Math.sqrt(value / most))) : 0);

/** Returns a calendar: a column for each week, a row for each day of it.
 *  @param {string[]} days Successive days, the oldest first.
 *  @param {(day: string) => number} valueOf
 *  @param {(day: string, value: number) => string} words What is said of a day.
 *  @param {string} label What the whole shows. */
export function calendar(days, valueOf, words, label) {
  const values = days.map(valueOf);
  const most = Math.max(...values, 1);
  const weekday = (/** @type {string} */ day) => (new Date(day).getUTCDay() + 6) % 7;
  const before = weekday(days[0]);
  const weeks = Math.ceil((before + days.length) / 7);
  const width = LEFT + weeks * (CELL + GAP);
  const height = TOP + 7 * (CELL + GAP);
  const drawing = svg("svg", { class: "calendar", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  for (const [row, name] of ["Mon", "", "Wed", "", "Fri", "", ""].entries()) {
    if (name) drawing.append(svg("text", { x: 0, y: TOP + row * (CELL + GAP) + CELL - 2 }, name));
  }
  let lastColumn = -9;
  for (const [place, day] of days.entries()) {
    const column = Math.floor((before + place) / 7);
    const x = LEFT + column * (CELL + GAP);
    if (day.endsWith("-01") && column - lastColumn > 2 && column < weeks - 1) {
      lastColumn = column;
      drawing.append(svg("text", { x, y: 11 }, MONTH.format(new Date(day))));
    }
    const cell = svg("rect", { x, y: TOP + weekday(day) * (CELL + GAP), width: CELL, height: CELL, rx: 3, class: `l${level(values[place], most)}` });
    cell.append(svg("title", {}, words(day, values[place])));
    drawing.append(cell);
  }
  return drawing;
}

/** Returns a round number that is not below a value: 1, 2 or 5 and noughts.
 *  @param {number} value */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((one) => one * size).find((one) => one >= value * 0.999) ?? value;
}

/** @typedef {{at_s: number}} Point */

/** @template {Point} T
 *  @typedef {object} Chart
 *  @property {string} title
 *  @property {T[]} points The oldest first.
 *  @property {number} first_s
 *  @property {number} last_s
 *  @property {number} step_s Points that are further apart are not joined.
 *  @property {{name: string, of: (point: T) => number | null}[]} lines
 *  @property {(value: number) => string} words A value with its unit.
 *  @property {(at_s: number) => string} time
 *  @property {number} [unit] What a value is shown in: the axis ends at a round number of it. */

/** Returns lines over time, with their last values; a pointer shows those of a moment.
 *  @template {Point} T
 *  @param {Chart<T>} chart */
export function lineChart({ title, points, first_s, last_s, step_s, lines, words, time, unit = 1 }) {
  const known = lines.map((line) => points.filter((point) => line.of(point) !== null));
  const values = lines.flatMap((line, place) => known[place].map((point) => line.of(point) ?? 0));
  const highest = unit * roundUp(Math.max(0, ...values) / unit);
  const x = (/** @type {number} */ at_s) => ((at_s - first_s) / Math.max(1, last_s - first_s)) * WIDTH;
  const y = (/** @type {number} */ value) => HEIGHT - (value / highest) * (HEIGHT - 4) - 2;
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  for (const share of [0, 0.5, 1]) {
    drawing.append(svg("path", { class: "grid", d: `M0 ${y(share * highest)}H${WIDTH}` }));
  }
  for (const [place, line] of lines.entries()) {
    let path = "";
    let before_s = -Infinity;
    for (const point of known[place]) {
      const joined = point.at_s - before_s <= 1.5 * step_s;
      const to = `${x(point.at_s).toFixed(1)} ${y(line.of(point) ?? 0).toFixed(1)}`;
      // A point without neighbours is a dot: a line to itself has round ends.
      path += joined ? `L${to}` : `M${to}L${to}`;
      before_s = point.at_s;
    }
    drawing.append(svg("path", { class: `line series${place}`, d: path }));
  }
  const at = svg("path", { class: "moment", d: "" });
  drawing.append(at);

  /** @param {T | undefined} point */
  const said = (point) =>
    lines
      .map(({ name, of }) => {
        const value = point === undefined ? null : of(point);
        return `${lines.length > 1 ? `${name} ` : ""}${value === null ? "–" : words(value)}`;
      })
      .join(", ");
  const last = points.filter((point) => lines.some(({ of }) => of(point) !== null)).at(-1);
  const isEmpty = last === undefined;
  const summary = isEmpty ? "nothing in this time" : `last ${said(last)}, axis up to ${words(highest)}`;
  drawing.setAttribute("aria-label", `${title}: ${summary}. The table below has all values.`);
  const now = h("span", { class: "now" }, isEmpty ? "–" : said(last));
  const plot = h("div", { class: "plot" }, h("span", { class: "top" }, words(highest)));
  plot.append(drawing);
  if (isEmpty) plot.append(h("span", { class: "none" }, "Nothing in this time"));
  plot.addEventListener("pointermove", (event) => {
    if (isEmpty) return;
    const box = plot.getBoundingClientRect();
    const at_s = first_s + ((event.clientX - box.left) / box.width) * (last_s - first_s);
    const near = points.reduce((best, point) => (Math.abs(point.at_s - at_s) < Math.abs(best.at_s - at_s) ? point : best));
    at.setAttribute("d", `M${x(near.at_s)} 0V${HEIGHT}`);
    now.textContent = `${time(near.at_s)} · ${said(near)}`;
  });
  plot.addEventListener("pointerleave", () => {
    at.setAttribute("d", "");
    now.textContent = isEmpty ? "–" : said(last);
  });
  const legend = lines.length > 1 && lines.map(({ name }, place) => h("span", { class: `legend series${place}` }, name));
  return h(
    "section",
    { class: "card chart" },
    h("h3", {}, title, ...(legend || []), now),
    plot,
    h("p", { class: "times" }, ...[first_s, (first_s + last_s) / 2, last_s].map((at_s) => h("span", {}, time(at_s)))),
  );
}
