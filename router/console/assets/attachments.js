// @ts-check
// The files that go with the next message, as far as the chosen model takes them. They leave this
// page in the request alone.

import { at, h, iconButton } from "./dom.js";

/** @typedef {import("./conversation.js").Attachment} Attachment */

const NOUNS = /** @type {Record<string, string>} */ ({ image: "images", audio: "sounds", video: "videos" });
const MOST_BYTES = 64 * 2 ** 20;

/** Files whose type not every browser knows. */
const ENDINGS = /** @type {Record<string, string[]>} */ ({
  image: ["avif", "heic", "heif", "tif", "tiff", "webp"],
  audio: ["aac", "flac", "m4a", "oga", "ogg", "opus"],
  video: ["avi", "mkv", "mov", "webm"],
});

/** @type {string[]} */
let kinds = [];
/** @type {Attachment[]} */
let attached = [];
let reading = 0;
/** Counts the messages: a file that is read late belongs to none after it. */
let cleared = 0;

/** @param {File} file */
function kindOf(file) {
  const major = file.type.split("/")[0];
  if (major in NOUNS) return major;
  const ending = /** @type {string} */ (file.name.split(".").pop()).toLowerCase();
  return Object.keys(ENDINGS).find((kind) => ENDINGS[kind].includes(ending)) ?? "";
}

/** Returns a size for people.
 *  @param {number} bytes */
export function sizeOf(bytes) {
  return bytes < 2 ** 20 ? `${Math.ceil(bytes / 2 ** 10)} KiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

/** Says why something is not sent; nothing for an empty text.
 *  @param {string} text */
export function refuse(text) {
  at("refused").textContent = text;
  at("refused").hidden = !text;
}

/** @param {File} file
 *  @returns {Promise<string>} */
function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(new Error(`${file.name} could not be read.`));
    reader.readAsDataURL(file);
  });
}

/** @param {File[]} found */
async function add(found) {
  const taken = ["text", ...kinds.map((kind) => NOUNS[kind])].join(", ");
  const refused = [];
  const before = cleared;
  for (const file of found) {
    const kind = kindOf(file);
    if (!kinds.includes(kind)) refused.push(`${file.name} is left out: this model takes ${taken} only.`);
    else if (file.size > MOST_BYTES) refused.push(`${file.name} is left out: it has more than ${sizeOf(MOST_BYTES)}.`);
    else {
      reading += 1;
      try {
        const url = await dataUrl(file);
        if (before !== cleared) return;
        attached.push({ name: file.name, size: file.size, kind, url });
      } catch (/** @type {any} */ error) {
        refused.push(error.message);
      } finally {
        reading -= 1;
      }
    }
  }
  refuse(refused.join(" "));
  draw();
}

function draw() {
  at("files").replaceChildren(
    ...attached.map((file) =>
      h(
        "li",
        {},
        file.kind === "image" && h("img", { src: file.url, alt: "" }),
        h("span", { class: "name" }, `${file.name} (${sizeOf(file.size)})`),
        iconButton("close", `Remove ${file.name}`, () => {
          attached = attached.filter((other) => other !== file);
          draw();
          at("say").focus();
        }),
      ),
    ),
  );
  at("files").dispatchEvent(new Event("change"));
}

/** Offers to attach what a model with these modalities takes; nothing for one of text alone.
 *  @param {string[]} modalities */
export function offer(modalities) {
  kinds = Object.keys(NOUNS).filter((kind) => modalities.includes(kind));
  at("attach").hidden = kinds.length === 0;
  at("picker").accept = kinds.map((kind) => `${kind}/*`).join(",");
}

/** Returns the files that are attached. */
export const files = () => [...attached];

/** Returns whether a file is read that will be attached. */
export const isReading = () => reading > 0;

/** Attaches no file any more. */
export function clear() {
  cleared += 1;
  attached = [];
  refuse("");
  draw();
}

/** Begins to listen to the button, to what is pasted and to what is dropped anywhere on the page. */
export function listen() {
  at("attach").addEventListener("click", () => at("picker").click());
  at("picker").addEventListener("change", () => {
    add([...at("picker").files]);
    at("picker").value = ""; // The same file may be chosen again.
  });
  at("say").addEventListener("paste", (/** @type {ClipboardEvent} */ event) => {
    const pasted = [...(event.clipboardData?.files ?? [])];
    if (!pasted.length) return;
    event.preventDefault();
    add(pasted);
  });
  const drags = (/** @type {boolean} */ is) => document.body.classList.toggle("drags", is);
  document.addEventListener("dragover", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    drags(true);
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget || drags(false));
  document.addEventListener("drop", (event) => {
    drags(false);
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    add([...event.dataTransfer.files]);
  });
}
