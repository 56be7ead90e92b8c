// Anthropic's SDK for TypeScript against lmx: prints one JSON object, what each of its ways gave.
import Anthropic, {
  APIError,
  AuthenticationError,
  BadRequestError,
  NotFoundError,
} from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";

const [baseURL, apiKey, scripts] = process.argv.slice(2);
const { calls, answers, rain, fails } = JSON.parse(scripts);
const client = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
const says = (content) => [{ role: "user", content }];
const hello = { model: "scripted", max_tokens: 200, messages: says("Hello") };
const found = {};

async function failure(kind, ask) {
  try {
    await ask();
  } catch (error) {
    if (!(error instanceof kind)) throw error;
    return [error.status ?? null, error.error?.error?.type ?? null];
  }
  throw new Error(`no ${kind.name}`);
}

const whole = await client.messages.create(hello);
found.whole = whole.content[0].text;
found.requestId = Boolean(whole._request_id);

const helper = client.messages.stream(hello);
found.streamed = "";
helper.on("text", (delta) => (found.streamed += delta));
const final = await helper.finalMessage();
found.same = JSON.stringify(final.content[0].text) === JSON.stringify(whole.content[0].text);
found.stop = [final.stop_reason, final.usage.output_tokens === whole.usage.output_tokens];

found.events = [];
for await (const event of await client.messages.create({ ...hello, stream: true })) {
  if (found.events.at(-1) !== event.type) found.events.push(event.type);
}

const asked = [];
found.tools = {};
const weather = betaTool({
  name: "Weather",
  description: "The weather of a city",
  inputSchema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  run: async (input) => {
    asked.push(input);
    return rain;
  },
});
const looped = await client.beta.messages.toolRunner({
  model: "scripted", max_tokens: 200, messages: says(calls), tools: [weather],
});
found.tools = { asked, said: looped.content.map((block) => block.text).join("") };

const parsed = await client.messages.parse({
  model: "scripted",
  max_tokens: 100,
  messages: says(answers),
  output_config: { format: zodOutputFormat(z.object({ city: z.string() })) },
});
found.parsed = parsed.parsed_output;

const counted = await client.messages.countTokens({ model: "scripted", messages: says("Hello") });
found.counted = counted.input_tokens > 0;

found.models = [];
for await (const model of client.models.list()) found.models.push(model.id);

const stranger = client.withOptions({ apiKey: "wrong" });
found.errors = [
  await failure(AuthenticationError, () => stranger.messages.create(hello)),
  await failure(BadRequestError, () => client.messages.create({ ...hello, temperature: 9 })),
  await failure(NotFoundError, () => client.messages.create({ ...hello, model: "none" })),
];
found.broken = await failure(APIError, () =>
  client.messages.stream({ ...hello, messages: says(fails) }).finalMessage());
const patient = client.withOptions({ maxRetries: 4 });
found.retried = (await patient.messages.create({ ...hello, model: "tripping" })).content[0].text;
console.log(JSON.stringify(found));
