// The Node SDKs' own calls for files, batches and conversations: prints one JSON object, what each gave.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI, { APIError, NotFoundError, toFile } from "openai";

const [baseURL, apiKey, scripts] = process.argv.slice(2);
const { slow } = JSON.parse(scripts);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const claude = new Anthropic({ baseURL: baseURL.replace(/\/v1\/?$/, ""), apiKey, maxRetries: 0 });
const model = "scripted";
const endpoint = "/v1/chat/completions";
const found = {};

const pause = () => new Promise((resolve) => setTimeout(resolve, 100));
const all = async (pages) => {
  const ids = [];
  for await (const one of pages) ids.push(one.id);
  return ids;
};

// Files.
const note = await client.files.create({
  file: await toFile(Buffer.from("A note.\n"), "note.txt"),
  purpose: "user_data",
  expires_after: { anchor: "created_at", seconds: 3600 },
});
const other = await client.files.create({ file: new File(["more"], "b.txt"), purpose: "assistants" });
found.file = [note.object, note.filename, note.bytes, note.purpose, note.expires_at - note.created_at];
found.same = JSON.stringify(await client.files.retrieve(note.id)) === JSON.stringify(note);
found.content = await (await client.files.content(note.id)).text();
found.processed = (await client.files.waitForProcessing(note.id)).status;
const mine = new Set([note.id, other.id]);
const listed = async (query) => (await all(client.files.list(query))).filter((id) => mine.has(id));
found.listed = [
  JSON.stringify(await listed({ limit: 1 })) === JSON.stringify([other.id, note.id]),
  JSON.stringify(await listed({ limit: 1, order: "asc" })) === JSON.stringify([note.id, other.id]),
  JSON.stringify(await listed({ purpose: "assistants" })) === JSON.stringify([other.id]),
];

// In requests.
const asked = await client.responses.create({
  model,
  input: [{ role: "user", content: [{ type: "input_file", file_id: note.id }] }],
});
found.named = asked.output_text;
const chat = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: [{ type: "file", file: { file_id: note.id } }] }],
});
found.namedInChat = chat.choices[0].message.content;
const said = await claude.beta.messages.create({
  model,
  max_tokens: 50,
  betas: ["files-api-2025-04-14"],
  messages: [{
    role: "user",
    content: [{ type: "document", source: { type: "file", file_id: note.id } }],
  }],
});
found.namedInMessages = said.content[0].text;

// Batches.
const line = (custom_id, content) => JSON.stringify({
  custom_id, method: "POST", url: endpoint, body: { model, messages: [{ role: "user", content }] },
});
const begin = async (...lines) => {
  const file = await client.files.create({
    file: await toFile(Buffer.from(lines.join("\n")), "in.jsonl"), purpose: "batch",
  });
  return client.batches.create({
    input_file_id: file.id, endpoint, completion_window: "24h", metadata: { from: "node" },
  });
};
const ended = async (batch) => {
  while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
    await pause();
    batch = await client.batches.retrieve(batch.id);
  }
  return batch;
};
const first = await ended(await begin(line("one", "Hello"), line("two", "Hello")));
found.batch = [first.status, first.request_counts, first.metadata, first.error_file_id];
const output = await (await client.files.content(first.output_file_id)).text();
found.output = output.trim().split("\n").map((text) => {
  const answer = JSON.parse(text);
  return [answer.custom_id, answer.response.body.choices[0].message.content];
});
const wrong = await ended(await begin("no json", line("a", "b"), line("a", "b")));
found.wrong = [wrong.status, wrong.errors.data.map((error) => [error.line, error.code])];
const long = await begin(...["1", "2", "3"].map((id) => line(id, slow)));
const cancelling = await client.batches.cancel(long.id);
found.cancelled = [cancelling.status, (await ended(cancelling)).status];
const batches = await all(client.batches.list({ limit: 1 }));
found.paged = [long.id, wrong.id, first.id].every((id, place) => batches[place] === id);

// Anthropic's.
let message = await claude.messages.batches.create({
  requests: [{
    custom_id: "one",
    params: { model, max_tokens: 50, messages: [{ role: "user", content: "Hello" }] },
  }],
});
while (message.processing_status !== "ended") {
  await pause();
  message = await claude.messages.batches.retrieve(message.id);
}
found.messageBatch = [message.request_counts.succeeded];
for await (const one of await claude.messages.batches.results(message.id)) {
  found.messageBatch.push(one.custom_id, one.result.message.content[0].text);
}
found.messageBatch.push((await all(claude.messages.batches.list({ limit: 1 })))[0] === message.id);
found.messageBatch.push((await claude.messages.batches.delete(message.id)).type);

// Conversations.
const conversation = await client.conversations.create({
  metadata: { topic: "rain" },
  items: [{ type: "message", role: "user", content: "It rains." }],
});
const reply = await client.responses.create({
  model,
  conversation: conversation.id,
  input: [{ role: "user", content: [{ type: "input_file", file_id: note.id }] }],
});
found.conversation = [conversation.object, reply.output_text, reply.conversation.id === conversation.id];
const added = await client.conversations.items.create(conversation.id, {
  items: [{ type: "message", role: "user", content: "And now?" }],
});
const items = [];
for await (const item of client.conversations.items.list(conversation.id, { limit: 2, order: "asc" })) {
  items.push([item.type, item.role, item.content[0].type]);
}
found.items = items;
const item = await client.conversations.items.retrieve(added.data[0].id, { conversation_id: conversation.id });
found.item = item.content[0].text;
await client.conversations.items.delete(item.id, { conversation_id: conversation.id });
const renamed = await client.conversations.update(conversation.id, { metadata: { topic: "sun" } });
found.metadata = [renamed.metadata, (await client.conversations.retrieve(conversation.id)).metadata];

// What is gone.
found.deleted = [(await client.files.delete(note.id)).deleted];
found.errors = [];
for (const ask of [
  () => client.files.retrieve(note.id),
  () => client.responses.create({ model, conversation: conversation.id, input: "Hello" }),
  () => client.batches.retrieve("batch_000000000000000000000000"),
  () => client.batches.create({ input_file_id: note.id, endpoint, completion_window: "24h" }),
  () => client.batches.cancel(first.id),
]) {
  try {
    await ask();
    found.errors.push("none");
  } catch (error) {
    if (!(error instanceof APIError)) throw error;
    found.errors.push([error instanceof NotFoundError, error.status, error.param ?? null]);
  }
}
found.deleted.push((await client.conversations.delete(conversation.id)).deleted);
await client.files.delete(other.id);
console.log(JSON.stringify(found));
