// @ts-check
// What the views of the console share: requests with the admin key, the live stream, and ways to ask
// and to say something.

import { ApiError, ask, posted } from "./api.js";
import { announce, at, h, iconButton, sure } from "./dom.js";
import { faultOfKey } from "./key.js";
import { makeLive } from "./live.js";

/** @typedef {object} Console
 *  @property {(path: string, options?: {method?: string, body?: unknown}) => Promise<any>} request
 *    Returns what a path answers, as an object. Rejects with an ApiError.
 *  @property {(path: string, options?: RequestInit) => Promise<Response>} open
 *    The same for an answer that is a stream.
 *  @property {ReturnType<typeof makeLive>} live
 *  @property {(text: string) => void} announce Has screen readers say a text, once.
 *  @property {(question: string, action: string, detail?: string) => Promise<boolean>} confirm
 *  @property {(error: unknown) => void} fail Shows what went wrong where the reader is.
 *  @property {(id: string) => string} colour Returns the class with a model's colour.
 *  @property {(name: string) => void} style Adds a style sheet of the page, once. */

const NAME = "lmx-admin-key";
const HEADER = "X-Admin-Key";
const CHECKED_BY = "admin/requests";
const OPERATORS = /^\/?(admin|engines)(\/|\?|$)/;
const COLOURS = 8;
const MOST_FAULTS = 3;

/** @type {Set<() => void>} */
const keyListeners = new Set();
/** @type {Promise<boolean> | null} */
let asking = null;

// --- The admin key -----------------------------------------------------------------------------------

/** Returns the admin key of this tab; an empty text if there is none. */
export const adminKey = () => sessionStorage.getItem(NAME) ?? "";

/** @param {() => void} listener Called when the admin key is given, changed or forgotten. */
export const onAdminKey = (listener) => void keyListeners.add(listener);

export function forgetAdminKey() {
  sessionStorage.removeItem(NAME);
  for (const listener of keyListeners) listener();
}

/** Asks for the admin key; whoever asks meanwhile gets the same answer.
 *  @param {boolean} wrong Whether the one that was sent is not right.
 *  @returns {Promise<boolean>} whether there is one now that the server takes */
export function askForAdminKey(wrong = false) {
  const dialog = at("admin");
  // A question that was closed lasts until the event of that comes: the next one does not wait for it.
  if (asking !== null && dialog.open) return asking;
  sayAdminFault(wrong ? "This admin key is not right." : "");
  at("admin-key").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  at("admin-key").focus();
  /** @type {Promise<boolean>} */
  const question = new Promise((resolve) => {
    const closed = () => {
      // The event may be that of the question before.
      if (dialog.open && asking === question) return;
      dialog.removeEventListener("close", closed);
      if (asking === question) asking = null;
      resolve(dialog.returnValue === "taken");
    };
    dialog.addEventListener("close", closed);
  });
  asking = question;
  return question;
}

/** Begins to listen to the dialog for the key. */
export function listenForAdminKey() {
  at("admin-cancel").addEventListener("click", () => at("admin").close(""));
  at("admin").addEventListener("submit", async (/** @type {Event} */ event) => {
    event.preventDefault();
    const given = at("admin-key").value.trim();
    const fault = faultOfKey(given) || (await faultOfAdminKey(given));
    sayAdminFault(fault);
    if (fault) return at("admin-key").select();
    sessionStorage.setItem(NAME, given);
    at("admin-key").value = "";
    at("admin").close("taken");
    for (const listener of keyListeners) listener();
  });
}

/** @param {string} given */
async function faultOfAdminKey(given) {
  try {
    await ask(CHECKED_BY, { headers: { [HEADER]: given } });
    return "";
  } catch (/** @type {any} */ error) {
    if (error.status === 403) return "This is another key of the server: the admin key is needed here, or one with the scope operator.";
    return error.status === 401 ? "This admin key is not right: the server does not know it." : error.message;
  }
}

/** @param {string} fault */
function sayAdminFault(fault) {
  at("admin-fault").textContent = fault;
  at("admin-fault").hidden = !fault;
}

// --- Requests ----------------------------------------------------------------------------------------

/** @param {string} path
 *  @param {RequestInit} options */
async function openOnce(path, options = {}) {
  const headers = adminKey() ? { ...options.headers, [HEADER]: adminKey() } : options.headers;
  return ask(path, headers ? { ...options, headers } : options);
}

/** @type {Console["open"]} */
async function open(path, options = {}) {
  for (;;) {
    const sent = adminKey();
    try {
      return await openOnce(path, options);
    } catch (error) {
      // A 403 is the answer to an operator's key, which changes nothing: its words are shown.
      const refused = error instanceof ApiError && error.status === 401 && OPERATORS.test(path);
      if (!refused) throw error;
      // Another request may have been given a key meanwhile.
      if (sent === adminKey() && !(await askForAdminKey(Boolean(sent)))) throw error;
    }
  }
}

/** @type {Console["request"]} */
async function request(path, { method, body } = {}) {
  const options = body === undefined ? { method: method ?? "GET" } : { ...posted(body), method: method ?? "POST" };
  const response = await open(path, options);
  return response.status === 204 ? {} : response.json();
}

// --- What is said ------------------------------------------------------------------------------------

/** @param {unknown} error */
function fail(error) {
  const text = error instanceof Error ? error.message : String(error);
  // What is behind an open dialog can't be reached.
  const dialog = document.querySelector("dialog[open]");
  const item = h("p", { class: "toast", role: dialog && "alert" }, h("span", {}, text), iconButton("close", "Close", () => item.remove()));
  dialog?.addEventListener("close", () => item.remove(), { once: true });
  const box = dialog ?? at("faults");
  box.append(item);
  const items = box.querySelectorAll(":scope > .toast");
  if (items.length > MOST_FAULTS) items[0].remove();
}

/** @type {Map<string, number>} */
const colours = new Map();

/** Returns the class of a model's colour, the same for as long as the page is open.
 *  @param {string} id */
function colour(id) {
  if (!colours.has(id)) colours.set(id, colours.size % COLOURS);
  return `c${colours.get(id)}`;
}

/** @param {string} name */
function style(name) {
  const href = `ui/${name}`;
  if (document.head.querySelector(`link[href="${href}"]`)) return;
  document.head.append(h("link", { rel: "stylesheet", href }));
}

/** @type {Console} */
export const shared = {
  request,
  open,
  // The header's figures are no reason to ask for a key: the view that needs one has asked.
  live: makeLive(openOnce),
  announce,
  confirm: sure,
  fail,
  colour,
  style,
};
