// @ts-check
// The page Usage: tokens, requests and errors by day, model and key, and how the figures went.

import { ApiError } from "./api.js";
import { calendar, daysBetween, lineChart } from "./charts.js";
import { h } from "./dom.js";
import { count, duration, many, percent, rate, size } from "./format.js";

/** @typedef {import("./console.js").Console} Console */
/** @typedef {{requests: number, errors: number, prompt_tokens: number, cached_tokens: number, completion_tokens: number}} Sums */
/** @typedef {Sums & {time: string, model: string | null, key: string | null}} Row */
/** @typedef {{first_day: string, last_day: string, rows: Row[], rest: (Sums & {time: string})[]}} Usage */
/** @typedef {{at_s: number, tokens_per_s: number, ttft_s: number | null, inter_token_s: number | null,
 *    waiting: number, running: number, memory_bytes: number}} Figures */
/** @typedef {{model: string | null, first_s: number, last_s: number, step_s: number, points: Figures[], models: string[]}} History */

const CALENDAR_DAYS = 371;
const SHOWN_ROWS = 12;
const AGAIN_MS = 60_000;
const NO_MODEL = "No such model";
const NO_KEY = "Without a key";

/** @type {Record<string, {label: string, one: string, of: (sums: Sums) => number}>} */
const MEASURES = {
  tokens: { label: "Tokens", one: "token", of: (sums) => sums.prompt_tokens + sums.completion_tokens },
  requests: { label: "Requests", one: "request", of: (sums) => sums.requests },
  errors: { label: "Errors", one: "error", of: (sums) => sums.errors },
};
const PERIODS = { 1: "Today", 7: "7 days", 30: "30 days", 365: "A year" };
const HOURS = { 1: "1 hour", 6: "6 hours", 24: "24 hours", 192: "8 days" };

/** @returns {Sums} */
const none = () => ({ requests: 0, errors: 0, prompt_tokens: 0, cached_tokens: 0, completion_tokens: 0 });

/** @param {Sums} sums
 *  @param {Sums} more */
function add(sums, more) {
  sums.requests += more.requests;
  sums.errors += more.errors;
  sums.prompt_tokens += more.prompt_tokens;
  sums.cached_tokens += more.cached_tokens;
  sums.completion_tokens += more.completion_tokens;
}

/** Returns sums by a text of each row.
 *  @template {Sums} T
 *  @param {T[]} rows
 *  @param {(row: T) => string} by */
function summed(rows, by) {
  /** @type {Map<string, Sums>} */
  const found = new Map();
  for (const row of rows) {
    const name = by(row);
    let sums = found.get(name);
    if (!sums) found.set(name, (sums = none()));
    add(sums, row);
  }
  return found;
}

/** @param {Sums} sums */
const cachedShare = (sums) => percent(sums.prompt_tokens ? sums.cached_tokens / sums.prompt_tokens : null);

/** Returns a group of buttons of which one is pressed.
 *  @param {string} label
 *  @param {Record<string, string>} choices
 *  @param {string} first
 *  @param {(chosen: string) => void} choose */
function choice(label, choices, first, choose) {
  const buttons = Object.entries(choices).map(([value, text]) =>
    h("button", { type: "button", "aria-pressed": String(value === first), value, onclick: () => press(value) }, text),
  );
  const press = (/** @type {string} */ value) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.value === value));
    choose(value);
  };
  return h("div", { class: "choice", role: "group", "aria-label": label }, ...buttons);
}

/** Fills a list of what to show, and keeps what is chosen.
 *  @param {HTMLSelectElement} select
 *  @param {string} all
 *  @param {string[]} names */
function offer(select, all, names) {
  const chosen = select.value;
  const known = chosen && !names.includes(chosen) ? [...names, chosen] : names;
  select.replaceChildren(new Option(all, ""), ...known.map((name) => new Option(name)));
  select.value = chosen;
}

/** Returns a table that is filled when it is opened.
 *  @param {string} summary
 *  @param {string[]} head
 *  @param {() => string[][]} rows */
function foldedTable(summary, head, rows) {
  const details = h("details", { class: "folded" }, h("summary", {}, summary));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(table(summary, head, rows(), 1));
  });
  return details;
}

/** Returns a table; on a phone each row is a card.
 *  @param {string} label
 *  @param {string[]} head
 *  @param {string[][]} rows
 *  @param {number} names How many columns at the beginning are no numbers. */
function table(label, head, rows, names) {
  const kind = (/** @type {number} */ place) => (place < names ? "" : "n");
  return h(
    "div",
    { class: "wide-table", tabIndex: 0, role: "region", "aria-label": label },
    h(
      "table",
      { class: "table" },
      h("thead", {}, h("tr", {}, ...head.map((text, place) => h("th", { scope: "col", class: kind(place) }, text)))),
      h(
        "tbody",
        {},
        ...rows.map((row) =>
          h("tr", {}, ...row.map((text, place) => h("td", { class: kind(place), "data-label": head[place] }, text))),
        ),
      ),
    ),
  );
}

/** Begins to show the page.
 *  @param {HTMLElement} root
 *  @param {Console} console
 *  @returns {() => void} a function that ends it */
export function mount(root, console) {
  console.style("usage.css");
  let ended = false;
  let measure = "tokens";
  let period = 30;
  let hours = 6;
  let allRows = false;
  let loadedMs = 0;
  /** @type {Usage | null} */
  let usage = null;
  /** @type {History | null} */
  let history = null;

  const model = h("select", { "aria-label": "Model", onchange: () => modelChanged() }, new Option("All models", ""));
  const key = h("select", { "aria-label": "Key", onchange: () => showUsage() }, new Option("All keys", ""));
  const totals = h("div", { class: "totals" });
  const days = h("section", { class: "card" });
  const pairs = h("section", { class: "card" });
  const lines = h("div", { class: "charts" });
  const measures = Object.fromEntries(Object.entries(MEASURES).map(([id, { label }]) => [id, label]));
  root.append(
    h(
      "div",
      { class: "page usage-page" },
      h(
        "div",
        { class: "heading" },
        h("h1", {}, "Usage"),
        h("span", { class: "space" }),
        model,
        key,
        choice("What the calendar shows", measures, measure, (chosen) => {
          measure = chosen;
          showDays();
        }),
      ),
      totals,
      days,
      pairs,
      h(
        "div",
        { class: "heading" },
        h("h2", {}, "Over time"),
        h("span", { class: "space" }),
        choice("Hours of the lines", HOURS, String(hours), (chosen) => {
          hours = Number(chosen);
          loadHistory();
        }),
      ),
      lines,
    ),
  );

  const isShown = (/** @type {Row} */ row) =>
    (!model.value || (row.model ?? NO_MODEL) === model.value) && (!key.value || (row.key ?? NO_KEY) === key.value);

  /** Returns what is shown of each day. What is joined has no model and no key to choose it by.
   *  @param {Usage} from */
  function shownRows(from) {
    const isAll = !model.value && !key.value;
    return [...from.rows.filter(isShown), ...(isAll ? from.rest : [])];
  }

  /** @param {HTMLElement} where
   *  @param {unknown} error
   *  @param {() => void} again */
  function showFault(where, error, again) {
    const text = error instanceof ApiError ? error.message : String(error);
    where.replaceChildren(
      h("p", { class: "fault", role: "alert" }, text, " ", h("button", { type: "button", onclick: again }, "Try again")),
    );
  }

  async function loadUsage() {
    try {
      const found = await console.request(`admin/usage?days=${CALENDAR_DAYS}`);
      if (ended) return;
      usage = found;
      showUsage();
    } catch (error) {
      if (!ended) showFault(days, error, loadUsage);
    }
  }

  async function loadHistory() {
    if (model.value === NO_MODEL) {
      // The server has no figures of a model that it does not have.
      const last_s = Date.now() / 1000;
      asking = "";
      history = { model: null, first_s: last_s - 3600 * hours, last_s, step_s: 60, points: [], models: history?.models ?? [] };
      showHistory();
      return;
    }
    const asked = `admin/usage/figures?hours=${hours}${model.value ? `&model=${encodeURIComponent(model.value)}` : ""}`;
    asking = asked;
    try {
      const found = await console.request(asked);
      if (ended || asking !== asked) return;
      history = found;
      showHistory();
    } catch (error) {
      if (!ended && asking === asked) showFault(lines, error, loadHistory);
    }
  }
  let asking = "";

  function load() {
    loadedMs = performance.now();
    return Promise.all([loadUsage(), loadHistory()]);
  }

  function modelChanged() {
    showUsage();
    loadHistory();
  }

  function showUsage() {
    if (!usage) return;
    const byTokens = (/** @type {Map<string, Sums>} */ found) =>
      [...found].sort(([, a], [, b]) => MEASURES.tokens.of(b) - MEASURES.tokens.of(a)).map(([name]) => name);
    const byModel = byTokens(summed(usage.rows, (row) => row.model ?? NO_MODEL));
    offer(model, "All models", [...new Set([...byModel, ...(history?.models ?? [])])]);
    offer(key, "All keys", byTokens(summed(usage.rows, (row) => row.key ?? NO_KEY)));
    showTotals(usage);
    showDays();
    showPairs(usage);
  }

  /** Returns the first of the last days.
   *  @param {Usage} from
   *  @param {number} number */
  const firstOf = (from, number) => daysBetween(from.first_day, from.last_day).at(-number) ?? from.first_day;

  /** @param {Usage} from */
  function showTotals(from) {
    const rows = shownRows(from);
    totals.replaceChildren(
      ...Object.entries(PERIODS).map(([number, label]) => {
        const first = firstOf(from, Number(number));
        const sums = none();
        for (const row of rows) if (row.time >= first) add(sums, row);
        return h(
          "section",
          { class: "card total" },
          h("h2", {}, label),
          h("p", { class: "much" }, short(MEASURES.tokens.of(sums)), h("small", {}, " tokens")),
          h(
            "p",
            { class: "soft" },
            `${many(sums.requests, "request")}, `,
            h("span", { class: sums.errors ? "bad" : "" }, many(sums.errors, "error")),
          ),
          h("p", { class: "soft" }, `${short(sums.completion_tokens)} generated, ${cachedShare(sums)} of the prompts cached`),
        );
      }),
    );
  }

  function showDays() {
    if (!usage) return;
    const { label, one, of } = MEASURES[measure];
    const byDay = summed(shownRows(usage), (row) => row.time);
    const all = daysBetween(usage.first_day, usage.last_day);
    const valueOf = (/** @type {string} */ day) => of(byDay.get(day) ?? none());
    const words = (/** @type {string} */ day, /** @type {number} */ value) => `${day}: ${many(value, one)}`;
    const used = all.filter((day) => byDay.has(day));
    const most = used.reduce((best, day) => (valueOf(day) > valueOf(best) ? day : best), used[0] ?? "");
    const summary = used.length
      ? `${label} on each day of a year: ${many(used.length, "day")} with requests, most on ${words(most, valueOf(most))}`
      : `${label} on each day of a year: none yet`;
    const scroll = h(
      "div",
      { class: "weeks", tabIndex: 0, role: "region", "aria-label": "Calendar" },
      calendar(all, valueOf, words, summary),
    );
    const legend = h("p", { class: "levels soft", "aria-hidden": "true" }, "Less", ...[0, 1, 2, 3, 4].map((each) => h("i", { class: `l${each}` })), "More");
    days.replaceChildren(
      h("h2", {}, `${label} by day`),
      scroll,
      used.length
        ? h("div", { class: "under" }, legend, h("p", { class: "soft" }, `Most: ${words(most, valueOf(most))}`))
        : h("p", { class: "soft empty" }, "Nothing was used yet. The first request that ends is counted here within seconds."),
    );
    if (used.length) {
      const rows = () => used.slice().reverse().map((day) => [day, ...cells(byDay.get(day) ?? none())]);
      days.append(foldedTable("The days as a table", ["Day", ...HEAD], rows));
    }
    scroll.scrollLeft = scroll.scrollWidth;
  }

  /** @param {Usage} from */
  function showPairs(from) {
    const first = firstOf(from, period);
    const rows = from.rows.filter((row) => row.time >= first && isShown(row));
    const sorted = [...summed(rows, (row) => JSON.stringify([row.model, row.key]))].sort(
      ([, a], [, b]) => MEASURES.tokens.of(b) - MEASURES.tokens.of(a) || b.requests - a.requests,
    );
    const shown = allRows ? sorted : sorted.slice(0, SHOWN_ROWS);
    const others = none();
    for (const [, sums] of sorted.slice(shown.length)) add(others, sums);
    if (!model.value && !key.value) for (const sums of from.rest) if (sums.time >= first) add(others, sums);
    const filled = shown.map(([pair, sums]) => {
      const [name, keyName] = JSON.parse(pair);
      return [name ?? NO_MODEL, keyName ?? NO_KEY, ...cells(sums)];
    });
    if (others.requests || MEASURES.tokens.of(others)) filled.push(["All others", "", ...cells(others)]);
    const more = sorted.length > SHOWN_ROWS && h("button", { type: "button", onclick: () => {
      allRows = !allRows;
      showPairs(from);
      /** @type {HTMLElement} */ (pairs.lastElementChild).focus();
    } }, allRows ? "Show fewer" : `Show all ${sorted.length}`);
    pairs.replaceChildren(
      h("div", { class: "heading" }, h("h2", {}, "By model and key"), h("span", { class: "space" }), periods),
      filled.length
        ? table("Usage by model and key", ["Model", "Key", ...HEAD], filled, 2)
        : h("p", { class: "soft empty" }, "No requests in this time."),
      ...(more ? [more] : []),
    );
  }
  const periods = choice("Days of the table", PERIODS, String(period), (chosen) => {
    period = Number(chosen);
    if (usage) showPairs(usage);
  });

  function showHistory() {
    if (!history) return;
    const { first_s, last_s, step_s, points } = history;
    const isLong = last_s - first_s > 86_400;
    const time = (/** @type {number} */ at_s) => {
      const when = new Date(1000 * at_s);
      const clock = when.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
      return isLong ? `${when.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${clock}` : clock;
    };
    const seconds = (/** @type {number} */ value) => (value < 1 ? `${Number((1000 * value).toPrecision(3))} ms` : duration(value));
    const chart = (/** @type {string} */ title, /** @type {(value: number) => string} */ words, /** @type {{name: string, of: (point: Figures) => number | null}[]} */ ...of) =>
      lineChart({ title, points, first_s, last_s, step_s, lines: of, words, time });
    lines.replaceChildren(
      chart("Tokens a second", (value) => `${rate(value)} tok/s`, { name: "", of: (point) => point.tokens_per_s }),
      chart("Time to first token", seconds, { name: "", of: (point) => point.ttft_s }),
      chart("Time between tokens", seconds, { name: "", of: (point) => point.inter_token_s }),
      chart(
        "Requests at a time",
        (value) => String(Math.round(10 * value) / 10),
        { name: "running", of: (point) => point.running },
        { name: "waiting", of: (point) => point.waiting },
      ),
      lineChart({
        title: "Memory of the models",
        points, first_s, last_s, step_s, time,
        lines: [{ name: "", of: (point) => point.memory_bytes }],
        words: size,
        unit: 2 ** 30,
      }),
      foldedTable(
        "The lines as a table",
        ["Time", "Tokens/s", "First token", "Between tokens", "Running", "Waiting", "Memory"],
        () =>
          points.slice().reverse().map((point) => [
            time(point.at_s),
            rate(point.tokens_per_s),
            point.ttft_s === null ? "–" : seconds(point.ttft_s),
            point.inter_token_s === null ? "–" : seconds(point.inter_token_s),
            count(point.running),
            count(point.waiting),
            size(point.memory_bytes),
          ]),
      ),
    );
    if (usage) offer(model, "All models", [...new Set([...[...model.options].map((one) => one.value).filter(Boolean), ...history.models])]);
  }

  // Nothing is requested while nothing happens, or while nobody looks.
  const stop = console.live.on("figures", () => {
    const isOpen = root.querySelector("details[open]") !== null;
    if (!document.hidden && !isOpen && performance.now() - loadedMs > AGAIN_MS) load();
  });
  load();
  return () => {
    ended = true;
    stop();
  };
}

const HEAD = ["Requests", "Errors", "Prompt", "Cached", "Generated"];

/** @param {Sums} sums */
const cells = (sums) => [
  count(sums.requests),
  count(sums.errors),
  count(sums.prompt_tokens),
  cachedShare(sums),
  count(sums.completion_tokens),
];

const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** @param {number} number */
const short = (number) => SHORT.format(number);
