// @ts-check
// What an operator can do with a model, in which state, and what is said of it.

import { duration, size } from "./format.js";

/** @typedef {Record<string, any>} Value */
/** @typedef {{id: string, label: string, look?: string}} Action */
/** @typedef {{busy: (text: string) => void, note: (note: import("./model_row.js").Note | null) => void}} Progress */

/** @type {Record<string, Action>} */
const ACTIONS = {
  load: { id: "load", label: "Load", look: "main" },
  resume: { id: "load", label: "Resume", look: "main" },
  unload: { id: "unload", label: "Unload" },
  stop: { id: "unload", label: "Stop loading" },
  kill: { id: "kill", label: "Kill", look: "danger" },
  drain: { id: "drain", label: "Drain" },
  restart: { id: "restart", label: "Restart" },
  reset: { id: "reset", label: "Reset" },
  pin: { id: "pin", label: "Pin" },
  unpin: { id: "unpin", label: "Unpin" },
  remove: { id: "remove", label: "Remove from lmx", look: "danger" },
  delete: { id: "delete", label: "Delete its files", look: "danger" },
};

/** Returns what can be done with a model: what is shown, and what stands in its menu.
 *  @param {Value} model
 *  @returns {{main: Action[], rest: Action[]}} */
export function actionsOf(model) {
  const { load, resume, unload, stop, kill, drain, restart, reset } = ACTIONS;
  const always = [model.pinned ? ACTIONS.unpin : ACTIONS.pin, ...(model.added ? [ACTIONS.remove] : []), ACTIONS.delete];
  switch (model.state) {
    case "ready":
      return { main: [unload, kill], rest: [drain, restart, ...always] };
    case "cold":
      return { main: [load], rest: [drain, ...always] };
    case "failed":
    case "quarantined":
      return { main: [load], rest: [reset, ...always] };
    case "drained":
      return { main: [resume], rest: always };
    default:
      return { main: model.pid ? [kill] : [stop], rest: [...(model.pid ? [unload] : []), reset, ...always] };
  }
}

const pathOf = (/** @type {string} */ id) => id.split("/").map(encodeURIComponent).join("/");

/** Does something with a model, and says what came of it. Never throws.
 *  @param {import("./console.js").Console} console
 *  @param {Value} model
 *  @param {string} action
 *  @param {Progress} progress */
export async function act(console, model, action, progress) {
  const id = model.model;
  const runs = model.requests_active + model.requests_queued + model.waiting;
  const inFlight = runs ? `Its ${runs === 1 ? "request" : `${runs} requests`} in flight ${runs === 1 ? "gets" : "get"} an error. ` : "";
  const body = { model: id };
  /** @type {Record<string, {busy: string, sure?: [string, string, string], does: () => Promise<import("./model_row.js").Note>}>} */
  const table = {
    load: {
      busy: "Loading",
      does: async () => {
        const answer = await console.request("admin/models/load", { body: { model_id: id } });
        return { text: `Loaded in ${duration(answer.time_to_load_ms / 1000)}.` };
      },
    },
    unload: {
      busy: "Unloading",
      does: async () => {
        const { memory, memory_freed_gb } = await console.request("admin/models/unload", { body: { model_id: id } });
        const back = memory ? `${size(memory.returned_bytes)} came back in ${duration(memory.took_s)}` : `${memory_freed_gb} GB came back`;
        return { text: "Unloaded by you · ", strong: back };
      },
    },
    kill: {
      busy: "Killing",
      sure: [`Kill ${id}?`, "Kill", `Its process is ended at once. ${inFlight}The other models' streams continue, and ${size(model.memory_bytes)} of memory come back. It is loaded again with its next request.`],
      does: async () => {
        const { memory, message } = await console.request(`admin/workers/${pathOf(id)}/kill`, { method: "POST" });
        if (!memory) return { text: `Killed by you · ${message}` };
        const missing = memory.missing_bytes > 0 ? ` · ${size(memory.missing_bytes)} did not come back` : "";
        return { text: "Killed by you · ", strong: `${size(memory.returned_bytes)} came back in ${duration(memory.took_s)}`, after: missing };
      },
    },
    drain: { busy: "Draining", does: () => say("admin/models/drain", body) },
    restart: {
      busy: "Restarting",
      does: () => say("admin/models/restart", body),
    },
    reset: { busy: "Resetting", does: () => say("admin/models/reset", body) },
    pin: { busy: "Pinning", does: () => say("admin/models/pin", { ...body, pinned: true }) },
    unpin: { busy: "Unpinning", does: () => say("admin/models/pin", { ...body, pinned: false }) },
    remove: {
      busy: "Removing",
      sure: [`Remove ${id}?`, "Remove", "lmx no longer serves it. Its files stay."],
      does: async () => {
        await console.request(`engines/${pathOf(id)}`, { method: "DELETE" });
        return { text: "Removed." };
      },
    },
    delete: {
      busy: "Deleting",
      sure: [`Delete the files of ${id}?`, "Delete", `${inFlight}They can't be brought back, other than by another pull.`],
      does: async () => {
        const { freed_bytes } = await console.request(`admin/models/${pathOf(id)}?force=true`, { method: "DELETE" });
        return { text: "Deleted · ", strong: `${size(freed_bytes)} of disk are free again` };
      },
    },
  };

  /** @param {string} path
   *  @param {Value} sent */
  async function say(path, sent) {
    const { message } = await console.request(path, { body: sent });
    return { text: message };
  }

  const { busy, sure, does } = table[action];
  if (sure && !(await console.confirm(sure[0], sure[1], sure[2]))) return;
  progress.note(null);
  progress.busy(`${busy}…`);
  try {
    const note = await does();
    progress.note(note);
    console.announce(`${id}: ${note.text}${note.strong ?? ""}${note.after ?? ""}`);
  } catch (/** @type {any} */ error) {
    progress.note({ text: error.message, bad: true });
    console.announce(`${id}: ${error.message}`);
  } finally {
    progress.busy("");
  }
}
