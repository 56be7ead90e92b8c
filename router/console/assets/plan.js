// @ts-check
// What a load of a model would need, and what would follow from it.

import { h } from "./dom.js";
import { count, size } from "./format.js";

/** @typedef {Record<string, any>} Value */

const TONES = /** @type {Record<string, string>} */ ({ loaded: "good", starts: "good", evicts: "warn", waits: "warn", impossible: "bad" });

/** Returns the plan for a load. Rejects with an ApiError.
 *  @param {import("./console.js").Console} console
 *  @param {string} model One that is served, a repository, or a short name.
 *  @param {number | null} [context]
 *  @returns {Promise<Value>} */
export function planOf(console, model, context = null) {
  const query = new URLSearchParams({ model, ...(context ? { context_length: String(context) } : {}) });
  return console.request(`admin/models/plan?${query}`);
}

/** Shows the plan for a load, line by line.
 *  @param {import("./console.js").Console} console
 *  @param {HTMLElement} box
 *  @param {string} model
 *  @param {number | null} [context] */
export async function showPlan(console, box, model, context = null) {
  const looking = h("p", { class: "soft", role: "status" }, "Looking at its size…");
  box.replaceChildren(looking);
  let plan;
  try {
    plan = await planOf(console, model, context);
  } catch (/** @type {any} */ error) {
    looking.replaceWith(h("p", { class: "fault", role: "alert" }, error.message));
    return;
  }
  // Another look may have begun, or the box was emptied.
  if (!looking.parentElement) return;
  const lines = plan.lines.map((/** @type {Value} */ line) =>
    h("li", {}, h("span", {}, line.name), h("span", { class: "n" }, size(line.size_bytes)), h("span", { class: "soft" }, line.reason)),
  );
  const words = [];
  if (plan.download_bytes) words.push(`${size(plan.download_bytes)} are to be pulled.`);
  if (plan.evicts.length) words.push(`Evicted for it: ${plan.evicts.join(", ")}.`);
  if (plan.context_length) words.push(`Its context: ${count(plan.context_length)} tokens.`);
  if (plan.longest_context_now) words.push(`Largest context that fits now: ${count(plan.longest_context_now)} tokens.`);
  if (plan.longest_context && plan.longest_context !== plan.longest_context_now) {
    words.push(`With all that may be evicted gone: ${count(plan.longest_context)} tokens.`);
  }
  box.replaceChildren(
    h("p", { class: TONES[plan.outcome] ?? "" }, h("b", {}, plan.message)),
    h("ul", { class: "plan-lines", role: "list" }, ...lines, h("li", { class: "sum" }, h("span", {}, "needs"), h("span", { class: "n" }, size(plan.need_bytes)), h("span", { class: "soft" }, `${size(plan.free_bytes)} of ${size(plan.budget_bytes)} are free`))),
    words.length ? h("p", { class: "soft" }, words.join(" ")) : "",
  );
  console.announce(plan.message);
}
