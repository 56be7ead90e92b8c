// @ts-check
// A small line without axes: how a figure went lately.

import { svg } from "./dom.js";

const WIDTH = 90;
const HEIGHT = 22;

/** Returns the line of the values, the newest at its right end.
 *  @param {number[]} values
 *  @param {number} most How many values there is room for. */
export function sparkline(values, most) {
  const highest = Math.max(...values, 1);
  const step = WIDTH / (most - 1);
  const first = WIDTH - step * (values.length - 1);
  const points = values.map((value, place) => {
    const y = HEIGHT - 2 - (value / highest) * (HEIGHT - 4);
    return `${(first + place * step).toFixed(1)} ${y.toFixed(1)}`;
  });
  const d = points.length > 1 ? `M${points.join("L")}` : `M${WIDTH - 2} ${HEIGHT - 2}h2`;
  return svg("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" }, svg("path", { d }));
}
