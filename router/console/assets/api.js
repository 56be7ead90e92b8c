// @ts-check
// Asks this server, and no other one.

import { bearer } from "./key.js";

/** Returns the address of a path of this server, also below a proxy's path.
 *  @param {string} path */
export const url = (path) => new URL(path, document.baseURI).href;

/** An answer that is not well, in words for people. */
export class ApiError extends Error {
  /** @param {string} message
   *  @param {string} code
   *  @param {number} status
   *  @param {string | null} param The field of the request that is at fault. */
  constructor(message, code, status = 0, param = null) {
    super(message);
    this.code = code;
    this.status = status;
    this.param = param;
  }
}

/** Returns the answer of a path of this server. Throws an ApiError if it is not well.
 *  @param {string} path
 *  @param {RequestInit} options */
export async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(url(path), { ...options, headers: { ...bearer(), ...options.headers } });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError("lmx does not answer. It may have been stopped, or the network is down.", "no_answer");
  }
  if (response.ok) return response;
  try {
    const { error } = await response.json();
    throw new ApiError(error.message, error.code, response.status, error.param ?? null);
  } catch (error) {
    if (error instanceof ApiError) throw error;
    throw new ApiError(`The server answered with the status ${response.status}.`, "", response.status);
  }
}

/** @param {unknown} body
 *  @returns {RequestInit} */
export const posted = (body) => ({
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
});

/** Returns how the server is. */
export async function health() {
  return (await ask(".", { headers: { Accept: "application/json" } })).json();
}

/** Returns the models, as GET /v1/models lists them. */
export async function listModels() {
  return (await (await ask("v1/models")).json()).data;
}

/** Returns the trees of Markdown texts.
 *  @param {string[]} blocks
 *  @returns {Promise<any[]>} */
export async function renderMarkdown(blocks) {
  return (await (await ask("ui/markdown", posted({ blocks }))).json()).blocks;
}

/** Yields what an answer's stream says: a `comment` for people while there is no answer yet, and
 *  `chunk`s. Throws an ApiError if it ends badly.
 *  @param {Record<string, any>} body
 *  @param {AbortSignal} signal
 *  @returns {AsyncGenerator<{comment?: string, chunk?: any}>} */
export async function* chat(body, signal) {
  const sent = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await ask("v1/chat/completions", { ...posted(sent), signal });
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let held = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (signal.aborted) throw error;
      break;
    }
    if (part.done) break;
    held += decoder.decode(part.value, { stream: true });
    const events = held.split("\n\n");
    held = /** @type {string} */ (events.pop());
    for (const event of events) {
      if (event.startsWith(": ")) yield { comment: event.slice(2) };
      if (!event.startsWith("data: ")) continue;
      const data = event.slice("data: ".length);
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(chunk.error.message, chunk.error.code);
      yield { chunk };
    }
  }
  throw new ApiError("The connection ended before the answer did.", "connection_lost");
}
