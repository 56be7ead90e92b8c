// @ts-check
// A small line without axes: how a figure went lately.

const WIDTH = 90;
const HEIGHT = 22;
const SPACE = "http://www.w3.org/2000/svg";

/** Returns the line of the values, the newest at its right end.
 *  @param {number[]} values
 *  @param {number} most How many values there is room for. */
export function sparkline(values, most) {
  const svg = document.createElementNS(SPACE, "svg");
  for (const [name, value] of Object.entries({ class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" })) {
    svg.setAttribute(name, value);
  }
  const highest = Math.max(...values, 1);
  const step = WIDTH / (most - 1);
  const first = WIDTH - step * (values.length - 1);
  const points = values.map((value, place) => {
    const y = HEIGHT - 2 - (value / highest) * (HEIGHT - 4);
    return `${(first + place * step).toFixed(1)} ${y.toFixed(1)}`;
  });
  const path = document.createElementNS(SPACE, "path");
  path.setAttribute("d", points.length > 1 ? `M${points.join("L")}` : `M${WIDTH - 2} ${HEIGHT - 2}h2`);
  svg.append(path);
  return svg;
}
