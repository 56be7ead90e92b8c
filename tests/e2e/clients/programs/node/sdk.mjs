// The official Node SDK against lmx: prints one JSON object, what each of its ways gave.
import OpenAI, {
  APIConnectionTimeoutError,
  AuthenticationError,
  BadRequestError,
  InternalServerError,
  NotFoundError,
  PermissionDeniedError,
  RateLimitError,
} from "openai";
import { writeFileSync } from "node:fs";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [baseURL, apiKey, scripts] = process.argv.slice(2);
const { calls, answers, rain, refused } = JSON.parse(scripts);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const says = (content) => [{ role: "user", content }];
const hello = { model: "scripted", messages: says("Hello") };
const parameters = { type: "object", properties: { city: { type: "string" } } };

async function failure(kind, ask) {
  try {
    await ask();
  } catch (error) {
    if (!(error instanceof kind)) throw error;
    return { status: error.status, code: error.code, param: error.param };
  }
  throw new Error(`no ${kind.name}`);
}

const found = {};

const whole = await client.chat.completions.create(hello);
found.whole = whole.choices[0].message.content;
found.requestId = Boolean(whole._request_id);

found.streamed = "";
const options = { include_usage: true };
for await (const chunk of await client.chat.completions.create({
  ...hello, stream: true, stream_options: options,
})) {
  found.streamed += chunk.choices[0]?.delta?.content ?? "";
  found.usage = chunk.usage;
}

const helper = client.chat.completions.stream(hello);
found.helped = "";
helper.on("content", (delta) => (found.helped += delta));
found.final = await helper.finalContent();

const parsed = await client.chat.completions.parse({
  model: "scripted",
  messages: says(answers),
  response_format: zodResponseFormat(z.object({ city: z.string() }), "weather"),
});
found.parsed = parsed.choices[0].message.parsed;

for (const stream of [false, true]) {
  const asked = [];
  const runner = client.chat.completions.runTools({
    model: "scripted",
    messages: says(calls),
    stream,
    tools: [
      {
        type: "function",
        function: {
          name: "Weather",
          description: "The weather of a city",
          parameters,
          parse: JSON.parse,
          function: (given) => {
            asked.push(given);
            return rain;
          },
        },
      },
    ],
  });
  const said = await runner.finalContent();
  found[stream ? "toolsStreamed" : "tools"] = { said, asked };
}

const weather = zodFunction({ name: "get_weather", parameters: z.object({ city: z.string() }) });
const named = { type: "function", function: { name: "get_weather" } };
const some = { type: "allowed_tools", allowed_tools: { mode: "required", tools: [named] } };
found.choices = [];
for (const choice of ["auto", "required", named, some, "none"]) {
  const { choices } = await client.chat.completions.parse({
    model: "good",
    messages: says("What is the weather in Paris and in Oslo?"),
    tools: [weather],
    tool_choice: choice,
  });
  const calls = choices[0].message.tool_calls ?? [];
  const cities = calls.map((call) => call.function.parsed_arguments.city);
  found.choices.push([choices[0].finish_reason, ...cities]);
}

const text = await client.completions.create({
  model: "scripted", prompt: ["One", "Two"], max_tokens: 2,
});
found.texts = text.choices.map((choice) => choice.index);
found.textStreamed = "";
for await (const chunk of await client.completions.create({
  model: "scripted", prompt: "One", stream: true,
})) {
  found.textStreamed += chunk.choices[0]?.text ?? "";
}

const vectors = await client.embeddings.create({ model: "minilm", input: ["a", "b"] });
found.dimensions = vectors.data.map((item) => item.embedding.length);

found.models = [];
for await (const model of client.models.list()) found.models.push(model.id);
found.model = (await client.models.retrieve("scripted")).id;

const stranger = client.withOptions({ apiKey: "wrong" });
found.errors = [
  await failure(AuthenticationError, () => stranger.models.list()),
  await failure(PermissionDeniedError, () => client.get("/../admin/models")),
  await failure(BadRequestError, () =>
    client.chat.completions.create({ ...hello, temperature: 9 })),
  await failure(NotFoundError, () =>
    client.chat.completions.create({ ...hello, model: "none" })),
  await failure(InternalServerError, () =>
    client.chat.completions.create({ ...hello, messages: says('{"step_raise_at": 1}') })),
];

const busy = await client.chat.completions.create({
  model: "narrow", stream: true,
  messages: says(JSON.stringify({ tokens: 3900, step_s: 0.05, until: refused })),
});
const chunks = busy[Symbol.asyncIterator]();
await chunks.next();
const narrow = { ...hello, model: "narrow" };
found.errors.push(await failure(RateLimitError, () => client.chat.completions.create(narrow)));
writeFileSync(refused, "");
const retrying = client.withOptions({ maxRetries: 4 });
const [again, rest] = await Promise.all([
  retrying.chat.completions.create(narrow),
  (async () => {
    let last;
    for (let next = await chunks.next(); !next.done; next = await chunks.next()) last = next.value;
    return last;
  })(),
]);
found.retried = again.choices[0].message.content;
found.busy = rest.choices[0].finish_reason;

const tripping = { ...hello, model: "tripping" };
found.errors.push(await failure(InternalServerError, () => client.chat.completions.create(tripping)));
const loaded = await retrying.chat.completions.create(tripping);
found.loaded = loaded.choices[0].message.content;
try {
  await client.chat.completions.create(
    { ...hello, messages: says('{"tokens": 3900, "step_s": 0.05}') }, { timeout: 300 });
} catch (error) {
  found.timedOut = error instanceof APIConnectionTimeoutError;
}

const said = { model: "voice", voice: "alloy", input: "This is a sentence of the text. This is another one of them." };
const sound = await client.audio.speech.create({ ...said, response_format: "wav" });
const bytes = Buffer.from(await sound.arrayBuffer());
found.sound = [sound.headers.get("content-type"), bytes.toString("latin1", 8, 12), bytes.length];
let streamed = 0;
const pcm = await client.audio.speech.create({ ...said, response_format: "pcm", speed: 2 });
for await (const part of pcm.body) streamed += part.length;
found.soundStreamed = streamed;
const sse = await client.audio.speech.create({ ...said, stream_format: "sse" });
const events = (await sse.text()).split("\n\n").filter(Boolean).map((one) => JSON.parse(one.slice(6)));
found.soundEvents = [events[0].type, events.at(-1).type, events.at(-1).usage.output_tokens];
found.errors.push(
  await failure(BadRequestError, () => client.audio.speech.create({ ...said, input: "" })));

console.log(JSON.stringify(found));
