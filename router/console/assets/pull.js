// @ts-check
// Adding and pulling models: the dialog, and the downloads with their progress.

import { h } from "./dom.js";
import { size } from "./format.js";
import { planOf, showPlan } from "./plan.js";

/** @typedef {Record<string, any>} Value */

const PATH = "admin/models/download";
const SHOWN_FOR_S = 3600;
const LOOK_AGAIN_MS = 1000;

/** Makes the dialog and the list of downloads.
 *  @param {import("./console.js").Console} console */
export function makePulls(console) {
  /** @type {Map<string, ReturnType<typeof makeEntry>>} */
  const entries = new Map();
  let requests = 0;
  let openings = 0;
  let again = 0;
  let follows = false;
  let failed = false;
  let ended = false;
  const list = h("ul", { class: "downloads", role: "list" });
  const element = h("section", { class: "card", "aria-label": "Downloads", hidden: true }, h("h2", {}, "Downloads"), list);

  const source = h("input", { id: "pull-source", autocomplete: "off", spellcheck: false, placeholder: "OWNER/NAME, qwen3-8b, or a folder" });
  const name = h("input", { id: "pull-name", autocomplete: "off", spellcheck: false, placeholder: "as the source is named" });
  const context = h("input", { type: "number", min: "128", step: "1", placeholder: "as the model has it" });
  const plan = h("div", { class: "plan" });
  const fault = h("p", { class: "fault", role: "alert", hidden: true });
  const check = h("button", { type: "button", onclick: () => look() }, "Check size and fit");
  const dialog = h(
    "dialog",
    { class: "pull", "aria-labelledby": "pull-title" },
    h(
      "form",
      { method: "dialog", onsubmit: (/** @type {Event} */ event) => pull(event) },
      h("h2", { id: "pull-title" }, "Add or pull a model"),
      h("label", {}, "Repository, short name, or a folder or GGUF file on the server", source),
      h("div", { class: "fields" }, h("label", {}, "Name", name), h("label", {}, "Context, tokens", context)),
      plan,
      fault,
      h(
        "div",
        { class: "buttons" },
        check,
        h("span", { class: "space" }),
        h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
        h("button", { type: "button", onclick: () => add() }, "Add"),
        h("button", { class: "main" }, "Pull"),
      ),
    ),
  );

  /** @param {string} text */
  function say(text) {
    fault.textContent = text;
    fault.hidden = !text;
  }

  function wanted() {
    const text = source.value.trim();
    say(text ? "" : "Name a repository, a short name or a folder.");
    if (!text) source.focus();
    return text;
  }

  function look() {
    const text = wanted();
    if (text) showPlan(console, plan, text, Number(context.value) || null);
  }

  /** @param {Event} event */
  async function pull(event) {
    event.preventDefault();
    const text = wanted();
    if (!text) return;
    if (name.value.trim() || context.value) return say("A name and a context are for Add: leave them empty to pull.");
    const opening = openings;
    const isOpen = () => dialog.open && opening === openings;
    let sent = false;
    try {
      // A short name stands for a repository.
      const repository = text.includes("/") ? text : (await planOf(console, text)).model;
      if (!isOpen()) return; // Cancelled meanwhile.
      sent = true;
      await console.request(PATH, { body: { repo_id: repository } });
      if (isOpen()) dialog.close();
      follows = true;
      refresh();
    } catch (/** @type {any} */ error) {
      if (isOpen()) say(error.message);
      else if (sent) console.fail(error);
    }
  }

  async function add() {
    const text = wanted();
    if (!text) return;
    const id = name.value.trim() || /** @type {string} */ (text.split("/").filter(Boolean).at(-1));
    const given = Number(context.value);
    dialog.close();
    console.announce(`${id} is being added`);
    try {
      await console.request("engines", { body: { engine_id: id, model_path: text, ...(given ? { n_ctx: given } : {}) } });
    } catch (error) {
      console.fail(error);
    }
  }

  /** @param {Value[]} downloads */
  function draw(downloads) {
    const shown = downloads.filter((one) => one.status === "downloading" || !one.ended_at || Date.now() / 1000 - one.ended_at < SHOWN_FOR_S);
    element.hidden = !shown.length;
    const ids = new Set(shown.map((one) => one.download_id));
    for (const [id, { element: gone }] of entries) {
      if (ids.has(id)) continue;
      gone.remove();
      entries.delete(id);
    }
    for (const one of shown) {
      const made = entries.get(one.download_id) ?? makeEntry(one);
      entries.set(one.download_id, made);
      if (!made.element.parentElement) list.append(made.element);
      made.update(one);
    }
  }

  /** Makes an entry once; later only its figures are written, so that its button can be pressed.
   *  @param {Value} first */
  function makeEntry(first) {
    const bar = h("i");
    const words = h("span");
    const stop = h("button", { type: "button", onclick: () => cancel(first) }, "Cancel");
    const progress = h("div", { class: "progress", role: "progressbar", "aria-label": `Download of ${first.repo_id}` }, bar);
    const made = h("li", { "data-download": first.download_id }, h("span", { class: "mono name" }, first.repo_id), words, stop, progress);
    /** @param {Value} one */
    const update = (one) => {
      bar.style.width = `${one.progress_percent}%`;
      progress.setAttribute("aria-valuenow", String(Math.floor(one.progress_percent)));
      stop.hidden = progress.hidden = one.status !== "downloading";
      words.className = one.status === "failed" ? "bad" : "soft";
      words.textContent = wordsOf(one);
    };
    return { element: made, update };
  }

  /** @param {Value} one */
  function wordsOf(one) {
    if (one.status === "completed") return `complete${one.model_id ? `, served as ${one.model_id}` : ""}`;
    if (one.status !== "downloading") return `${one.status}${one.error ? `: ${one.error.message}` : ""}`;
    const total = one.estimated_size_bytes ? ` of ${size(one.estimated_size_bytes)}` : "";
    return `${Math.floor(one.progress_percent)} % · ${size(one.downloaded_bytes)}${total} · ${one.speed_mbps} Mbit/s`;
  }

  /** @param {Value} one */
  async function cancel(one) {
    try {
      await console.request(`${PATH}/${encodeURIComponent(one.download_id)}`, { method: "DELETE" });
      refresh();
    } catch (error) {
      console.fail(error);
    }
  }

  /** Shows the downloads, and looks again while one is under way. A stream for each would take the
   *  few connections that a browser has for a server. */
  async function refresh() {
    if (ended) return;
    clearTimeout(again);
    const mine = ++requests;
    try {
      const { downloads } = await console.request(PATH);
      if (ended || mine !== requests) return;
      draw(downloads);
      failed = false;
      follows = downloads.some((/** @type {Value} */ one) => one.status === "downloading");
    } catch (error) {
      if (ended || mine !== requests) return;
      if (!failed) console.fail(error);
      failed = true;
    }
    if (follows) again = setTimeout(() => document.hidden || refresh(), LOOK_AGAIN_MS);
  }

  return {
    element,
    dialog,
    show() {
      openings += 1;
      say("");
      plan.replaceChildren();
      dialog.showModal();
      source.focus();
    },
    refresh,
    close() {
      ended = true;
      clearTimeout(again);
    },
  };
}
