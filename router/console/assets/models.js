// @ts-check
// The models that chat: which there are, which one is chosen, and what it takes. They are requested
// when the page is opened or comes to the front, and after each answer; by the clock only while the
// chosen one is on its way to another state.

import { ApiError, health, listModels } from "./api.js";
import { offer } from "./attachments.js";
import { at, h } from "./dom.js";
import { key } from "./key.js";
import { offerRecording } from "./recorder.js";

const LAST = "lmx-model";
const PASSING = ["queued", "fetching", "starting", "loading", "backoff", "stopping", "draining"];
const LOOK_AGAIN_MS = 2000;
const ONE_ALONE = /** @type {[string, string]} */ (["", "+ model"]);

/** @type {any[]} */
let models = [];
let keyed = false;
let again = 0;
/** @type {() => void} */
let needsKey = () => {};

/** Returns the chosen model as GET /v1/models has it; nothing where there is none.
 *  @returns {any} */
export const chosenModel = () => models.find((model) => model.id === at("model").value);

/** Returns whether the server asks for a key. */
export const asksForKey = () => keyed || Boolean(key());

/** Returns the model that a new conversation begins with. */
export function firstModel() {
  const last = localStorage.getItem(LAST);
  return models.some((model) => model.id === last) ? last : (models[0]?.id ?? "");
}

/** Begins to listen.
 *  @param {(model: string) => void} chosen
 *  @param {(model: string) => void} secondChosen Called with the one that answers too; empty for none.
 *  @param {() => void} onKey Called where a key is missing, or not right. */
export function listen(chosen, secondChosen, onKey) {
  needsKey = onKey;
  at("model").addEventListener("change", () => {
    localStorage.setItem(LAST, at("model").value);
    chosen(at("model").value);
    showState();
  });
  // Whoever looks at another view is not asked for the key of the chat.
  const shown = () => document.hidden || at("chat").hidden || refreshModels();
  document.addEventListener("visibilitychange", shown);
  window.addEventListener("hashchange", shown);
  at("model").addEventListener("focus", () => refreshModels());
  at("second").addEventListener("change", () => {
    secondChosen(at("second").value);
    showState();
  });
}

/** Chooses models, even ones that are not there any more: a conversation keeps its own.
 *  @param {string} id
 *  @param {string} second One that answers too; empty for none. */
export function chooseModels(id, second) {
  fill(at("model"), id, []);
  fill(at("second"), second, [ONE_ALONE]);
  showState();
}

/** @param {HTMLSelectElement} select
 *  @param {string} chosen A model that is listed whether it is there or not.
 *  @param {[string, string][]} first Further values, with their texts. */
function fill(select, chosen, first) {
  const ids = models.map((model) => model.id);
  if (chosen && !ids.includes(chosen)) ids.push(chosen);
  const wanted = [...first, ...ids.map((id) => [id, id])];
  const known = [...select.options].map((option) => option.value);
  if (wanted.map(([id]) => id).join("\n") !== known.join("\n")) {
    select.replaceChildren(...wanted.map(([value, text]) => h("option", { value }, text)));
  }
  select.value = chosen;
}

/** Asks the server for its models and its health. Returns why it did not answer; null where it did.
 *  @returns {Promise<ApiError | null>} */
export async function refreshModels() {
  const banner = at("health");
  try {
    const { status, reason } = await health();
    banner.textContent = status === "healthy" ? "" : `${status}${reason ? `: ${reason}` : ""}`;
    /** @type {any[]} */
    const all = await listModels();
    models = all.filter((model) => (model.kind ?? "chat") === "chat");
    offerRecording(all.find(({ kind, state }) => kind === "transcription" && state === "ready")?.id ?? "");
    chooseModels(at("model").value || firstModel(), at("second").value);
    return null;
  } catch (/** @type {any} */ error) {
    if (error instanceof ApiError && error.status === 401) {
      keyed = true;
      models = [];
      needsKey();
    } else {
      banner.textContent = error.message;
      if (error.code === "no_answer" || error.status >= 500) lookAgain();
    }
    return error;
  } finally {
    banner.hidden = !banner.textContent;
  }
}

function showState() {
  const model = chosenModel();
  const state = model?.state ?? "";
  at("state").textContent = state;
  at("state").className = `state ${state}`;
  at("state").hidden = !state;
  const other = models.find(({ id }) => id === at("second").value);
  const taken = model?.modalities ?? [];
  offer(other ? taken.filter((/** @type {string} */ kind) => other.modalities.includes(kind)) : taken);
  clearTimeout(again);
  if (PASSING.includes(state)) lookAgain();
}

function lookAgain() {
  clearTimeout(again);
  if (!document.hidden) again = setTimeout(refreshModels, LOOK_AGAIN_MS);
}
