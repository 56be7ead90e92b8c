// Vercel's AI SDK against lmx, with the providers of all four API families. Each holds what it gets
// against schemas of its own, and refuses an answer, or a chunk, that does not fit. Prints one JSON
// object: what each way of each provider gave.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { createOllama } from "ollama-ai-provider-v2";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const [server, apiKey, texts] = process.argv.slice(2);
const { calls, thinks } = JSON.parse(texts);
const baseURL = `${server}/v1`;
const openai = createOpenAI({ baseURL, apiKey });
const headers = { Authorization: `Bearer ${apiKey}` };
const compatible = createOpenAICompatible({
  name: "lmx", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true,
});
const providers = {
  anthropic: createAnthropic({ baseURL, apiKey }),
  chat: (id) => openai.chat(id),
  compatible,
  completions: (id) => compatible.completionModel(id),
  ollama: createOllama({ baseURL: `${server}/api`, headers }),
  responses: (id) => openai.responses(id),
};
const weather = tool({
  description: "The weather of a city",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `It rains in ${city}.`,
});
const schema = z.object({ n: z.number().int(), name: z.string() });

async function streamed(made) {
  const errors = [];
  for await (const part of made.fullStream) if (part.type === "error") errors.push(part.error);
  if (errors.length > 0) throw errors[0];
  return made;
}

async function shown(result) {
  const usage = await result.totalUsage;
  const steps = await result.steps;
  return {
    text: await result.text,
    thoughts: steps[0].reasoningText ?? "",
    results: steps[0].toolResults.map((one) => one.output),
    ended: steps[0].finishReason,
    counted: usage.inputTokens > 0 && usage.outputTokens > 0,
  };
}

const asks = {
  text: { prompt: "Hello" },
  cut: {
    prompt: "Hello",
    maxOutputTokens: 3,
    // Its provider does not pass the other one on.
    providerOptions: { ollama: { options: { num_predict: 3 } } },
  },
  thinks: { prompt: thinks },
  tools: { prompt: calls, tools: { Weather: weather }, stopWhen: stepCountIs(2) },
  form: { prompt: "number 5", output: Output.object({ schema }), id: "good" },
};

const found = {};
for (const [name, provider] of Object.entries(providers)) {
  found[name] = {};
  for (const [what, { id = "scripted", ...ask }] of Object.entries(asks)) {
    if (name === "completions" && what !== "text" && what !== "cut") continue;
    const options = { model: provider(id), maxRetries: 0, ...ask };
    const ways = {
      whole: () => generateText(options),
      streamed: () => streamed(streamText({ ...options, onError: () => {} })),
    };
    for (const [way, run] of Object.entries(ways)) {
      try {
        found[name][`${what} ${way}`] = await shown(await run());
      } catch (error) {
        const fault = error.cause?.cause?.issues ?? error.cause?.message ?? error.responseBody;
        found[name][`${what} ${way}`] = `${error}: ${JSON.stringify(fault)}`;
      }
    }
  }
}
console.log(JSON.stringify(found));
