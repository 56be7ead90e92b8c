// @ts-check
// Shows one turn of a conversation.

import { runOf, runsIn } from "./answers.js";
import { sizeOf } from "./attachments.js";
import { siblings } from "./conversation.js";
import { composes, copyBy, h, iconButton } from "./dom.js";
import { drawing } from "./markdown.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./conversation.js").Turn} Turn */
/** @typedef {object} Actions What the buttons of a turn do.
 *  @property {(turn: Turn) => void} again
 *  @property {(pair: Turn, turn: Turn) => void} columnAgain
 *  @property {(turn: Turn, text: string) => void} edited
 *  @property {(turn: Turn) => void} shown
 *  @property {((turn: Turn) => void) | null} resultsGiven Nothing where no results can be given. */

/** Returns the element of a turn, and a function that shows what the turn has become.
 *  @param {Conversation} conversation
 *  @param {Turn} turn
 *  @param {Actions} actions
 *  @returns {{element: HTMLElement, update: () => void}} */
export function message(conversation, turn, actions) {
  if (turn.role === "user") return question(conversation, turn, actions);
  return turn.second ? pair(conversation, turn, turn.second, actions) : reply(conversation, turn, actions);
}

// --- What was asked ----------------------------------------------------------------------------------

/** @param {Conversation} conversation
 *  @param {Turn} turn
 *  @param {Actions} actions */
function question(conversation, turn, actions) {
  const text = h("div", { class: "text" }, turn.text);
  const bubble = h("div", { class: "bubble" }, ...turn.files.map(attached), turn.text && text);
  const edit = () => {
    const box = h("textarea", { value: turn.text, "aria-label": "Edit your message", rows: 3 });
    const close = () => {
      form.replaceWith(bubble, buttons);
      /** @type {HTMLElement} */ (buttons.querySelector("button"))?.focus();
    };
    const form = h(
      "form",
      {
        class: "edit",
        onsubmit: (/** @type {Event} */ event) => {
          event.preventDefault();
          if (box.value.trim() || turn.files.length) actions.edited(turn, box.value.trim());
        },
        onkeydown: (/** @type {KeyboardEvent} */ event) => {
          if (event.key === "Escape" && !composes(event)) {
            event.stopPropagation();
            close();
          } else if (event.key === "Enter" && !event.shiftKey && !composes(event)) {
            event.preventDefault();
            form.requestSubmit();
          }
        },
      },
      box,
      h(
        "div",
        { class: "buttons" },
        h("span", { class: "space" }),
        h("button", { type: "button", onclick: close }, "Cancel"),
        h("button", { class: "main" }, "Ask"),
      ),
    );
    bubble.replaceWith(form);
    buttons.remove();
    box.focus();
  };
  const buttons = h(
    "div",
    { class: "actions" },
    branches(conversation, turn, actions),
    copyIcon("Copy the message", () => turn.text),
    iconButton("edit", "Edit", edit),
  );
  return { element: h("article", { class: "user", "aria-label": "You" }, bubble, buttons), update: () => {} };
}

/** @param {import("./conversation.js").Attachment} file */
export function attached({ kind, name, url, size }) {
  if (kind === "image") return h("img", { class: "thumbnail", src: url, alt: name });
  const title = h("span", { class: "name" }, `${name} (${sizeOf(size)})`);
  if (kind === "audio") return h("div", { class: "sound" }, title, h("audio", { controls: true, src: url }));
  return h("div", { class: "sound" }, title);
}

// --- What was answered -------------------------------------------------------------------------------

/** Two models' answers to one question, each in a column of its own.
 *  @param {Conversation} conversation
 *  @param {Turn} one
 *  @param {Turn} other
 *  @param {Actions} actions */
function pair(conversation, one, other, actions) {
  const columns = [one, other].map((turn) =>
    reply(conversation, turn, { ...actions, again: () => actions.columnAgain(one, turn), resultsGiven: null }),
  );
  const element = h("div", { class: "pair" }, ...columns.map((column) => column.element));
  return { element, update: () => columns.forEach((column) => column.update()) };
}

/** @param {Conversation} conversation
 *  @param {Turn} turn
 *  @param {Actions} actions */
function reply(conversation, turn, actions) {
  const who = h("div", { class: "who" }, turn.model);
  const wait = h("div", { class: "wait" });
  const bar = h("div", { class: "bar", hidden: true }, h("i"));
  const thoughtTitle = h("span", { class: "title" }, "Thinking");
  const thoughtNow = h("span", { class: "now" });
  const thought = h("div", { class: "thought" });
  const thoughts = h(
    "details",
    { class: "thoughts", hidden: true },
    h("summary", {}, thoughtTitle, thoughtNow),
    thought,
  );
  const text = h("div", { class: "text markdown" });
  const calls = h("div", { class: "calls", hidden: true });
  const fault = h("div", { class: "fault card", hidden: true });
  const figures = h("span", { class: "figures" });
  const copy = copyIcon("Copy the answer", () => turn.text);
  const foot = h(
    "div",
    { class: "actions" },
    branches(conversation, turn, actions),
    copy,
    iconButton("again", "Answer again", () => actions.again(turn)),
    figures,
  );
  const element = h(
    "article",
    { class: "assistant", "aria-label": `Answer of ${turn.model}` },
    who, wait, bar, thoughts, text, calls, fault, foot,
  );
  const draw = drawing(text);
  let thoughtLength = 0;

  function showThoughts() {
    const run = runOf(turn);
    const thinks = run !== undefined && run.thinkingMs > 0;
    thoughts.hidden = !turn.thinking;
    thoughts.classList.toggle("moving", thinks);
    const seconds = turn.thinkingS + (thinks ? (performance.now() - run.thinkingMs) / 1000 : 0);
    thoughtTitle.textContent = thinks ? `Thinking · ${seconds.toFixed(0)} s` : seconds < 1 ? "Thoughts" : `Thought for ${seconds.toFixed(0)} s`;
    thoughtNow.textContent = thinks ? (turn.thinking.trimEnd().split("\n").pop() ?? "").slice(-160) : "";
    // Only what is new: a selection in the thoughts stays.
    if (turn.thinking.length > thoughtLength) thought.append(turn.thinking.slice(thoughtLength));
    thoughtLength = turn.thinking.length;
  }

  function showWaiting() {
    const run = runOf(turn);
    const waits = run && !turn.thinking && !turn.text && !turn.calls.length;
    wait.hidden = bar.hidden = true;
    if (!waits) return;
    wait.hidden = false;
    wait.textContent = run.progress || "Reading the prompt";
    const percent = /(\d+)%/.exec(run.progress);
    bar.hidden = !percent;
    if (percent) /** @type {HTMLElement} */ (bar.firstChild).style.width = `${percent[1]}%`;
  }

  let callsDrawn = "";
  function showCalls() {
    const now = JSON.stringify(turn.calls) + turn.state;
    if (now === callsDrawn) return;
    callsDrawn = now;
    calls.hidden = !turn.calls.length;
    calls.replaceChildren(...turn.calls.map((call) => oneCall(call, turn.state === "running")));
    const open = actions.resultsGiven && turn.calls.some((call) => call.result === undefined) && turn.state !== "running";
    if (open) {
      calls.append(h("div", { class: "buttons" }, h("button", { type: "button", onclick: giveResults }, "Send the results")));
    }
  }
  function giveResults() {
    // They would not be sent, and could not be given again.
    if (runsIn(conversation.id)) return;
    calls.querySelectorAll("textarea").forEach((box, place) => {
      turn.calls[place].result = box.value;
    });
    // Other tabs take what was written last.
    turn.changed = Date.now();
    update();
    actions.resultsGiven?.(turn);
  }

  function update() {
    const runs = turn.state === "running";
    element.setAttribute("aria-busy", String(runs));
    element.classList.toggle("running", runs);
    showWaiting();
    showThoughts();
    draw(turn.text, !runs);
    showCalls();
    fault.hidden = !turn.error;
    if (turn.error && !fault.childElementCount) {
      fault.append(
        h("p", {}, turn.error.code && h("code", {}, turn.error.code), turn.error.message),
        h("button", { type: "button", onclick: () => actions.again(turn) }, "Ask again"),
      );
    }
    figures.textContent = runs ? "" : figuresOf(turn);
    foot.hidden = runs;
    copy.hidden = !turn.text;
  }
  update();
  return { element, update };
}

/** @param {import("./conversation.js").Call} call
 *  @param {boolean} runs */
function oneCall(call, runs) {
  let shown = call.arguments;
  try {
    shown = JSON.stringify(JSON.parse(call.arguments), null, 2);
  } catch {
    // It still streams, or the model wrote no JSON: it is shown as it is.
  }
  const done = call.result !== undefined;
  return h(
    "div",
    { class: "call card" },
    h("div", { class: "title" }, "Calls ", h("code", {}, call.name)),
    h("pre", { tabIndex: 0 }, shown),
    !runs &&
      h(
        "label",
        {},
        "Result",
        h("textarea", { rows: 2, value: call.result ?? "", readOnly: done, class: "mono" }),
      ),
  );
}

/** @param {Turn} turn */
function figuresOf({ figures, state }) {
  const parts = [];
  if (state === "stopped") parts.push("Stopped");
  if (state === "length") parts.push("Cut at the longest answer");
  if (figures) {
    parts.push(`${figures.tokens} tokens`);
    if (figures.tokensPerS) parts.push(`${figures.tokensPerS.toFixed(1)} tokens/s`);
    if (figures.firstTokenS) parts.push(`first token after ${figures.firstTokenS.toFixed(2)} s`);
    if (figures.loadS >= 0.1) parts.push(`${figures.loadS.toFixed(1)} s of it loading`);
    const cached = figures.cachedTokens ? `, ${figures.cachedTokens} cached` : "";
    parts.push(`prompt ${figures.promptTokens}${cached}`);
  }
  return parts.join(" · ");
}

// --- Of both -----------------------------------------------------------------------------------------

/** @param {string} label
 *  @param {() => string} text */
function copyIcon(label, text) {
  const button = iconButton("copy", label, () => copyBy(button, text()));
  return button;
}

/** Returns the buttons that lead to the other versions of a turn; nothing if there is but one.
 *  @param {Conversation} conversation
 *  @param {Turn} turn
 *  @param {Actions} actions */
function branches(conversation, turn, actions) {
  const all = siblings(conversation, turn);
  const place = all.indexOf(turn);
  // The second model's answer goes with the first one's.
  if (all.length < 2 || place < 0) return null;
  /** @param {number} other */
  const to = (other) => () => actions.shown(all[(other + all.length) % all.length]);
  return h(
    "span",
    { class: "branches" },
    iconButton("left", "Version before", to(place - 1)),
    h("span", {}, `${place + 1}/${all.length}`),
    iconButton("right", "Next version", to(place + 1)),
  );
}
