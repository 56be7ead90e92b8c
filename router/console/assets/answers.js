// @ts-check
// The answers that stream now. Each goes into its own turn of its own conversation, whichever is
// shown.

import { chat } from "./api.js";
import { bodyOf } from "./conversation.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./conversation.js").Turn} Turn */
/** @typedef {object} Running
 *  @property {string} conversationId
 *  @property {AbortController} abort
 *  @property {string} progress What the server says while the model is loaded.
 *  @property {number} beganMs
 *  @property {number} thinkingMs When the model began to think; 0 before. */

/** @type {Map<Turn, Running>} */
const running = new Map();

/** Returns whether an answer streams into a conversation.
 *  @param {string} id */
export const runsIn = (id) => [...running.values()].some((run) => run.conversationId === id);

/** Returns the answer that streams into a turn, if one does.
 *  @param {Turn} turn */
export const runOf = (turn) => running.get(turn);

/** Stops all that streams into a conversation.
 *  @param {string} id */
export function stop(id) {
  for (const run of running.values()) if (run.conversationId === id) run.abort.abort();
}

/** Stops all that streams. */
export function stopAll() {
  for (const run of running.values()) run.abort.abort();
}

/** Lets a turn's model answer the turns before it, into it. Never throws: what goes wrong stands in
 *  the turn.
 *  @param {Conversation} conversation
 *  @param {Turn} turn
 *  @param {Turn[]} before
 *  @param {() => void} changed Called after each piece. */
export async function answer(conversation, turn, before, changed) {
  /** @type {Running} */
  const run = {
    conversationId: conversation.id,
    abort: new AbortController(),
    progress: "",
    beganMs: performance.now(),
    thinkingMs: 0,
  };
  running.set(turn, run);
  turn.state = "running";
  /** @type {"" | "stopped" | "failed" | "length"} */
  let end = "";
  let firstMs = 0;
  try {
    const body = bodyOf(turn.model, conversation.settings, before);
    for await (const { comment, chunk } of chat(body, run.abort.signal)) {
      turn.changed = Date.now();
      if (comment) run.progress = comment === "ping" ? run.progress : comment;
      if (chunk) {
        if (take(turn, run, chunk) && !firstMs) firstMs = performance.now();
        if (chunk.choices[0]?.finish_reason === "length") end = "length";
        if (chunk.usage) turn.figures = figuresOf(chunk, firstMs - run.beganMs);
      }
      changed();
    }
  } catch (/** @type {any} */ error) {
    end = run.abort.signal.aborted ? "stopped" : "failed";
    if (end === "failed") turn.error = { code: error.code ?? "", message: error.message };
  }
  endThinking(turn, run);
  turn.state = end;
  turn.changed = Date.now();
  conversation.updated = Date.now();
  running.delete(turn);
  changed();
}

/** Adds a chunk to a turn; returns whether there was anything of the answer in it.
 *  @param {Turn} turn
 *  @param {Running} run
 *  @param {any} chunk */
function take(turn, run, chunk) {
  const delta = chunk.choices[0]?.delta ?? {};
  if (delta.reasoning_content) {
    run.thinkingMs ||= performance.now();
    turn.thinking += delta.reasoning_content;
  }
  if (delta.content) {
    endThinking(turn, run);
    turn.text += delta.content;
  }
  for (const piece of delta.tool_calls ?? []) {
    endThinking(turn, run);
    const call = (turn.calls[piece.index] ??= { id: "", name: "", arguments: "" });
    call.id ||= piece.id ?? "";
    call.name += piece.function?.name ?? "";
    call.arguments += piece.function?.arguments ?? "";
  }
  return Boolean(delta.reasoning_content || delta.content || delta.tool_calls?.length);
}

/** @param {Turn} turn
 *  @param {Running} run */
function endThinking(turn, run) {
  if (!run.thinkingMs) return;
  turn.thinkingS += (performance.now() - run.thinkingMs) / 1000;
  run.thinkingMs = 0;
}

/** @param {any} chunk
 *  @param {number} firstMs
 *  @returns {import("./conversation.js").Figures} */
function figuresOf({ usage, timings }, firstMs) {
  return {
    promptTokens: usage.prompt_tokens,
    cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
    tokens: usage.completion_tokens,
    tokensPerS: timings?.tokens_per_s ?? 0,
    firstTokenS: Math.max(firstMs, 0) / 1000,
    loadS: timings?.load_s ?? 0,
  };
}
