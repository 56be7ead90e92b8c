// @ts-check
// The box for the next message: it grows with its text, sends by Enter, and stops by the same button
// that sends.

import { files } from "./attachments.js";
import { at, composes, icon } from "./dom.js";

/** Begins to listen.
 *  @param {() => void} send
 *  @param {() => void} stop
 *  @param {() => boolean} runs Whether an answer streams into what is shown. */
export function listen(send, stop, runs) {
  at("attach").append(icon("attach"));
  at("form").addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    if (runs()) stop();
    else send();
  });
  at("say").addEventListener("input", grow);
  at("files").addEventListener("change", () => showSend(runs()));
  at("say").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" || event.shiftKey || composes(event)) return;
    event.preventDefault();
    if (!runs()) send();
  });
  at("say").addEventListener("input", () => showSend(runs()));
  document.addEventListener("keydown", (event) => {
    // What is open or typed in is closed or emptied by it first.
    if (event.key !== "Escape" || event.defaultPrevented || composes(event)) return;
    if (at("chat").hidden || document.querySelector("dialog[open], #sidebar input:focus")) return;
    if (runs()) stop();
  });
  showSend(false);
}

/** Makes the box as high as its text; the style sheet bounds it. */
export function grow() {
  const box = at("say");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

/** Shows what the button does. It is one button, and never disabled, so that it keeps the focus.
 *  @param {boolean} runs */
export function showSend(runs) {
  const send = at("send");
  const shape = runs ? "stop" : "send";
  if (send.dataset.does !== shape) {
    send.dataset.does = shape;
    send.setAttribute("aria-label", runs ? "Stop" : "Send");
    send.replaceChildren(icon(shape));
  }
  const idle = !runs && !at("say").value.trim() && !files().length;
  send.setAttribute("aria-disabled", String(idle));
  at("hint").textContent = runs ? "Escape stops" : "Enter sends, Shift+Enter begins a new line";
}
