// What programs do with the AI SDK, once for each of its providers. It goes behind the block of
// docs/clients.md, which makes `lmx` and `lmxAsAnthropic`. The arguments are the address of the API
// and the plans. Prints one JSON object: what came of it, by provider.
import { createOpenAI } from '@ai-sdk/openai'
import { generateText, isStepCount, Output, streamText, tool } from 'ai'
import { readFileSync, writeFileSync } from 'node:fs'
import { z } from 'zod'

const [baseURL, given] = process.argv.slice(2)
const plans = JSON.parse(given)
const openai = createOpenAI({ baseURL, apiKey: process.env.LMX_API_KEY })
const picture = readFileSync('grey.png')

async function cases(name, model) {
  const write = tool({
    description: 'Writes a file',
    inputSchema: z.object({ path: z.string(), text: z.string() }),
    execute: ({ path, text }) => {
      writeFileSync(path, text)
      return 'written'
    },
  })
  const asked = { model, prompt: plans.loop, tools: { write }, stopWhen: isStepCount(5), maxRetries: 0 }
  const whole = await generateText(asked)
  const written = readFileSync('hello.txt', 'utf8')
  const streamed = streamText(asked)
  const parts = []
  for await (const part of streamed.fullStream) parts.push(part)
  const form = await generateText({
    model,
    prompt: plans.form[name] ?? plans.form.other,
    output: Output.object({ schema: z.object({ city: z.string() }) }),
    maxRetries: 0,
  })
  const content = [
    { type: 'text', text: plans.picture },
    { type: 'file', mediaType: 'image/png', data: picture },
  ]
  const seen = await generateText({ model, messages: [{ role: 'user', content }], maxRetries: 0 })
  const stop = new AbortController()
  const slow = streamText({ model, prompt: plans.slow, abortSignal: stop.signal, maxRetries: 0 })
  let ended = ''
  for await (const part of slow.fullStream) {
    if (part.type === 'text-delta') stop.abort()
    ended = part.type
  }
  const failed = await generateText({
    model: { lmx, openai, anthropic: lmxAsAnthropic }[name]('nobody'),
    prompt: 'hi',
    maxRetries: 0,
  }).catch((error) => [error.statusCode, error.message])
  return {
    whole: whole.text,
    steps: whole.steps.length,
    written,
    thought: whole.steps.at(-1).reasoningText ?? null,
    streamed: await streamed.text,
    kinds: [...new Set(parts.map((part) => part.type))],
    form: form.output,
    seen: seen.text,
    ended,
    failed,
  }
}

const models = { lmx: lmx('agent'), openai: openai('agent'), anthropic: lmxAsAnthropic('agent') }
const found = {}
for (const [name, model] of Object.entries(models)) found[name] = await cases(name, model)
console.log(JSON.stringify(found))
