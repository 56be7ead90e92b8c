// @ts-check
// The frame around the views: the navigation, the header with the memory and the rate, and who may see
// what. The chat is the view that opens first, and needs nothing of the operator's.

import { adminKey, askForAdminKey, forgetAdminKey, listenForAdminKey, onAdminKey, shared } from "./console.js";
import { at, h, icon } from "./dom.js";
import { many, rate } from "./format.js";
import { budgetBar } from "./memory.js";
import { closePopups, menu } from "./popups.js";
import { sparkline } from "./sparkline.js";

/** @typedef {object} View
 *  @property {string} id Its module is `<id>_view.js`.
 *  @property {string} label
 *  @property {Parameters<typeof icon>[0]} shape
 *  @property {boolean} operator Whether it needs the admin key.
 *  @property {boolean} [unlisted] Whether only its address leads to it.
 *  @property {(status: import("./live.js").Status | null, figures: any) => number | null} [count] */

/** @type {View[]} */
const VIEWS = [
  { id: "chat", label: "Chat", shape: "chat", operator: false },
  { id: "models", label: "Models", shape: "models", operator: true, count: (status) => status?.models.length ?? null },
  {
    id: "requests",
    label: "Requests",
    shape: "requests",
    operator: true,
    count: (_, figures) => (figures ? figures.running + figures.waiting : null),
  },
  { id: "machines", label: "Machines", shape: "machines", operator: true },
  { id: "usage", label: "Usage", shape: "usage", operator: true },
  { id: "logs", label: "Logs", shape: "logs", operator: true },
  { id: "connect", label: "Connect", shape: "plug", operator: false },
  { id: "demo", label: "Demo", shape: "chat", operator: true, unlisted: true },
];
const RATES = 60;

let shownView = "";
let lastChat = "#/chat";
/** @type {(() => void) | null} */
let unmount = null;
/** @type {import("./live.js").Status | null} */
let status = null;
/** @type {any} */
let figures = null;
let connection = "closed";
/** @type {number[]} */
const rates = [];

const version = at("where").textContent;

// --- Which view --------------------------------------------------------------------------------------

/** Returns the view that an address means: a hash that is no view's is a conversation's.
 *  @param {string} hash */
function viewOf(hash) {
  const id = hash.startsWith("#/") ? hash.slice(2).split(/[/?]/)[0] : "chat";
  return VIEWS.find((view) => view.id === id) ?? VIEWS[0];
}

async function go() {
  const view = viewOf(location.hash);
  if (view.id === "chat" && location.hash.startsWith("#/")) history.replaceState(null, "", lastChat);
  if (view.id === shownView) return;
  const first = shownView === "";
  shownView = view.id;
  if (!view.operator) at("admin").close("");
  document.body.dataset.view = view.id;
  unmount?.();
  unmount = null;
  at("chat").hidden = view.id !== "chat";
  at("view").hidden = view.id === "chat";
  at("view").replaceChildren();
  at("faults").replaceChildren();
  for (const link of at("views").children) {
    if (link.dataset.view === view.id) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view.id === "chat") {
    if (!(await load(view, "./app.js")) || shownView !== view.id) return;
    if (!first) at("say").focus();
    document.title = at("title").textContent === "New conversation" ? "lmx" : `${at("title").textContent} · lmx`;
    return;
  }
  document.title = `${view.label} · lmx`;
  if (!first) at("view").focus();
  await mount(view);
}

/** @param {View} view */
async function mount(view) {
  const root = at("view");
  if (view.operator && !adminKey()) {
    root.replaceChildren(locked(view));
    await askForAdminKey();
    return;
  }
  if (view.operator) shared.live.start();
  // What asks for a key of the inference's is the chat's.
  else if (!(await load(view, "./app.js"))) return;
  const module = await load(view, `./${view.id}_view.js`);
  // The view or the key may have changed meanwhile.
  if (module && shownView === view.id && !unmount && (!view.operator || adminKey())) {
    root.replaceChildren();
    unmount = module.mount(root, shared);
  }
}

/** Returns a script of a view; nothing where it can't be had, which is shown in the view's place.
 *  @param {View} view
 *  @param {string} name */
async function load(view, name) {
  try {
    return await import(name);
  } catch (error) {
    console.warn(error);
    if (shownView !== view.id) return null;
    at("chat").hidden = true;
    at("view").hidden = false;
    // A browser may keep that a script could not be had, for as long as the page is open.
    const words = "lmx did not send this view: it may be restarting.";
    at("view").replaceChildren(inPlaceOf(view, words, "Try again", () => location.reload()));
    return null;
  }
}

/** @param {View} view */
function locked(view) {
  const words = "This part is for operators: it needs the server's admin key.";
  return inPlaceOf(view, words, "Give the admin key", () => askForAdminKey());
}

/** Returns what is shown in place of a view.
 *  @param {View} view
 *  @param {string} words
 *  @param {string} action
 *  @param {() => void} onclick */
function inPlaceOf(view, words, action, onclick) {
  return h(
    "div",
    { class: "page locked" },
    h("h1", {}, view.label),
    h("p", { class: "soft" }, words),
    h("button", { type: "button", class: "main", onclick }, action),
  );
}

// --- The header --------------------------------------------------------------------------------------

function showNavigation() {
  for (const view of VIEWS) {
    if (view.unlisted) continue;
    const number = view.count?.(status, figures) ?? null;
    at(`count-${view.id}`).textContent = number === null ? "" : String(number);
  }
}

/** Says where the page is, or why the figures that it shows are not current. */
function showWhere() {
  const problem = connection === "waiting" ? "reconnecting…" : (status?.problem ?? "");
  document.body.classList.toggle("stale", Boolean(problem));
  at("where").textContent = problem || `${location.host} · ${version}`;
  // There may be too little room for all of it.
  at("where").title = problem;
}

/** Shows nothing of the operator's: there is no key, or one that is refused. */
function clearHeader() {
  status = figures = null;
  rates.length = 0;
  at("budget").hidden = at("rate").hidden = true;
  showWhere();
  showNavigation();
}

/** @param {import("./live.js").Status} now */
function showStatus(now) {
  status = now;
  showWhere();
  const system = now.system;
  at("budget").hidden = !system;
  if (system) at("budget").replaceChildren(budgetBar(system.supervisor, now.models, shared.colour));
  showNavigation();
}

/** @param {any} now */
function showFigures(now) {
  figures = now;
  rates.push(now.tokens_per_s);
  if (rates.length > RATES) rates.shift();
  at("rate").hidden = false;
  // Null where the machine does not measure it.
  const watts = status?.system?.supervisor.machine_watts ?? null;
  const power = watts === null ? "" : ` · ${watts.toFixed(0)} W`;
  at("rate").replaceChildren(h("span", {}, `${rate(now.tokens_per_s)} tok/s${power}`), sparkline(rates, RATES));
  at("rate").title = `${many(now.running, "request")} running, ${now.waiting} waiting`;
  showNavigation();
}

/** @param {{state: string}} now */
function showConnection(now) {
  connection = now.state;
  showWhere();
  if (now.state !== "refused") return;
  if (!viewOf(location.hash).operator) clearHeader();
  else {
    // Whoever gives no other key has none: the one that was refused would be refused again.
    askForAdminKey(Boolean(adminKey())).then((taken) => taken || forgetAdminKey());
  }
}

function keyChanged() {
  const has = Boolean(adminKey());
  at("admin-state").textContent = has ? "The admin key is set for this tab." : "No admin key is set.";
  at("give-admin-key").textContent = has ? "Change the admin key" : "Give the admin key";
  at("forget-admin-key").hidden = !has;
  shared.live.stop();
  if (has) shared.live.start();
  else clearHeader();
  const view = viewOf(location.hash);
  if (!view.operator) return;
  unmount?.();
  unmount = null;
  if (has) mount(view);
  else at("view").replaceChildren(locked(view));
}

// --- Beginning ---------------------------------------------------------------------------------------

function begin() {
  at("views").append(
    ...VIEWS.filter((view) => !view.unlisted).map((view) =>
      h(
        "a",
        { href: `#/${view.id}`, "data-view": view.id },
        icon(view.shape),
        h("span", {}, view.label),
        h("b", { id: `count-${view.id}` }),
      ),
    ),
  );
  listenForAdminKey();
  onAdminKey(keyChanged);
  at("give-admin-key").addEventListener("click", () => {
    closePopups(null);
    askForAdminKey();
  });
  at("forget-admin-key").addEventListener("click", () => {
    closePopups(null);
    forgetAdminKey();
  });
  menu(at("operator"), at("operator-menu"));

  shared.live.on("status", showStatus);
  shared.live.on("figures", showFigures);
  shared.live.on("connection", showConnection);
  window.addEventListener("hashchange", (event) => {
    const before = new URL(event.oldURL).hash;
    if (viewOf(before).id === "chat") lastChat = before.startsWith("#/") ? "#" : before || "#";
    go();
  });
  keyChanged();
  go();
}

begin();
