// OpenAI's Node SDK on lmx's Responses API: prints one JSON object, what each of its ways gave.
import OpenAI, { BadRequestError, NotFoundError } from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [baseURL, apiKey, scripts] = process.argv.slice(2);
const { calls, answers, rain } = JSON.parse(scripts);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const model = "scripted";
const found = {};

const whole = await client.responses.create({ model, input: "Hello" });
found.whole = whole.output_text;

found.streamed = "";
let last;
for await (const event of await client.responses.create({ model, input: "Hello", stream: true })) {
  if (event.type === "response.output_text.delta") found.streamed += event.delta;
  last = event;
}
found.last = [last.type, last.response.output[0].content[0].text];

const tools = [{
  type: "function", name: "Weather", strict: false,
  parameters: { type: "object", properties: { city: { type: "string" } } },
}];
const helper = client.responses.stream({ model, input: calls, tools });
const arguments_ = [];
helper.on("response.function_call_arguments.delta", (event) => arguments_.push(event.delta));
const called = await helper.finalResponse();
found.call = [called.output[0].name, called.output[0].arguments, arguments_.join("")];
const { call_id } = called.output[0];
const after = await client.responses.create({
  model, tools, previous_response_id: called.id,
  input: [{ type: "function_call_output", call_id, output: rain }],
});
found.after = after.output_text;

const City = z.object({ city: z.string() });
const parsed = await client.responses.parse({
  model, input: answers, text: { format: zodTextFormat(City, "city") },
});
found.parsed = parsed.output_parsed;

// Some clients send what the server keeps as references.
const referring = await client.responses.create({
  model,
  input: [
    { role: "user", content: "Hello" },
    { type: "item_reference", id: whole.output[0].id },
    { role: "user", content: rain },
  ],
});
found.referring = referring.output_text;

const first = [];
let begun;
for await (const event of await client.responses.create({
  model, input: "Hello", background: true, stream: true,
})) {
  begun ??= event.response;
  first.push(event.sequence_number);
  if (event.type === "response.output_text.delta") break;
}
const rest = [];
for await (const event of await client.responses.retrieve(begun.id, {
  stream: true, starting_after: first.at(-1),
})) {
  rest.push(event.sequence_number);
  last = event;
}
const numbers = [...first, ...rest];
found.followed = [last.response.output_text ?? last.response.output[0].content[0].text,
  numbers.every((number, index) => number === index)];

const items = await client.responses.inputItems.list(after.id, { order: "asc" });
found.items = items.data.map((item) => item.type);
await client.responses.delete(whole.id);
found.errors = [];
for (const [kind, ask] of [
  [NotFoundError, () => client.responses.retrieve(whole.id)],
  [BadRequestError, () => client.responses.create({
    model, input: "Hello", previous_response_id: whole.id,
  })],
]) {
  try {
    await ask();
  } catch (error) {
    if (!(error instanceof kind)) throw error;
    found.errors.push([error.status, error.code]);
  }
}
console.log(JSON.stringify(found));
