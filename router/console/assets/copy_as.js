// @ts-check
// The same request in other languages, for people: the content of files is left out.

const KEY_VARIABLE = "LMX_API_KEY";

/** Returns a body with dots in place of what files hold.
 *  @param {any} value
 *  @returns {any} */
function withoutFiles(value) {
  if (typeof value === "string") return value.replace(/^(data:[^,]{1,100};base64,).+$/s, "$1...");
  if (Array.isArray(value)) return value.map(withoutFiles);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, held]) => [
      name,
      name === "input_audio" ? { ...held, data: "..." } : withoutFiles(held),
    ]),
  );
}

/** @param {string} text */
const shellQuoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** @param {any} value
 *  @returns {string} */
function python(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, held]) => `${JSON.stringify(name)}: ${python(held)}`).join(", ")}}`;
}

/** @param {string} address
 *  @param {Record<string, any>} body
 *  @param {boolean} keyed Whether the server asks for a key. */
export function curlOf(address, body, keyed) {
  const header = keyed ? ` \\\n  -H "Authorization: Bearer $${KEY_VARIABLE}"` : "";
  const sent = JSON.stringify(withoutFiles(body), null, 2);
  return (
    `curl -N ${shellQuoted(address)} \\\n  -H 'Content-Type: application/json'${header}` +
    ` \\\n  -d ${shellQuoted(sent)}\n`
  );
}

/** @param {string} base The address of OpenAI's API.
 *  @param {Record<string, any>} body
 *  @param {boolean} keyed */
export function asCurl(base, body, keyed) {
  return curlOf(`${base}/chat/completions`, { ...body, stream: true }, keyed);
}

/** @param {string} base
 *  @param {Record<string, any>} body
 *  @param {boolean} keyed */
export function asPython(base, body, keyed) {
  const fields = Object.entries(withoutFiles(body)).map(([name, value]) => `    ${name}=${python(value)},\n`);
  const key = keyed ? `os.environ["${KEY_VARIABLE}"]` : '"unused"';
  return (
    `${keyed ? "import os\n\n" : ""}from openai import OpenAI\n\n` +
    `client = OpenAI(base_url=${JSON.stringify(base)}, api_key=${key})\n` +
    `stream = client.chat.completions.create(\n${fields.join("")}    stream=True,\n)\n` +
    "for chunk in stream:\n    if chunk.choices:\n" +
    '        print(chunk.choices[0].delta.content or "", end="", flush=True)\n'
  );
}

/** @param {string} base
 *  @param {Record<string, any>} body
 *  @param {boolean} keyed */
export function asJavaScript(base, body, keyed) {
  const sent = JSON.stringify({ ...withoutFiles(body), stream: true }, null, 2);
  const key = keyed ? `process.env.${KEY_VARIABLE}` : '"unused"';
  return (
    `import OpenAI from "openai";\n\n` +
    `const client = new OpenAI({ baseURL: ${JSON.stringify(base)}, apiKey: ${key} });\n` +
    `const stream = await client.chat.completions.create(${sent});\n` +
    "for await (const chunk of stream) {\n" +
    '  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");\n}\n'
  );
}
