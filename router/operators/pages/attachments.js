// The files that go with the next message: images, sounds and videos, as far as the chosen model
// takes them. They leave this page in the request alone, in base64.

const at = (id) => document.getElementById(id);
const MARK = ";base64,";

/** What is sent of a file of each kind. `data` is its content as a data URL. */
const PARTS = {
  image: (data) => ({ type: "image_url", image_url: { url: data } }),
  audio: (data, name) => ({
    type: "input_audio",
    input_audio: { data: data.slice(data.indexOf(MARK) + MARK.length), format: ending(name) },
  }),
  video: (data) => ({ type: "video_url", video_url: { url: data } }),
};
const NOUNS = { image: "images", audio: "sounds", video: "videos" };

let kinds = [];
let attached = [];

const ending = (name) => name.split(".").pop().toLowerCase();

/** Files whose type not every browser knows. */
const ENDINGS = {
  image: ["avif", "heic", "heif", "tif", "tiff", "webp"],
  audio: ["aac", "flac", "m4a", "oga", "ogg", "opus"],
  video: ["avi", "mkv", "mov", "webm"],
};

function kindOf(file) {
  const told = file.type.split("/")[0];
  if (told in PARTS) return told;
  return Object.keys(ENDINGS).find((kind) => ENDINGS[kind].includes(ending(file.name)));
}

function size(bytes) {
  return bytes < 2 ** 20 ? `${Math.ceil(bytes / 2 ** 10)} KiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

/** Says why something is not attached; nothing for an empty text. */
export function refuse(text) {
  at("refused").textContent = text;
  at("refused").hidden = !text;
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} could not be read.`));
    reader.readAsDataURL(file);
  });
}

function add(found) {
  const taken = ["text", ...kinds.map((kind) => NOUNS[kind])].join(", ");
  const wrong = found.filter((file) => !kinds.includes(kindOf(file)));
  refuse(wrong.map((file) => `${file.name} is left out: this model takes ${taken} only.`).join(" "));
  attached.push(...found.filter((file) => kinds.includes(kindOf(file))));
  draw();
}

function draw() {
  at("files").replaceChildren(
    ...attached.map((file) => {
      const chip = document.createElement("li");
      const remove = document.createElement("button");
      remove.type = "button";
      remove.textContent = "Remove";
      remove.setAttribute("aria-label", `Remove ${file.name}`);
      remove.addEventListener("click", () => {
        attached = attached.filter((other) => other !== file);
        draw();
      });
      chip.append(named(file), remove);
      return chip;
    }),
  );
}

/** Returns what people read of a file. */
export function named(file) {
  return `${file.name} (${size(file.size)})`;
}

/** Offers to attach what a model with these modalities takes; nothing for one of text alone. */
export function offer(modalities) {
  kinds = Object.keys(PARTS).filter((kind) => modalities.includes(kind));
  at("attach").hidden = kinds.length === 0;
  at("picker").accept = kinds.map((kind) => `${kind}/*`).join(",");
}

/** Returns the files that are attached. */
export function files() {
  return [...attached];
}

/** Attaches no file any more. */
export function clear() {
  attached = [];
  refuse("");
  draw();
}

/** Returns the parts of a message that files become. Throws an Error for one that can't be read. */
export async function partsOf(found) {
  return Promise.all(
    found.map(async (file) => PARTS[kindOf(file)](await dataUrl(file), file.name)),
  );
}

/** Returns a part of a message without the content of its file, for people. */
export function withoutContent(part) {
  const shown = structuredClone(part);
  if (shown.input_audio) shown.input_audio.data = "...";
  for (const place of [shown.image_url, shown.video_url]) {
    if (place) place.url = place.url.slice(0, place.url.indexOf(MARK) + MARK.length) + "...";
  }
  return shown;
}

at("attach").addEventListener("click", () => at("picker").click());
at("picker").addEventListener("change", () => {
  add([...at("picker").files]);
  at("picker").value = ""; // The same file may be chosen again.
});
at("say").addEventListener("paste", (event) => {
  const pasted = [...event.clipboardData.files];
  if (!pasted.length) return;
  event.preventDefault();
  add(pasted);
});
at("form").addEventListener("dragover", (event) => event.preventDefault());
at("form").addEventListener("drop", (event) => {
  event.preventDefault();
  add([...event.dataTransfer.files]);
});
