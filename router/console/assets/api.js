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

/** Yields the whole lines of a stream, as they arrive.
 *  @param {Response} response
 *  @param {() => void} heard Called for each piece that arrives.
 *  @returns {AsyncGenerator<string>} */
export async function* linesOf(response, heard = () => {}) {
  const body = /** @type {ReadableStream<Uint8Array>} */ (response.body);
  const reader = body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    heard();
    const lines = (held + value).split("\n");
    held = /** @type {string} */ (lines.pop());
    yield* lines;
  }
}

/** Yields what an answer's stream says: a `comment` for people while there is no answer yet, and
 *  `chunk`s. Throws an ApiError if it ends badly.
 *  @param {Record<string, any>} body
 *  @param {AbortSignal} signal
 *  @returns {AsyncGenerator<{comment?: string, chunk?: any}>} */
export async function* chat(body, signal) {
  const sent = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await ask("v1/chat/completions", { ...posted(sent), signal });
  try {
    for await (const line of linesOf(response)) {
      if (line.startsWith(": ")) yield { comment: line.slice(2) };
      if (!line.startsWith("data: ")) continue;
      const data = line.slice("data: ".length);
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(chunk.error.message, chunk.error.code);
      yield { chunk };
    }
  } catch (error) {
    if (signal.aborted || error instanceof ApiError) throw error;
  }
  throw new ApiError("The connection ended before the answer did.", "connection_lost");
}
