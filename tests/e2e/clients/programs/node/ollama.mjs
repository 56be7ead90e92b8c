// Ollama's library for JavaScript against lmx: prints one JSON object, what each of its ways gave.
import { Ollama } from "ollama";

const [host, apiKey, call] = process.argv.slice(2);
const client = new Ollama({ host, headers: { Authorization: `Bearer ${apiKey}` } });
const model = "scripted";
const says = (content) => [{ role: "user", content }];
const found = {};

found.whole = (await client.chat({ model, messages: says("Hello") })).message.content;

found.streamed = "";
for await (const part of await client.chat({ model, messages: says("Hello"), stream: true })) {
  found.streamed += part.message.content;
}

found.generated = (await client.generate({ model, prompt: "Hello" })).response;

const parameters = { type: "object", properties: { city: { type: "string" } } };
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
const named = (calls) => calls.map((one) => [one.function.name, one.function.arguments]);
const called = await client.chat({ model, messages: says(call), tools });
found.called = named(called.message.tool_calls);
found.calledStreamed = [];
for await (const part of await client.chat({ model, messages: says(call), tools, stream: true })) {
  found.calledStreamed.push(...named(part.message.tool_calls ?? []));
}

const vectors = await client.embed({ model: "minilm", input: ["a", "b"] });
found.dimensions = vectors.embeddings.map((vector) => vector.length);
found.models = (await client.list()).models.map((one) => one.name);
found.running = (await client.ps()).models.map((one) => one.name);
found.capabilities = (await client.show({ model })).capabilities;

try {
  await client.chat({ model: "none", messages: says("Hello") });
} catch (error) {
  found.refused = { status: error.status_code, error: error.error };
}
console.log(JSON.stringify(found));
