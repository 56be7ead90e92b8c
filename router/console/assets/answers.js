// @ts-check
// The answers that stream now. Each goes into its own turn of its own conversation, whichever is
// shown.

import { chat } from "./api.js";
import { bodyOf } from "./conversation.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./conversation.js").Turn} Turn */
/** @typedef {object} Running
 *  @property {AbortController} abort
 *  @property {Turn} turn
 *  @property {string} progress What the server says while the model is loaded.
 *  @property {number} beganMs
 *  @property {number} thinkingMs When the model began to think; 0 before. */

/** @type {Map<string, Running>} */
const running = new Map();

/** Returns the answer that streams into a conversation, if one does.
 *  @param {string} id */
export const runningIn = (id) => running.get(id);

/** @param {string} id */
export function stop(id) {
  running.get(id)?.abort.abort();
}

/** Lets a model answer the turns before `turn`, into it. Never throws: what goes wrong stands in the
 *  turn.
 *  @param {Conversation} conversation
 *  @param {Turn} turn
 *  @param {Turn[]} before
 *  @param {() => void} changed Called after each piece. */
export async function answer(conversation, turn, before, changed) {
  /** @type {Running} */
  const run = { abort: new AbortController(), turn, progress: "", beganMs: performance.now(), thinkingMs: 0 };
  running.set(conversation.id, run);
  turn.state = "running";
  turn.model = conversation.model;
  /** @type {"" | "stopped" | "failed" | "length"} */
  let end = "";
  let firstMs = 0;
  try {
    const body = bodyOf(conversation.model, conversation.settings, before);
    for await (const { comment, chunk } of chat(body, run.abort.signal)) {
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
  conversation.updated = Date.now();
  running.delete(conversation.id);
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
