// @ts-check
// The requests that other programs make, in small: each is sent as its program would, by the routes
// that everybody has, and says what came back.

import { linesOf, url } from "./api.js";
import { key } from "./key.js";

const QUESTION = "Answer with one word: which colour has the sky?";
const MOST_TOKENS = 24;
const SHOWN = 120;

/** @typedef {object} Check
 *  @property {string} path
 *  @property {Record<string, any> | null} body What is posted, without the model; nothing for a GET.
 *  @property {(part: any) => string | undefined} textOf The text in one part of the answer.
 *  @property {Record<string, string>} [headers] */
/** @typedef {{ok: boolean, what: string, text: string, code: string, advice: string}} Outcome */

const messages = [{ role: "user", content: QUESTION }];
const counted = (/** @type {any[]} */ list) => `${list.length} ${list.length === 1 ? "model" : "models"}`;

/** @type {Record<string, Check>} */
const CHECKS = {
  catalogue: { path: "v1/models", body: null, textOf: (all) => counted(all.data) },
  tags: { path: "api/tags", body: null, textOf: (all) => counted(all.models) },
  lmstudio: { path: "api/v0/models", body: null, textOf: (all) => counted(all.data) },
  chat: {
    path: "v1/chat/completions",
    body: { messages, max_tokens: MOST_TOKENS, stream: true },
    textOf: ({ choices }) => choices?.[0]?.delta?.content ?? choices?.[0]?.delta?.reasoning_content,
  },
  completions: {
    path: "v1/completions",
    body: { prompt: QUESTION, max_tokens: MOST_TOKENS, stream: true },
    textOf: ({ choices }) => choices?.[0]?.text,
  },
  responses: {
    path: "v1/responses",
    body: { input: messages, max_output_tokens: MOST_TOKENS, stream: true },
    textOf: ({ type, delta }) => (/^response\..*text\.delta$/.test(type) ? delta : ""),
  },
  messages: {
    path: "v1/messages",
    body: { messages, max_tokens: MOST_TOKENS, stream: true },
    headers: { "anthropic-version": "2023-06-01" },
    textOf: ({ delta }) => delta?.text ?? delta?.thinking,
  },
  ollama: {
    path: "api/chat",
    body: { messages, options: { num_predict: MOST_TOKENS } },
    textOf: ({ message }) => message?.content || message?.thinking,
  },
};

/** Sends the request that `name` stands for, and says how it went. Never throws, but when it is
 *  aborted.
 *  @param {string} name
 *  @param {string} model
 *  @param {AbortSignal} signal
 *  @param {(text: string) => void} progress Called with what the server says while a model loads.
 *  @returns {Promise<Outcome>} */
export async function check(name, model, signal, progress) {
  const { path, body, textOf, headers } = CHECKS[name];
  const request = `${body ? "POST" : "GET"} /${path}`;
  const beganMs = performance.now();
  const sent = body ? JSON.stringify({ model, ...body }) : undefined;
  const all = new Headers(headers);
  if (sent) all.set("Content-Type", "application/json");
  // Anthropic's clients send the key in a header of their own.
  if (key() && name === "messages") all.set("x-api-key", key());
  else if (key()) all.set("Authorization", `Bearer ${key()}`);
  let status = 0;
  try {
    const response = await fetch(url(path), {
      method: body ? "POST" : "GET",
      headers: all,
      body: sent,
      signal,
    });
    ({ status } = response);
    let text = "";
    for await (const part of partsOf(response, progress)) {
      const error = part.error ?? part.response?.error;
      if (error) return failed(request, status, error, model);
      text += textOf(part) ?? "";
    }
    const tookS = ((performance.now() - beganMs) / 1000).toFixed(1);
    const what = `${request}: ${status} after ${tookS} s`;
    if (!response.ok) return failed(request, status, {}, model);
    return { ok: true, what, text: text.trim().slice(0, SHOWN), code: "", advice: "" };
  } catch (error) {
    if (signal.aborted) throw error;
    if (error instanceof SyntaxError) return failed(request, status, "The answer is not JSON: a proxy between this page and lmx may have sent it.", model);
    const advice = "The server does not answer: it may have been stopped, or the network is down.";
    return { ok: false, what: request, text: "", code: "no_answer", advice };
  }
}

/** @param {string} request
 *  @param {number} status
 *  @param {any} error As the API family has it: an object, or Ollama's text.
 *  @param {string} model
 *  @returns {Outcome} */
function failed(request, status, error, model) {
  const text = typeof error === "string" ? error : (error.message ?? "");
  const code = error.code ?? error.type ?? "";
  const advice =
    status === 401
      ? "The server has API keys: give this page one under Key and storage, and the program the same in LMX_API_KEY."
      : status === 404
        ? `Is ${model} still there? The list above has the models of this server.`
        : status === 503 || status === 507
          ? "The model can't be had now: the page Models says why."
          : "";
  return { ok: false, what: `${request}: ${status}`, text, code, advice };
}

/** Yields the parts of an answer: those of a stream of events, the lines of Ollama's, or the whole.
 *  @param {Response} response
 *  @param {(text: string) => void} progress
 *  @returns {AsyncGenerator<any>} */
async function* partsOf(response, progress) {
  const type = response.headers.get("Content-Type") ?? "";
  const streams = type.includes("event-stream") || type.includes("ndjson");
  if (!streams) return yield await response.json();
  for await (const line of linesOf(response)) {
    if (line.startsWith(": ") && line !== ": ping") progress(line.slice(2));
    const data = line.startsWith("data: ") ? line.slice(6) : line.startsWith("{") ? line : "";
    if (data && data !== "[DONE]") yield JSON.parse(data);
  }
}
