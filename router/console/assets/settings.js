// @ts-check
// The settings of a conversation: its system prompt, and the parameters of its requests.

import { NO_SETTINGS } from "./conversation.js";
import { at, h } from "./dom.js";
import { chosenModel } from "./models.js";

/** @typedef {import("./conversation.js").Settings} Settings */

const DEFAULTS = "lmx-settings";
const PRESETS = "lmx-presets";
const NUMBERS = /** @type {const} */ (["temperature", "top_p", "max_tokens", "seed"]);
const TEXTS = /** @type {const} */ (["system", "reasoning_effort", "tools", "schema"]);
const LABELS = /** @type {Record<string, string>} */ ({
  temperature: "The temperature",
  top_p: "Top p",
  max_tokens: "The longest answer",
  seed: "The seed",
});

/** Returns the settings of a new conversation.
 *  @returns {Settings} */
export function firstSettings() {
  try {
    return { ...NO_SETTINGS, ...JSON.parse(localStorage.getItem(DEFAULTS) ?? "{}") };
  } catch {
    return { ...NO_SETTINGS };
  }
}

/** Begins to listen.
 *  @param {() => Settings} current Returns the settings to change.
 *  @param {() => void} changed */
export function listen(current, changed) {
  const dialog = at("settings");
  at("open-settings").addEventListener("click", () => {
    fill(current());
    fillPresets("");
    dialog.showModal();
  });
  at("settings-cancel").addEventListener("click", () => dialog.close());
  dialog.addEventListener("submit", (/** @type {Event} */ event) => {
    const fault = take(current());
    if (fault) event.preventDefault();
    else changed();
  });
  at("preset").addEventListener("change", () => {
    const name = at("preset").value;
    fill({ ...NO_SETTINGS, ...presets().get(name) });
    fillPresets(name);
  });
  at("preset-save").addEventListener("click", () => {
    const name = at("preset-name").value.trim();
    const wanted = { ...NO_SETTINGS };
    if (!name) say("Give the preset a name.");
    else if (!take(wanted)) keepPresets(presets().set(name, wanted), name);
  });
  at("preset-delete").addEventListener("click", () => {
    const all = presets();
    all.delete(at("preset").value);
    keepPresets(all, "");
  });
  at("settings-default").addEventListener("click", () => {
    const wanted = { ...NO_SETTINGS };
    if (take(wanted)) return;
    localStorage.setItem(DEFAULTS, JSON.stringify(wanted));
    Object.assign(current(), wanted);
    changed();
    dialog.close();
  });
}

/** Returns the settings that were given a name in this browser.
 *  @returns {Map<string, Settings>} */
function presets() {
  try {
    return new Map(Object.entries(JSON.parse(localStorage.getItem(PRESETS) ?? "{}")));
  } catch {
    return new Map();
  }
}

/** @param {Map<string, Settings>} all
 *  @param {string} chosen */
function keepPresets(all, chosen) {
  localStorage.setItem(PRESETS, JSON.stringify(Object.fromEntries(all)));
  fillPresets(chosen);
}

/** @param {string} chosen */
function fillPresets(chosen) {
  const names = [...presets().keys()].sort();
  at("preset").replaceChildren(...["", ...names].map((name) => h("option", { value: name }, name || "none")));
  at("preset").value = at("preset-name").value = chosen;
  at("preset-delete").hidden = !chosen;
}

/** @param {Settings} settings */
function fill(settings) {
  const efforts = chosenModel()?.reasoning_efforts ?? [];
  at("effort-field").hidden = !efforts.length && !settings.reasoning_effort;
  const known = ["", ...efforts, ...(efforts.includes(settings.reasoning_effort) ? [] : [settings.reasoning_effort])];
  at("reasoning_effort").replaceChildren(
    ...[...new Set(known)].map((effort) => h("option", { value: effort }, effort || "as the model has it")),
  );
  for (const name of NUMBERS) at(name).value = settings[name] ?? "";
  for (const name of TEXTS) at(name).value = settings[name];
  say("");
}

/** Puts what stands in the fields into settings; returns what is wrong with it instead, if anything
 *  is.
 *  @param {Settings} settings */
function take(settings) {
  const fault = faultOfFields();
  say(fault);
  if (fault) return fault;
  for (const name of NUMBERS) settings[name] = at(name).value === "" ? null : Number(at(name).value);
  for (const name of TEXTS) settings[name] = at(name).value;
  return "";
}

function faultOfFields() {
  for (const name of NUMBERS) {
    const field = at(name);
    if (field.checkValidity()) continue;
    field.focus();
    if (field.validity.badInput) return `${LABELS[name]} is no number.`;
    if (field.validity.stepMismatch) return `${LABELS[name]} is a whole number.`;
    return `${LABELS[name]} is ${field.max ? `from ${field.min} to ${field.max}` : `at least ${field.min}`}.`;
  }
  if (!isJson(at("tools").value, Array.isArray)) return "The tools are no JSON array.";
  const isObject = (/** @type {any} */ value) => value !== null && typeof value === "object" && !Array.isArray(value);
  if (!isJson(at("schema").value, isObject)) return "The schema is no JSON object.";
  return "";
}

/** @param {string} text
 *  @param {(value: any) => boolean} is */
function isJson(text, is) {
  if (!text.trim()) return true;
  try {
    return is(JSON.parse(text));
  } catch {
    return false;
  }
}

/** @param {string} fault */
function say(fault) {
  at("settings-fault").textContent = fault;
  at("settings-fault").hidden = !fault;
}
