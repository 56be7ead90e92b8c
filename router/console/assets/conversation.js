// @ts-check
// A conversation as data: a tree of turns, of which one branch is shown. Nothing here looks at the
// page or asks the server.

/** @typedef {{id: string, name: string, arguments: string, result?: string}} Call */
/** @typedef {{name: string, size: number, kind: string, url: string}} Attachment `url` is a data URL. */
/** @typedef {{promptTokens: number, cachedTokens: number, tokens: number, tokensPerS: number,
 *    firstTokenS: number, loadS: number}} Figures */
/** @typedef {object} Turn
 *  @property {string} id
 *  @property {string} parent The id of the turn before; empty for a first one.
 *  @property {"user" | "assistant"} role
 *  @property {string} text
 *  @property {Attachment[]} files
 *  @property {string} thinking
 *  @property {number} thinkingS
 *  @property {Call[]} calls
 *  @property {string} model
 *  @property {"" | "running" | "stopped" | "failed" | "length"} state
 *  @property {{code: string, message: string} | null} error
 *  @property {Figures | null} figures
 *  @property {number} changed When it was written last, in milliseconds since 1970.
 *  @property {number} tries How often it was answered again in its place.
 *  @property {Turn | null} second The second model's answer to the same question. */
/** @typedef {{system: string, temperature: number | null, top_p: number | null,
 *    max_tokens: number | null, seed: number | null, reasoning_effort: string, tools: string,
 *    schema: string}} Settings */
/** @typedef {object} Conversation
 *  @property {string} id
 *  @property {string} title
 *  @property {string} model
 *  @property {string} [second] A model that answers each question too; empty for none.
 *  @property {Settings} settings
 *  @property {number} created In milliseconds since 1970.
 *  @property {number} updated
 *  @property {number} [changed] When its title, its models or its settings were chosen last.
 *  @property {Turn[]} turns
 *  @property {Record<string, string>} chosen Which turn follows on one, by both ids. */

/** @type {Settings} */
export const NO_SETTINGS = {
  system: "",
  temperature: null,
  top_p: null,
  max_tokens: null,
  seed: null,
  reasoning_effort: "",
  tools: "",
  schema: "",
};

/** Without TLS there is no crypto.randomUUID. */
const freshId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 10);

/** @param {string} model
 *  @param {Settings} settings
 *  @returns {Conversation} */
export function newConversation(model, settings) {
  const now = Date.now();
  return { id: freshId(), title: "", model, settings: { ...settings }, created: now, updated: now, turns: [], chosen: {} };
}

/** @param {string} parent
 *  @param {Partial<Turn> & {role: "user" | "assistant"}} fields
 *  @returns {Turn} */
export function newTurn(parent, fields) {
  return {
    id: freshId(),
    parent,
    text: "",
    files: [],
    thinking: "",
    thinkingS: 0,
    calls: [],
    model: "",
    state: "",
    error: null,
    figures: null,
    changed: Date.now(),
    tries: 0,
    second: null,
    ...fields,
  };
}

/** Adds a turn, and has it shown.
 *  @param {Conversation} conversation
 *  @param {string} parent
 *  @param {Partial<Turn> & {role: "user" | "assistant"}} fields
 *  @returns {Turn} */
export function addTurn(conversation, parent, fields) {
  const turn = newTurn(parent, fields);
  conversation.turns.push(turn);
  choose(conversation, turn);
  conversation.updated = Date.now();
  if (!conversation.title && turn.role === "user") conversation.title = titleOf(turn);
  return turn;
}

/** @param {Conversation} conversation
 *  @param {Turn} turn */
export function choose(conversation, turn) {
  conversation.chosen[turn.parent] = turn.id;
}

/** Returns the turns that could stand in a turn's place, itself among them.
 *  @param {Conversation} conversation
 *  @param {Turn} turn */
export function siblings(conversation, turn) {
  return conversation.turns.filter((other) => other.parent === turn.parent);
}

/** Returns the turns of the branch that is shown.
 *  @param {Conversation} conversation */
export function shownTurns(conversation) {
  const turns = new Map(conversation.turns.map((turn) => [turn.id, turn]));
  const shown = [];
  for (let turn = turns.get(conversation.chosen[""]); turn; turn = turns.get(conversation.chosen[turn.id])) {
    shown.push(turn);
  }
  return shown;
}

/** Returns a turn, and the second model's where there is one.
 *  @param {Turn} turn */
export const columnsOf = (turn) => (turn.second ? [turn, turn.second] : [turn]);

/** Makes a turn one that was not answered yet.
 *  @param {Turn} turn */
export function reset(turn) {
  const { id, parent, role, model, tries, second } = turn;
  Object.assign(turn, newTurn(parent, { id, role, model, tries: (tries ?? 0) + 1, second }));
}

/** Takes what another tab wrote into the same conversation since: its title, its models, its settings
 *  and each turn as they were written last. Returns the ids of the turns that it took.
 *  @param {Conversation} conversation
 *  @param {Conversation} other */
export function merge(conversation, other) {
  if ((other.changed ?? 0) > (conversation.changed ?? 0)) {
    const { title, model, second, settings, changed } = other;
    Object.assign(conversation, { title, model, second, settings, changed });
  }
  const taken = [];
  const own = new Map(conversation.turns.map((turn) => [turn.id, turn]));
  const writtenMs = (/** @type {Turn} */ turn) => Math.max(...columnsOf(turn).map(({ changed }) => changed ?? 0));
  for (const turn of other.turns) {
    const here = own.get(turn.id);
    if (here && writtenMs(here) >= writtenMs(turn)) continue;
    // Here nothing streams into what another tab writes.
    for (const column of columnsOf(turn)) if (column.state === "running") column.state = "stopped";
    if (here) Object.assign(here, turn);
    else conversation.turns.push(turn);
    conversation.chosen[turn.parent] ??= turn.id;
    taken.push(turn.id);
  }
  return taken;
}

/** Returns the size of the files in a conversation.
 *  @param {Conversation} conversation */
export const filesBytes = ({ turns }) =>
  turns.flatMap(({ files }) => files).reduce((sum, { url }) => sum + url.length, 0);

/** @param {Turn} turn */
function titleOf(turn) {
  const line = turn.text.trim().split("\n")[0] || turn.files.map((file) => file.name).join(", ");
  const characters = [...line];
  return characters.length > 60 ? `${characters.slice(0, 57).join("").trimEnd()}…` : line;
}

/** Returns the messages of a request. What broke is left out together with its question: it is not
 *  part of what is asked next.
 *  @param {Turn[]} turns
 *  @param {string} system */
export function messagesOf(turns, system) {
  /** @type {any[]} */
  const messages = system.trim() ? [{ role: "system", content: system.trim() }] : [];
  turns.forEach((turn, place) => {
    const next = turns[place + 1];
    if (turn.role === "user" && (!next || isUsable(next))) {
      messages.push({ role: "user", content: contentOf(turn) });
    } else if (turn.role === "assistant" && isUsable(turn)) {
      messages.push(...answered(turn));
    }
  });
  return messages;
}

/** @param {Turn} turn */
function isUsable(turn) {
  return turn.role === "assistant" && !turn.error && Boolean(turn.text || turn.calls.length);
}

/** @param {Turn} turn */
function contentOf(turn) {
  if (!turn.files.length) return turn.text;
  const parts = turn.files.map(partOf);
  return turn.text ? [...parts, { type: "text", text: turn.text }] : parts;
}

/** @param {Attachment} file
 *  @returns {any} */
function partOf({ kind, name, url }) {
  if (kind === "image") return { type: "image_url", image_url: { url } };
  if (kind === "video") return { type: "video_url", video_url: { url } };
  const format = /** @type {string} */ (name.split(".").pop()).toLowerCase();
  return { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format } };
}

/** @param {Turn} turn */
function answered({ text, calls }) {
  if (!calls.length) return [{ role: "assistant", content: text }];
  const asked = calls.map((call) => ({
    id: call.id,
    type: "function",
    function: { name: call.name, arguments: call.arguments },
  }));
  return [
    { role: "assistant", content: text || null, tool_calls: asked },
    ...calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: call.result ?? "" })),
  ];
}

/** Returns the body of a request, without what is particular to a stream.
 *  @param {string} model
 *  @param {Settings} settings
 *  @param {Turn[]} turns
 *  @returns {Record<string, any>} */
export function bodyOf(model, settings, turns) {
  const { temperature, top_p, max_tokens, seed, reasoning_effort } = settings;
  const numbers = { temperature, top_p, max_tokens, seed };
  const set = Object.entries(numbers).filter(([, value]) => value !== null);
  const schema = settings.schema.trim();
  return {
    model,
    messages: messagesOf(turns, settings.system),
    ...Object.fromEntries(set),
    ...(reasoning_effort && { reasoning_effort }),
    ...(settings.tools.trim() && { tools: JSON.parse(settings.tools) }),
    ...(schema && {
      response_format: { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) } },
    }),
  };
}

/** Returns a conversation's shown branch as Markdown.
 *  @param {Conversation} conversation */
export function asMarkdown(conversation) {
  const parts = [`# ${conversation.title || "Conversation"}`];
  if (conversation.settings.system.trim()) parts.push("## System", conversation.settings.system.trim());
  for (const turn of shownTurns(conversation)) {
    parts.push(turn.role === "user" ? "## You" : `## ${turn.model}`);
    parts.push(...turn.files.map((file) => `*Attached: ${file.name}*`));
    parts.push(...saidIn(turn));
    if (turn.second) parts.push(`## ${turn.second.model}`, ...saidIn(turn.second));
  }
  return `${parts.join("\n\n")}\n`;
}

/** @param {Turn} turn */
function saidIn(turn) {
  const parts = [];
  if (turn.thinking) {
    parts.push(`<details><summary>Thoughts</summary>\n\n${turn.thinking.trim()}\n\n</details>`);
  }
  if (turn.text) parts.push(turn.text.trim());
  for (const call of turn.calls) {
    parts.push(`Call of \`${call.name}\`:\n\n\`\`\`json\n${call.arguments}\n\`\`\``);
    if (call.result) parts.push(`Its result:\n\n\`\`\`\n${call.result}\n\`\`\``);
  }
  if (turn.error) parts.push(`*${turn.error.message} (${turn.error.code})*`);
  return parts;
}

/** Returns a whole conversation with all its branches.
 *  @param {Conversation} conversation */
export function asJson(conversation) {
  return `${JSON.stringify({ format: "lmx-conversation-1", ...conversation }, null, 2)}\n`;
}
