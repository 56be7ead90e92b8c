// The chat of the page at /: one conversation with one model, streamed from this server and from
// nowhere else. Nothing is kept but the key, which stays in this tab until it is closed.

import { clear, files, named, offer, partsOf, refuse, withoutContent } from "./attachments.js";
import { drawing } from "./markdown.js";

const POLL_MS = 3000;
const KEY = "lmx-key";
const at = (id) => document.getElementById(id);
const url = (path) => new URL(path, document.baseURI).href;

let turns = [];
let abort = null;
let reading = false; // The files of the next message are being read.
let modalities = {}; // What each model takes, by its id.

// --- Talking to the server ---------------------------------------------------------------------------

function headers() {
  const key = sessionStorage.getItem(KEY);
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function problem(response) {
  try {
    const { error } = await response.json();
    return `${error.message} (${response.status} ${error.code})`;
  } catch {
    return `The server answered with the status ${response.status}.`;
  }
}

function body() {
  const system = at("system").value.trim();
  const number = (id) => (at(id).value === "" ? {} : { [id]: Number(at(id).value) });
  return {
    model: at("model").value,
    messages: [
      ...(system ? [{ role: "system", content: system }] : []),
      ...turns.map(({ role, content }) => ({ role, content })),
    ],
    ...number("temperature"),
    ...number("top_p"),
    ...number("max_tokens"),
  };
}

/** Yields the chunks of a stream; throws an Error with words for people if it ends badly. */
async function* chunks(signal) {
  const response = await fetch(url("v1/chat/completions"), {
    method: "POST",
    headers: headers(),
    body: JSON.stringify({ ...body(), stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw new Error(await problem(response));
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let held = "";
  for (let part; !(part = await reader.read()).done; ) {
    held += decoder.decode(part.value, { stream: true });
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue; // A comment: the model is being loaded, or a ping.
      const data = event.slice("data: ".length);
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(`${chunk.error.message} (${chunk.error.code})`);
      yield chunk;
    }
  }
  throw new Error("The connection ended before the answer did.");
}

// --- The conversation --------------------------------------------------------------------------------

function show(turn) {
  const box = document.createElement("article");
  box.className = turn.role;
  at("turns").append(box);
  const thoughts = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = "Thinking";
  const thought = document.createElement("div");
  thoughts.append(summary, thought);
  const text = document.createElement("div");
  text.className = "text";
  const note = document.createElement("p");
  note.className = "note";
  box.append(text, note);
  const again = document.createElement("button");
  again.textContent = "Try again";
  again.addEventListener("click", () => {
    if (abort) return;
    box.remove();
    ask();
  });
  const answer = drawing(text);
  const draw = () => {
    if (turn.role === "user") text.textContent = turn.shown;
    else answer(turn.content);
    if (turn.thinking) {
      thought.textContent = turn.thinking;
      if (!thoughts.isConnected) box.prepend(thoughts);
    }
    note.textContent = turn.error ?? turn.note ?? "";
    note.classList.toggle("error", Boolean(turn.error));
    if (turn.error) box.append(again);
    box.scrollIntoView({ block: "end" });
  };
  draw();
  return draw;
}

async function ask() {
  const turn = { role: "assistant", content: "", thinking: "", note: "Waiting" };
  const draw = show(turn);
  let due = false;
  const soon = () => {
    // Drawn once a frame, however fast the tokens come.
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      draw();
    });
  };
  abort = new AbortController();
  working(true);
  try {
    for await (const chunk of chunks(abort.signal)) {
      const choice = chunk.choices[0];
      turn.thinking += choice?.delta?.reasoning_content ?? "";
      turn.content += choice?.delta?.content ?? "";
      turn.note = "";
      if (chunk.usage) turn.note = figures(chunk);
      soon();
    }
  } catch (error) {
    if (error.name === "AbortError") turn.note = "Stopped";
    else turn.error = error.message;
  } finally {
    abort = null;
    working(false);
    // An answer that broke is not part of what is asked next.
    if (turn.content && !turn.error) turns.push(turn);
    draw();
  }
}

function figures({ usage, timings }) {
  const rate = timings?.tokens_per_s ? `, ${timings.tokens_per_s.toFixed(1)} tokens/s` : "";
  return `${usage.prompt_tokens} + ${usage.completion_tokens} tokens${rate}`;
}

function working(is) {
  at("send").hidden = is;
  at("stop").hidden = !is;
}

/** Returns the turn of a text and of the files that are attached. */
async function question(text) {
  const sent = files();
  const parts = await partsOf(sent);
  if (parts.length && text) parts.push({ type: "text", text });
  return {
    role: "user",
    content: parts.length ? parts : text,
    shown: [...sent.map(named), text].join("\n").trim(),
  };
}

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = at("say").value.trim();
  if (abort || reading || !(text || files().length)) return;
  reading = true;
  try {
    const turn = await question(text);
    at("say").value = "";
    clear();
    // What was not answered is not asked again.
    if (turns.at(-1)?.role === "user") turns.pop();
    turns.push(turn);
    show(turn);
    ask();
  } catch (error) {
    refuse(error.message);
  } finally {
    reading = false;
  }
});
at("say").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("form").requestSubmit();
  }
});
at("stop").addEventListener("click", () => abort?.abort());
at("new").addEventListener("click", () => {
  abort?.abort();
  turns = [];
  clear();
  at("turns").replaceChildren();
  at("say").focus();
});

// --- The same request elsewhere ----------------------------------------------------------------------

function shellQuoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** Returns the body for people: the content of files is left out. */
function toldBody() {
  const told = body();
  for (const message of told.messages) {
    if (Array.isArray(message.content)) message.content = message.content.map(withoutContent);
  }
  return told;
}

function asCurl() {
  const key = sessionStorage.getItem(KEY) ? ` \\\n  -H "Authorization: Bearer $LMX_API_KEY"` : "";
  const sent = JSON.stringify({ ...toldBody(), stream: true });
  return (
    `curl -N ${url("v1/chat/completions")} \\\n  -H 'Content-Type: application/json'${key}` +
    ` \\\n  -d ${shellQuoted(sent)}\n`
  );
}

function asPython() {
  const { model, messages, ...rest } = toldBody();
  const more = Object.entries(rest).map(([name, value]) => `    ${name}=${value},\n`).join("");
  return (
    `from openai import OpenAI\n\nclient = OpenAI(base_url=${JSON.stringify(url("v1"))}, api_key="unused")\n` +
    `stream = client.chat.completions.create(\n    model=${JSON.stringify(model)},\n` +
    `    messages=${JSON.stringify(messages)},\n${more}    stream=True,\n)\n` +
    `for chunk in stream:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)\n`
  );
}

async function copy(button, text) {
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Without TLS a browser gives no clipboard to another machine's page: it is shown instead.
    at("code").textContent = text;
    at("code").hidden = false;
  }
  setTimeout(() => (button.textContent = said), 1500);
}
at("curl").addEventListener("click", (event) => copy(event.target, asCurl()));
at("python").addEventListener("click", (event) => copy(event.target, asPython()));

// --- The state of the server -------------------------------------------------------------------------

at("key").addEventListener("change", () => {
  sessionStorage.setItem(KEY, at("key").value);
  refresh();
});

function row(model) {
  const line = document.createElement("tr");
  const name = document.createElement("td");
  const code = document.createElement("code");
  code.textContent = model.id;
  name.append(code);
  const state = document.createElement("td");
  state.textContent = model.state;
  state.className = model.state;
  line.append(name, state);
  return line;
}

async function refresh() {
  try {
    const front = await (await fetch(url("."), { headers: { Accept: "application/json" } })).json();
    at("status").textContent = front.status + (front.reason ? `: ${front.reason}` : "");
    at("status").className = front.status;
    const response = await fetch(url("v1/models"), { headers: headers() });
    at("keys").hidden = response.status !== 401;
    if (!response.ok) return;
    const { data } = await response.json();
    at("models").replaceChildren(...data.map(row));
    const chat = data.filter((model) => model.kind === "chat" || model.kind === null);
    modalities = Object.fromEntries(chat.map((model) => [model.id, model.modalities ?? []]));
    const names = chat.map((model) => model.id);
    const known = [...at("model").options].map((option) => option.value);
    if (names.join("\n") !== known.join("\n")) {
      const chosen = at("model").value;
      at("model").replaceChildren(...names.map((name) => new Option(name, name)));
      if (names.includes(chosen)) at("model").value = chosen;
    }
    choose();
  } catch {
    at("status").textContent = "lmx does not answer";
    at("status").className = "unhealthy";
  }
}

function choose() {
  offer(modalities[at("model").value] ?? []);
}
at("model").addEventListener("change", choose);

at("chat").hidden = false;
refresh();
setInterval(() => document.hidden || refresh(), POLL_MS);
