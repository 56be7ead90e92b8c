// @ts-check
// The one stream that carries what changes, GET /admin/live. It is read with `fetch`, because an
// EventSource sends no key; it is closed while the tab is hidden, and opened again after a failure.

import { linesOf } from "./api.js";

/** @typedef {Record<string, any>} Value */
/** @typedef {(value: any) => void} Listener */
/** @typedef {object} Status What listeners to `status` get: always whole.
 *  @property {number} at_s
 *  @property {string | null} problem
 *  @property {Value | null} system
 *  @property {Value[]} models In the configuration's order. */
/** @typedef {object} Requests What listeners to `requests` get: always whole.
 *  @property {Value[]} live Those under way, the oldest first, with `at_ms`: what is known of one was so at
 *    that time, by `performance.now()`.
 *  @property {Value[]} ended The newest first. */

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;
const SILENCE_MS = 90_000;
const KEPT_EVENTS = 1000;
const KEPT_ENDED = 2000;
const REFUSED = [401, 403];

/** Makes the reader of the stream. `connection` is a topic too: `{state}` is `open`, `waiting` (for
 *  the next try), `refused` (for the key) or `closed`.
 *  @param {(path: string, options: RequestInit) => Promise<Response>} open */
export function makeLive(open) {
  /** @type {Map<string, Set<Listener>>} */
  const listeners = new Map();
  /** @type {Map<string, any>} The latest whole value of a topic. */
  const latest = new Map([["connection", { state: "closed" }]]);
  /** @type {Map<string, Value>} */
  const models = new Map();
  /** @type {Map<string, Value>} The requests under way, and when each one came as it is. */
  const underWay = new Map();
  /** @type {string[]} */
  let order = [];
  /** @type {Value[]} */
  const happened = [];
  /** @type {Map<string, number>} The number of an epoch's last event. */
  const seen = new Map();
  let logs = "";
  let wanted = false;
  /** @type {AbortController | null} */
  let running = null;

  /** @param {string} topic
   *  @param {any} value */
  function tell(topic, value) {
    for (const listener of [...(listeners.get(topic) ?? [])]) {
      try {
        listener(value);
      } catch (error) {
        // A view that fails must not end the stream for the others.
        reportError(error);
      }
    }
  }

  /** @param {string} topic
   *  @param {any} value */
  function keep(topic, value) {
    latest.set(topic, value);
    tell(topic, value);
  }

  /** @param {string} topic
   *  @param {Value} value */
  function take(topic, value) {
    if (topic === "status") {
      if (value.whole) models.clear();
      for (const model of value.models) models.set(model.model, { ...model, at_s: value.at_s });
      order = value.order ?? order;
      const before = latest.get("status")?.system ?? null;
      const listed = order.flatMap((id) => models.get(id) ?? []);
      keep("status", { at_s: value.at_s, problem: value.problem ?? null, system: value.system ?? before, models: listed });
    } else if (topic === "requests") {
      if (value.whole) underWay.clear();
      for (const item of value.live) {
        // What was known of it may be older than the event.
        const known_s = Math.max(0, value.at_s - item.created - item.age_s);
        underWay.set(item.id, { ...item, at_ms: performance.now() - 1000 * known_s });
      }
      // A reader may get an end twice.
      const before = value.whole ? [] : (latest.get("requests")?.ended ?? []);
      const known = new Set(before.map((/** @type {Value} */ item) => item.id));
      const ended = value.ended.filter((/** @type {Value} */ item) => !known.has(item.id));
      for (const item of value.ended) underWay.delete(item.id);
      keep("requests", { live: [...underWay.values()], ended: [...ended, ...before].slice(0, KEPT_ENDED) });
    } else if (topic === "event") {
      if ((seen.get(value.epoch) ?? -1) >= value.seq) return;
      seen.set(value.epoch, value.seq);
      happened.push(value);
      if (happened.length > KEPT_EVENTS) happened.splice(0, happened.length - KEPT_EVENTS);
      tell("event", value);
    } else if (topic === "log") tell("log", value);
    else keep(topic, value);
  }

  /** @param {AbortController} run */
  async function read(run) {
    let waitMs = FIRST_WAIT_MS;
    while (!run.signal.aborted) {
      const attempt = new AbortController();
      const end = () => attempt.abort();
      run.signal.addEventListener("abort", end);
      let silence = 0;
      try {
        const query = logs ? `?logs=${encodeURIComponent(logs)}` : "";
        const response = await open(`admin/live${query}`, { signal: attempt.signal });
        keep("connection", { state: "open" });
        const heard = () => {
          clearTimeout(silence);
          silence = setTimeout(end, SILENCE_MS);
        };
        heard();
        let topic = "";
        for await (const line of linesOf(response, heard)) {
          if (line.startsWith("event: ")) topic = line.slice(7);
          if (!line.startsWith("data: ")) continue;
          waitMs = FIRST_WAIT_MS;
          take(topic, JSON.parse(line.slice(6)));
        }
      } catch (/** @type {any} */ error) {
        if (run.signal.aborted) return;
        if (REFUSED.includes(error.status)) {
          wanted = false;
          return keep("connection", { state: "refused" });
        }
        // A log that is not there must not keep everything else away.
        if (error.status === 404 && logs) logs = "";
      } finally {
        clearTimeout(silence);
        run.signal.removeEventListener("abort", end);
      }
      if (run.signal.aborted) return;
      keep("connection", { state: "waiting" });
      const restMs = waitMs * (0.75 + Math.random() / 2);
      await new Promise((resolve) => {
        setTimeout(resolve, restMs);
        run.signal.addEventListener("abort", resolve);
      });
      waitMs = Math.min(2 * waitMs, LONGEST_WAIT_MS);
    }
  }

  function settle() {
    const should = wanted && !document.hidden;
    if (should && !running) {
      const run = new AbortController();
      running = run;
      read(run).finally(() => {
        if (running === run) running = null;
      });
    } else if (!should && running) {
      running.abort();
      running = null;
      keep("connection", { state: "closed" });
    }
  }

  document.addEventListener("visibilitychange", settle);

  return {
    /** Has `listener` called with each value of a topic; with the latest one now, if there is one.
     *  @param {string} topic
     *  @param {Listener} listener
     *  @returns {() => void} what ends it */
    on(topic, listener) {
      const group = listeners.get(topic) ?? new Set();
      listeners.set(topic, group.add(listener));
      if (topic === "event") happened.slice().forEach((event) => listener(event));
      else if (latest.has(topic)) listener(latest.get(topic));
      return () => void group.delete(listener);
    },
    /** Has the lines of a log sent too, under the topic `log`: the latest ones first. An empty name
     *  ends it.
     *  @param {string} name */
    logs(name) {
      if (name === logs) return;
      logs = name;
      running?.abort();
      running = null;
      settle();
    },
    start() {
      wanted = true;
      settle();
    },
    /** Ends the stream, and forgets all that came with it. */
    stop() {
      wanted = false;
      settle();
      models.clear();
      underWay.clear();
      happened.length = 0;
      seen.clear();
      order = [];
      latest.clear();
      latest.set("connection", { state: "closed" });
    },
  };
}
