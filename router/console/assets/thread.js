// @ts-check
// Shows the branch of a conversation, and follows its end for whoever is at it.

import { columnsOf, shownTurns, siblings } from "./conversation.js";
import { at } from "./dom.js";
import { message } from "./message.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */

const NEAR_PX = 48;

/** @type {Map<string, {element: HTMLElement, update: () => void, key: string}>} */
let views = new Map();
let shownId = "";
let follows = true;
let lastTop = 0;

const scroller = () => /** @type {HTMLElement} */ (at("thread"));
const isAtEnd = () => scroller().scrollHeight - scroller().scrollTop - scroller().clientHeight < NEAR_PX;

export function toEnd() {
  follows = true;
  scroller().scrollTop = scroller().scrollHeight;
  lastTop = scroller().scrollTop;
}

/** Begins to follow the end of what is shown. */
export function listen() {
  scroller().addEventListener("scroll", () => {
    const top = scroller().scrollTop;
    // What grows below takes nobody away from the end: only who scrolls up leaves it.
    if (isAtEnd()) follows = true;
    else if (top < lastTop) follows = false;
    lastTop = top;
    at("jump").hidden = follows || isAtEnd();
  });
  const grown = new ResizeObserver(() => {
    if (follows) toEnd();
    else at("jump").hidden = isAtEnd();
  });
  grown.observe(at("turns"));
  grown.observe(scroller());
  at("jump").addEventListener("click", () => {
    toEnd();
    at("say").focus();
  });
}

/** Shows a conversation. What is shown already and has not changed is left alone.
 *  @param {Conversation} conversation
 *  @param {import("./message.js").Actions} actions
 *  @param {HTMLElement} empty What is shown where nothing was said yet. */
export function showThread(conversation, actions, empty) {
  const turns = shownTurns(conversation);
  if (shownId !== conversation.id) {
    views = new Map();
    follows = true;
  }
  shownId = conversation.id;
  const kept = new Map();
  for (const turn of turns) {
    // The number of its versions is on it, and what is answered again in its place is drawn again.
    const tries = columnsOf(turn).map((column) => column.tries);
    const key = `${turn.id} ${siblings(conversation, turn).length} ${tries}`;
    const known = views.get(turn.id);
    kept.set(turn.id, known?.key === key ? known : { ...message(conversation, turn, actions), key });
  }
  views = kept;
  const wanted = turns.length ? turns.map((turn) => views.get(turn.id)?.element) : [empty];
  const box = at("turns");
  wanted.forEach((element, place) => {
    if (box.children[place] !== element) box.insertBefore(element, box.children[place] ?? null);
  });
  while (box.children.length > wanted.length) box.lastElementChild.remove();
  box.classList.toggle("empty", !turns.length);
  box.classList.toggle("wide", turns.some((turn) => turn.second));
  if (follows) toEnd();
}

/** Has turns drawn again when their conversation is shown next.
 *  @param {Iterable<string>} turns Their ids; all if none are given. */
export function forget(turns = [...views.keys()]) {
  for (const id of turns) views.delete(id);
}

/** Shows what the last turn has become, where its conversation is the one that is shown.
 *  @param {string} conversationId
 *  @param {string} turnId */
export function updateTurn(conversationId, turnId) {
  if (shownId === conversationId) views.get(turnId)?.update();
}
