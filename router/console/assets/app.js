// @ts-check
// The page at /: puts its parts together, and knows which conversation is shown.

import { answer, runOf, runsIn, stop } from "./answers.js";
import { url } from "./api.js";
import * as attachments from "./attachments.js";
import * as composer from "./composer.js";
import { addTurn, bodyOf, choose, columnsOf, filesBytes, newConversation, newTurn, reset, shownTurns } from "./conversation.js";
import { asCurl, asJavaScript, asPython } from "./copy_as.js";
import { announce, at, copyText, h, icon } from "./dom.js";
import * as models from "./models.js";
import * as options from "./options.js";
import * as recorder from "./recorder.js";
import { closePopups, menu } from "./popups.js";
import * as settings from "./settings.js";
import * as sidebar from "./sidebar.js";
import * as store from "./store.js";
import * as thread from "./thread.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./conversation.js").Turn} Turn */

const SAVE_MS = 1000;
const SAVED_BYTES_PER_MS = 1000;
const LONGEST_ANNOUNCED = 3000;
const IDEAS = ["Explain a piece of code", "Draft a reply to an email", "Compare two options in a table"];

/** @type {Conversation} */
let shown = newConversation("", settings.firstSettings());

// --- What is shown -----------------------------------------------------------------------------------

function show() {
  models.chooseModels(shown.model, shown.second ?? "");
  thread.showThread(shown, actions, welcome());
  composer.showSend(runsIn(shown.id));
  at("title").textContent = shown.title || "New conversation";
  document.title = shown.title ? `${shown.title} · lmx` : "lmx";
  at("share").hidden = false;
  sidebar.showList(shown.id);
}

function welcome() {
  const ideas = IDEAS.map((idea) =>
    h("button", { type: "button", onclick: () => suggest(idea) }, idea),
  );
  const model = shown.model || "a model";
  return h(
    "div",
    { class: "welcome" },
    h("p", { class: "greeting" }, "What shall we work on?"),
    h("p", { class: "soft" }, "Answers come from ", h("span", { class: "mono" }, model), " on this server."),
    h("div", { class: "ideas" }, ...ideas),
  );
}

/** @param {string} idea */
function suggest(idea) {
  at("say").value = `${idea}: `;
  at("say").focus();
  composer.grow();
}

function startNew() {
  opens += 1;
  shown = newConversation(at("model").value || models.firstModel(), settings.firstSettings());
  shown.second = at("second").value;
  history.replaceState(null, "", "#");
  attachments.clear();
  show();
  sidebar.slide(false);
  at("say").focus();
}

/** Counts what was opened, so that a slow one replaces no later one. */
let opens = 0;

/** @param {string} id */
async function open(id) {
  const mine = ++opens;
  const found = await store.loadConversation(id);
  if (mine !== opens || at("chat").hidden) return;
  if (!found) return startNew();
  shown = found;
  history.replaceState(null, "", `#${id}`);
  show();
  sidebar.slide(false);
}

// --- Asking ------------------------------------------------------------------------------------------

/** @param {Conversation} conversation */
async function keep(conversation) {
  try {
    await store.saveConversation(conversation);
  } catch (/** @type {any} */ error) {
    const full = error?.name === "QuotaExceededError";
    attachments.refuse(full ? "The browser has no room to keep this conversation: delete older ones." : `The browser did not keep this conversation: ${error?.message}`);
  }
}

/** Takes that the title, a model or the settings of what is shown were chosen. */
function chosen() {
  shown.changed = Date.now();
  if (shown.turns.length) keep(shown);
  else show();
}

/** Returns whether nothing more can be asked now, and says so.
 *  @param {Conversation} conversation */
function refusesMore(conversation) {
  const runs = runsIn(conversation.id);
  attachments.refuse(runs ? "An answer is under way in this conversation: wait for its end, or stop it." : "");
  return runs;
}

/** Has a new turn answered, below the one with the id `parent`, by one model or by two.
 *  @param {Conversation} conversation
 *  @param {string} parent */
async function ask(conversation, parent) {
  if (refusesMore(conversation)) return;
  const turn = addTurn(conversation, parent, { role: "assistant", model: conversation.model });
  if (conversation.second) turn.second = newTurn(parent, { role: "assistant", model: conversation.second });
  await Promise.all(columnsOf(turn).map((column) => fill(conversation, turn, column)));
}

/** Has one model's answer written once more, whatever the other one does.
 *  @param {Turn} pair
 *  @param {Turn} column */
async function askColumn(pair, column) {
  if (runOf(column)) return;
  reset(column);
  await fill(shown, pair, column);
}

/** Has a turn answered, or a column of it, and shows how it grows.
 *  @param {Conversation} conversation
 *  @param {Turn} turn
 *  @param {Turn} column */
async function fill(conversation, turn, column) {
  const turns = shownTurns(conversation);
  // Each model continues what it has said itself.
  const before = turns.slice(0, turns.indexOf(turn));
  const own = column === turn ? before : before.map((one) => one.second ?? one);
  let drawing = false;
  let refreshed = false;
  let savedMs = performance.now();
  // What is kept is written whole: with large files less often, a MB a second at most.
  const pauseMs = SAVE_MS + filesBytes(conversation) / SAVED_BYTES_PER_MS;
  const draw = () => {
    drawing = false;
    thread.updateTurn(conversation.id, turn.id);
  };
  const ended = answer(conversation, column, own, () => {
    // Drawn once a frame, however fast the tokens come.
    if (!drawing) requestAnimationFrame(draw);
    drawing = true;
    if (runOf(column)?.progress && !refreshed) {
      refreshed = true;
      models.refreshModels();
    }
    if (performance.now() - savedMs < pauseMs) return;
    savedMs = performance.now();
    keep(conversation);
  });
  const kept = keep(conversation);
  if (shown === conversation) {
    show();
    thread.toEnd();
  }
  await kept;
  // The seconds of a thought, and of a load, continue without a token.
  const ticking = setInterval(() => document.hidden || draw(), 500);
  await ended;
  clearInterval(ticking);
  await keep(conversation);
  draw();
  composer.showSend(runsIn(shown.id));
  sidebar.showList(shown.id);
  if (shown === conversation) announce(`${turn.second ? `${column.model}: ` : ""}${spoken(column)}`);
  models.refreshModels();
}

/** Returns what is said of an answer that has ended: once, and not in pieces.
 *  @param {Turn} turn */
function spoken(turn) {
  if (turn.error) return `The answer failed: ${turn.error.message}`;
  if (turn.state === "stopped") return "Stopped";
  const calls = turn.calls.map((call) => `The model calls ${call.name}.`).join(" ");
  return `${turn.text.slice(0, LONGEST_ANNOUNCED)} ${calls}`.trim();
}

async function send() {
  const text = at("say").value.trim();
  const files = attachments.files();
  if (runsIn(shown.id) || !(text || files.length)) return;
  if (attachments.isReading()) return attachments.refuse("A file is still being read: send again in a moment.");
  // The page may have been opened before there was a model.
  shown.model ||= at("model").value || models.firstModel();
  if (!shown.model) {
    // It says itself what is wrong with the key or the server.
    if (await models.refreshModels()) return;
    if (models.firstModel()) return send();
    return attachments.refuse("This server has no model that chats.");
  }
  at("say").value = "";
  composer.grow();
  attachments.clear();
  const last = shownTurns(shown).at(-1);
  const turn = addTurn(shown, last?.id ?? "", { role: "user", text, files });
  history.replaceState(null, "", `#${shown.id}`);
  ask(shown, turn.id);
}

/** @type {import("./message.js").Actions} */
const actions = {
  again: (turn) => ask(shown, turn.parent),
  columnAgain: askColumn,
  edited: (turn, text) => {
    if (refusesMore(shown)) return;
    const edited = addTurn(shown, turn.parent, { role: "user", text, files: turn.files });
    ask(shown, edited.id);
  },
  shown: (turn) => {
    choose(shown, turn);
    keep(shown);
    show();
  },
  resultsGiven: (turn) => ask(shown, turn.id),
};

// --- The same elsewhere ------------------------------------------------------------------------------

/** Returns the request that would be sent now, with what stands in the box; an example where nothing
 *  was said yet. */
function nextBody() {
  const text = at("say").value.trim();
  const turns = shownTurns(shown);
  const files = attachments.files();
  const next = text || files.length || !turns.length;
  const asked = next && addTurn(newConversation("", shown.settings), "", { role: "user", text: text || "Hello", files });
  // The last answer is not part of the request that it answers.
  const before = !asked && turns.at(-1)?.role === "assistant" ? turns.slice(0, -1) : turns;
  return bodyOf(shown.model, shown.settings, asked ? [...before, asked] : before);
}

/** @param {(base: string, body: Record<string, any>, keyed: boolean) => string} write */
const copyAs = (write) => async () => {
  closePopups(null);
  if (await copyText(write(url("v1"), nextBody(), models.asksForKey()))) announce("Copied");
};

// --- Beginning ---------------------------------------------------------------------------------------

async function begin() {
  at("open-sidebar").append(icon("menu"));
  at("close-sidebar").append(icon("close"));
  at("jump").append(icon("down"));
  attachments.listen();
  recorder.listen();
  thread.listen();
  composer.listen(send, () => stop(shown.id), () => runsIn(shown.id));
  settings.listen(() => shown.settings, chosen);
  options.listen(startNew, () => {
    shown.model ||= models.firstModel();
    // Without the key there was no Markdown.
    thread.forget();
    show();
  });
  sidebar.listen(open, (id) => {
    stop(id);
    if (id === shown.id) startNew();
  }, (id) => id === shown.id && show());
  models.listen((model) => {
    shown.model = model;
    chosen();
  }, (second) => {
    shown.second = second;
    chosen();
  }, options.askForKey);
  menu(at("share"), at("share-menu"));
  at("as-curl").addEventListener("click", copyAs(asCurl));
  at("as-python").addEventListener("click", copyAs(asPython));
  at("as-javascript").addEventListener("click", copyAs(asJavaScript));
  at("as-markdown").addEventListener("click", () => sidebar.exportAs(shown, "md"));
  at("as-json").addEventListener("click", () => sidebar.exportAs(shown, "json"));
  at("new").addEventListener("click", startNew);
  store.onOtherTab((id, turns) => {
    sidebar.showList(shown.id);
    if (id !== shown.id || runsIn(id)) return;
    // What was not changed stays as it is, with what is edited or selected in it.
    thread.forget(turns);
    show();
  });
  const openAddressed = () => {
    const id = location.hash.slice(1);
    if (id && id !== shown.id && !id.startsWith("/")) open(id);
  };
  // An address that was typed, or a link.
  window.addEventListener("hashchange", openAddressed);
  store.onOpenedLate(() => {
    sidebar.showList(shown.id);
    if (!opens && !shown.turns.length) openAddressed();
  });
  window.addEventListener("pagehide", () => {
    if (runsIn(shown.id)) keep(shown);
  });

  const answered = models.refreshModels();
  const id = location.hash.slice(1);
  const found = id && !id.startsWith("/") && (await store.loadConversation(id));
  if (found && !opens) shown = found;
  show();
  await answered;
  if (!shown.model) shown.model = models.firstModel();
  show();
  document.body.classList.add("ready");
}

begin();
