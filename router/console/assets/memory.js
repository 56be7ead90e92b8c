// @ts-check
// The memory budget as one bar.

import { h } from "./dom.js";
import { size } from "./format.js";

/** @typedef {Record<string, any>} Value */

/** Returns where the machine comes under pressure, as a share of the budget: what the models hold now
 *  and what is left below the machine's soft line. It moves with the memory of other programs.
 *  @param {Value} supervisor
 *  @param {Value[]} models */
export function pressureAt(supervisor, models) {
  const held = models.reduce((sum, model) => sum + model.memory_bytes + model.decoder_bytes, 0);
  const left = supervisor.memory_soft_line * supervisor.machine_memory_bytes - supervisor.machine_used_bytes;
  return (held + left) / supervisor.budget_bytes;
}

/** Returns the bar with what stands below it.
 *  @param {Value} supervisor
 *  @param {Value[]} models
 *  @param {(id: string) => string} colour */
export function budgetBar(supervisor, models, colour) {
  const budget = supervisor.budget_bytes || 1;
  const share = (/** @type {number} */ bytes) => `${Math.max(0, Math.min(100, (100 * bytes) / budget))}%`;
  const parts = models
    .filter((model) => model.reserved_bytes > 0)
    .map((model) => {
      const held = model.memory_bytes + model.decoder_bytes;
      const part = h("i", { class: `share ${colour(model.model)}`, title: `${model.model}: ${size(held)} measured of ${size(model.reserved_bytes)} reserved` });
      part.style.width = share(model.reserved_bytes);
      const measured = h("i", { class: "measured" });
      measured.style.width = `${Math.min(100, (100 * held) / model.reserved_bytes)}%`;
      part.append(measured);
      return part;
    });
  const missing = h("i", { class: "share missing", title: `${size(supervisor.missing_bytes)} did not come back from processes that ended` });
  missing.style.width = share(supervisor.missing_bytes);
  const bar = h("div", { class: "memory", role: "img" }, ...parts, supervisor.missing_bytes > 0 ? missing : null);
  const line = pressureAt(supervisor, models);
  if (line < 1) {
    const mark = h("span", { class: "line", title: `Above ${Math.round(100 * supervisor.memory_soft_line)} % of the machine's memory nothing is loaded, and idle models are unloaded` });
    mark.style.left = `${100 * Math.max(0, line)}%`;
    bar.append(mark);
  }
  const free = supervisor.budget_bytes - supervisor.reserved_bytes - supervisor.missing_bytes;
  const pressure = supervisor.memory_pressure;
  const said = `${size(supervisor.reserved_bytes)} of ${size(supervisor.budget_bytes)}`;
  bar.setAttribute("aria-label", `${said} reserved, ${size(free)} free, ${pressure === "none" ? "no" : pressure} memory pressure`);
  return h(
    "div",
    { class: "budget" },
    bar,
    h(
      "div",
      { class: "caption" },
      h("span", {}, `${said} · `, h("span", { class: pressure === "none" ? "good" : "bad" }, pressure === "none" ? "no pressure" : `${pressure} pressure`)),
      h("span", {}, `free ${size(free)}`),
    ),
  );
}
