// @ts-check
// The list of conversations: by day, with a search, and with what can be done with each.

import { runsIn } from "./answers.js";
import { asJson, asMarkdown } from "./conversation.js";
import { at, composes, download, h, icon, sure } from "./dom.js";
import { menu } from "./popups.js";
import { listConversations, loadConversation, removeConversation, saveConversation, searchConversations } from "./store.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./store.js").Head} Head */

const DAY_MS = 86_400_000;
const TYPING_MS = 150;
const LOOK_AGAIN_MS = 1000;

let current = "";
let again = 0;
/** @type {(id: string) => void} */
let opened = () => {};
/** @type {(id: string) => void} */
let removed = () => {};
/** @type {(id: string) => void} */
let renamed = () => {};

/** Begins to listen.
 *  @param {(id: string) => void} onOpen
 *  @param {(id: string) => void} onRemove
 *  @param {(id: string) => void} onRename */
export function listen(onOpen, onRemove, onRename) {
  opened = onOpen;
  removed = onRemove;
  renamed = onRename;
  let typing = 0;
  at("search").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => showList(current), TYPING_MS);
  });
  at("open-sidebar").addEventListener("click", () => slide(true));
  at("close-sidebar").addEventListener("click", () => slide(false));
  at("shade").addEventListener("click", () => slide(false));
  at("sidebar").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape" || event.defaultPrevented || !document.body.classList.contains("slid")) return;
    slide(false);
    event.preventDefault();
  });
}

/** Shows or hides the list where there is no room for it next to the conversation.
 *  @param {boolean} is */
export function slide(is) {
  const was = document.body.classList.contains("slid");
  document.body.classList.toggle("slid", is);
  at("shade").hidden = !is;
  at("open-sidebar").setAttribute("aria-expanded", String(is));
  if (is) at("new").focus();
  else if (was) at("open-sidebar").focus();
}

/** Shows the conversations.
 *  @param {string} shown The id of the one that is shown. */
export async function showList(shown) {
  current = shown;
  clearTimeout(again);
  const wanted = at("search").value.trim();
  const [all, found] = await Promise.all([listConversations(), wanted ? searchConversations(wanted) : null]);
  const list = at("conversations");
  if (wanted !== at("search").value.trim()) return;
  // A name that is typed and a menu that is open stay; the list is shown when they have ended.
  if (list.querySelector("input:enabled, .popup:not([hidden])")) {
    clearTimeout(again);
    again = setTimeout(() => showList(current), LOOK_AGAIN_MS);
    return;
  }
  const heads = found ? all.filter((head) => found.has(head.id)) : all;
  const groups = new Map();
  for (const head of heads) {
    const day = dayOf(head.updated);
    groups.set(day, [...(groups.get(day) ?? []), head]);
  }
  const shownGroups = [...groups].map(([day, group]) =>
    h("section", {}, h("h2", {}, day), h("ul", {}, ...group.map(entry))),
  );
  const nothing = wanted ? "No conversation holds this." : "Your conversations will be here.";
  const focused = list.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement) : null;
  const id = focused?.closest("li")?.dataset.id ?? "";
  list.replaceChildren(...(shownGroups.length ? shownGroups : [h("p", { class: "soft" }, nothing)]));
  if (focused) list.querySelector(`[data-id="${CSS.escape(id)}"] ${focused.matches(".title") ? ".title" : ".icon"}`)?.focus();
}

/** @param {number} ms */
function dayOf(ms) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (ms >= today) return "Today";
  if (ms >= today - DAY_MS) return "Yesterday";
  if (ms >= today - 7 * DAY_MS) return "This week";
  return new Date(ms).toLocaleDateString(undefined, { month: "long", year: "numeric" });
}

/** @param {Head} head */
function entry(head) {
  const title = head.title || "Untitled";
  const open = h(
    "button",
    { class: "title", type: "button", "aria-current": head.id === current ? "true" : null, onclick: () => opened(head.id) },
    runsIn(head.id) ? h("span", { class: "pulse", "aria-label": "Answering" }) : null,
    h("span", {}, title),
  );
  const popup = h(
    "div",
    { class: "popup", hidden: true },
    h("button", { type: "button", onclick: () => rename(head, item) }, "Rename"),
    h("button", { type: "button", onclick: () => save(head.id, "md") }, "Export as Markdown"),
    h("button", { type: "button", onclick: () => save(head.id, "json") }, "Export as JSON"),
    h("hr"),
    h("button", { type: "button", class: "danger", onclick: () => remove(head) }, "Delete"),
  );
  const more = h(
    "button",
    { class: "quiet icon small", type: "button", "aria-label": `More for ${title}`, "aria-haspopup": "true", "aria-expanded": "false" },
    icon("more"),
  );
  menu(more, popup);
  const item = h("li", { class: "menu", "data-id": head.id }, open, more, popup);
  return item;
}

/** @param {Head} head
 *  @param {HTMLElement} item */
function rename(head, item) {
  const box = h("input", { value: head.title, "aria-label": "Name of the conversation" });
  let over = false;
  const end = async (/** @type {boolean} */ keep) => {
    if (over) return;
    over = true;
    box.disabled = true;
    const conversation = keep && box.value.trim() && (await loadConversation(head.id));
    if (conversation) {
      conversation.title = box.value.trim();
      conversation.changed = Date.now();
      await saveConversation(conversation);
      renamed(head.id);
    }
    await showList(current);
  };
  box.addEventListener("keydown", (event) => {
    if (composes(event) || !["Enter", "Escape"].includes(event.key)) return;
    event.preventDefault();
    end(event.key === "Enter");
  });
  box.addEventListener("blur", () => end(true));
  item.replaceChildren(box);
  box.select();
}

/** @param {string} id
 *  @param {"md" | "json"} form */
async function save(id, form) {
  const conversation = await loadConversation(id);
  if (conversation) exportAs(conversation, form);
}

/** Offers a conversation as a file.
 *  @param {Conversation} conversation
 *  @param {"md" | "json"} form */
export function exportAs(conversation, form) {
  const title = (conversation.title || "conversation").replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
  const name = [...title].slice(0, 60).join("");
  const text = form === "md" ? asMarkdown(conversation) : asJson(conversation);
  download(`${name || "conversation"}.${form}`, form === "md" ? "text/markdown" : "application/json", text);
}

/** @param {Head} head */
async function remove(head) {
  if (!(await sure("Delete this conversation?", "Delete", head.title))) return;
  await removeConversation(head.id);
  removed(head.id);
  await showList(current);
}
