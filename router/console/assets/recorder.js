// @ts-check
// Speaks into the box: what the microphone records is sent to a transcription model of this server,
// and its text is put where one types.

import { ask } from "./api.js";
import { refuse } from "./attachments.js";
import { announce, at, icon } from "./dom.js";

const LONGEST_MS = 10 * 60_000;
const NO_MICROPHONE =
  "The browser gives no microphone to a page without TLS: open the console by https, or as localhost on the server's own machine.";

let model = "";
/** @type {MediaRecorder | null} */
let recorder = null;
let starting = false;

/** Offers to record where a model transcribes.
 *  @param {string} id The model; empty for none. */
export function offerRecording(id) {
  model = id;
  at("record").hidden = !id && !recorder;
}

/** Begins to listen to the button. */
export function listen() {
  at("record").append(icon("microphone"));
  at("record").addEventListener("click", () => (recorder ? recorder.stop() : record()));
}

async function record() {
  if (starting) return;
  refuse("");
  if (!navigator.mediaDevices || !window.MediaRecorder) return refuse(NO_MICROPHONE);
  let stream;
  starting = true;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  } catch (/** @type {any} */ error) {
    return refuse(`The microphone can't be used: ${error.message}.`);
  } finally {
    starting = false;
  }
  // Meanwhile it may be unloaded: it is loaded again then.
  const spokenTo = model;
  /** @type {Blob[]} */
  const pieces = [];
  const own = (recorder = new MediaRecorder(stream));
  const type = own.mimeType;
  own.addEventListener("dataavailable", ({ data }) => pieces.push(data));
  const ended = new Promise((resolve) => own.addEventListener("stop", resolve, { once: true }));
  const end = setTimeout(() => own.stop(), LONGEST_MS);
  own.start();
  show("Stop recording", true);
  await ended;
  clearTimeout(end);
  for (const track of stream.getTracks()) track.stop();
  recorder = null;
  show("Speak your message", false);
  offerRecording(model);
  await transcribe(new Blob(pieces, { type }), spokenTo);
}

/** @param {Blob} sound
 *  @param {string} id The model. */
async function transcribe(sound, id) {
  const ending = sound.type.includes("mp4") ? "mp4" : sound.type.includes("ogg") ? "ogg" : "webm";
  const form = new FormData();
  form.append("model", id);
  form.append("file", sound, `speech.${ending}`);
  at("record").setAttribute("aria-busy", "true");
  try {
    const { text } = await (await ask("v1/audio/transcriptions", { method: "POST", body: form })).json();
    const box = at("say");
    box.value = [box.value.trimEnd(), text.trim()].filter(Boolean).join(" ");
    box.dispatchEvent(new Event("input"));
    box.focus();
  } catch (/** @type {any} */ error) {
    refuse(error.message);
  } finally {
    at("record").removeAttribute("aria-busy");
  }
}

/** @param {string} label
 *  @param {boolean} records */
function show(label, records) {
  at("record").setAttribute("aria-label", label);
  at("record").setAttribute("aria-pressed", String(records));
  announce(records ? "Recording" : "The recording has ended");
}
