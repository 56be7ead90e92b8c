// @ts-check
// Keeps conversations in this browser, or for as long as the page is open where nothing is to be
// kept or the browser keeps nothing.

import { columnsOf, merge } from "./conversation.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {{id: string, title: string, created: number, updated: number}} Head */

const SWITCH = "lmx-keep";
const HEADS = "heads";
const BODIES = "bodies";
/** How long the browser may take to open what it keeps; some never answer. */
const OPEN_MS = 3000;

/** @type {Map<string, Conversation>} */
const open = new Map();
/** Those deleted in this tab: an answer that still streams into one must not bring it back.
 *  @type {Set<string>} */
const removed = new Set();
/** @type {Promise<IDBDatabase | null> | null} */
let opening = null;
/** Called when the browser has opened what it keeps after all. */
let openedLate = () => {};
const channel = new BroadcastChannel("lmx");

/** Returns whether conversations are kept. */
export const keeps = () => localStorage.getItem(SWITCH) !== "no";

/** Sets whether conversations are kept: those of this tab too, or none of those that were.
 *  @param {boolean} is */
export async function setKeeps(is) {
  if (!is) await removeAll();
  localStorage.setItem(SWITCH, is ? "yes" : "no");
  if (is) await Promise.all([...open.values()].map(saveConversation));
}

/** Has a function called when another tab changed what is kept. A conversation that is open here has
 *  its changes then.
 *  @param {(id: string, turns: string[]) => void} changed Called with the conversation, and the turns
 *    that changed in it; an empty text stands for all. */
export function onOtherTab(changed) {
  channel.addEventListener("message", async ({ data }) => {
    const here = open.get(data);
    const db = here && (await database());
    const found = db && (await readBody(db, data));
    changed(data, here && found ? merge(here, found) : []);
  });
}

/** Has a function called when what is kept is there although the page stopped waiting for it.
 *  @param {() => void} there */
export function onOpenedLate(there) {
  openedLate = there;
}

/** @returns {Promise<IDBDatabase | null>} */
function database() {
  if (!keeps()) return Promise.resolve(null);
  opening ??= new Promise((resolve) => {
    let late = false;
    const request = indexedDB.open("lmx", 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore(HEADS, { keyPath: "id" });
      request.result.createObjectStore(BODIES, { keyPath: "id" });
    };
    request.onsuccess = () => {
      const db = request.result;
      // Whoever deletes what is kept waits until no tab has it open.
      db.onversionchange = () => {
        db.close();
        opening = null;
      };
      // The browser closes it where its data is deleted.
      db.onclose = () => {
        opening = null;
      };
      opening = Promise.resolve(db);
      resolve(db);
      if (late) openedLate();
    };
    // A private window may have none.
    request.onerror = () => resolve(null);
    setTimeout(() => {
      late = true;
      resolve(null);
    }, OPEN_MS);
  });
  return opening;
}

/** @template Result
 *  @param {IDBRequest<Result>} request
 *  @returns {Promise<Result>} */
function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** @param {IDBDatabase} db
 *  @param {string} id
 *  @returns {Promise<Conversation | undefined>} */
const readBody = (db, id) => done(db.transaction(BODIES).objectStore(BODIES).get(id));

/** Changes what is kept, and has the other tabs follow. Does nothing where nothing is kept.
 *  @param {string} id The conversation; an empty text stands for all.
 *  @param {(heads: IDBObjectStore, bodies: IDBObjectStore) => void} write */
async function change(id, write) {
  const db = await database();
  if (!db) return;
  const transaction = db.transaction([HEADS, BODIES], "readwrite");
  write(transaction.objectStore(HEADS), transaction.objectStore(BODIES));
  await new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    // An error aborts it, and is known then: there may be no room.
    transaction.onabort = () => reject(transaction.error);
  });
  channel.postMessage(id);
}

/** @param {Conversation} conversation
 *  @returns {Head} */
const headOf = ({ id, title, created, updated }) => ({ id, title, created, updated });

/** Returns all conversations without their turns, the newest first.
 *  @returns {Promise<Head[]>} */
export async function listConversations() {
  const db = await database();
  const kept = db ? await done(db.transaction(HEADS).objectStore(HEADS).getAll()) : [];
  const heads = new Map(kept.map((head) => [head.id, head]));
  for (const conversation of open.values()) heads.set(conversation.id, headOf(conversation));
  return [...heads.values()].sort((one, other) => other.updated - one.updated);
}

/** Returns a conversation; nothing if there is none. One that is open in this tab is the same object
 *  each time, so that an answer which still streams goes where it belongs.
 *  @param {string} id
 *  @returns {Promise<Conversation | undefined>} */
export async function loadConversation(id) {
  const known = open.get(id);
  if (known) return known;
  const db = await database();
  const found = db && (await readBody(db, id));
  if (!found) return undefined;
  // Whatever ran when the page was closed has ended.
  for (const turn of found.turns.flatMap(columnsOf)) if (turn.state === "running") turn.state = "stopped";
  open.set(id, found);
  return found;
}

/** Keeps a conversation as it is now, with what other tabs wrote into it; one that was deleted stays
 *  deleted. Throws where the browser has no room.
 *  @param {Conversation} conversation */
export async function saveConversation(conversation) {
  if (removed.has(conversation.id)) return;
  open.set(conversation.id, conversation);
  await change(conversation.id, (heads, bodies) => {
    const before = bodies.get(conversation.id);
    before.onsuccess = () => {
      if (before.result) merge(conversation, before.result);
      heads.put(headOf(conversation));
      bodies.put(conversation);
    };
  });
}

/** @param {string} id */
export async function removeConversation(id) {
  removed.add(id);
  open.delete(id);
  await change(id, (heads, bodies) => {
    heads.delete(id);
    bodies.delete(id);
  });
}

export async function removeAll() {
  for (const id of open.keys()) removed.add(id);
  open.clear();
  await change("", (heads, bodies) => {
    heads.clear();
    bodies.clear();
  });
}

/** Returns the ids of the conversations that hold a text, in their title or in any turn.
 *  @param {string} text
 *  @returns {Promise<Set<string>>} */
export async function searchConversations(text) {
  const wanted = text.toLowerCase();
  /** @param {Conversation} conversation */
  const holds = ({ title, turns }) =>
    title.toLowerCase().includes(wanted) || turns.flatMap(columnsOf).some((turn) => turn.text.toLowerCase().includes(wanted));
  const found = new Set([...open.values()].filter(holds).map(({ id }) => id));
  const db = await database();
  if (!db) return found;
  const cursor = db.transaction(BODIES).objectStore(BODIES).openCursor();
  await new Promise((resolve, reject) => {
    cursor.onerror = () => reject(cursor.error);
    cursor.onsuccess = () => {
      if (!cursor.result) return resolve(null);
      if (!open.has(cursor.result.value.id) && holds(cursor.result.value)) found.add(cursor.result.value.id);
      cursor.result.continue();
    };
  });
  return found;
}
