// @ts-check
// The batches of all keys: how far each is, and a button that cancels it.

import { h } from "./dom.js";
import { count as many } from "./format.js";

/** @typedef {any} Batch A batch as GET /admin/batches has it. */

const SHOWN_ENDED = 2;
const UNDER_WAY = new Set(["validating", "in_progress", "finalizing", "cancelling"]);
const CANCELLABLE = new Set(["validating", "in_progress"]);

/** Makes the list, which is hidden while there is no batch.
 *  @param {(batch: Batch) => void} cancel */
export function makeBatchList(cancel) {
  const rows = h("ul", {});
  const element = h("details", { class: "batches", hidden: true, open: true }, h("summary", {}, "Batches"), rows);
  /** @type {Map<string, {element: HTMLElement, update: (batch: Batch) => void}>} */
  const known = new Map();

  function makeRow() {
    /** @type {Batch} */
    let shown = null;
    const name = h("span", { class: "mono name" });
    const who = h("span", { class: "soft whose" });
    const bar = h("progress", {});
    const words = h("span", { class: "soft words" });
    const stop = h("button", { class: "small danger", type: "button", onclick: () => cancel(shown) }, "Cancel");
    const row = h("li", { class: "batch" }, h("div", {}, name, who), bar, words, stop);
    /** @param {Batch} batch */
    const update = (batch) => {
      shown = batch;
      const done = batch.completed + batch.failed;
      name.textContent = batch.model ?? "several models";
      who.textContent = `${batch.endpoint} · ${batch.key === null ? "no key" : `key ${batch.key}`}`;
      bar.max = Math.max(1, batch.total);
      // A batch without lines yet has no share that could be shown.
      if (batch.total || !UNDER_WAY.has(batch.status)) bar.value = done;
      else bar.removeAttribute("value");
      bar.setAttribute("aria-label", `Lines of ${batch.id} that are done`);
      words.textContent = wordsOf(batch, done);
      row.title = batch.id;
      stop.hidden = !CANCELLABLE.has(batch.status);
      stop.setAttribute("aria-label", `Cancel the batch ${batch.id}`);
    };
    return { element: row, update };
  }

  return {
    element,
    /** @param {Batch[]} batches Those under way, and then the last ones that have ended. */
    show(batches) {
      const underWay = batches.filter((batch) => UNDER_WAY.has(batch.status));
      const shown = [...underWay, ...batches.filter((batch) => !UNDER_WAY.has(batch.status)).slice(0, SHOWN_ENDED)];
      element.hidden = !shown.length;
      const ids = new Set(shown.map((batch) => batch.id));
      for (const [id, row] of known) {
        if (ids.has(id)) continue;
        row.element.remove();
        known.delete(id);
      }
      shown.forEach((batch, place) => {
        const row = known.get(batch.id) ?? makeRow();
        known.set(batch.id, row);
        row.update(batch);
        // What is in its place already stays there: a button that is being pressed does not move.
        if (rows.children[place] !== row.element) rows.insertBefore(row.element, rows.children[place] ?? null);
      });
    },
  };
}

/** @param {Batch} batch
 *  @param {number} done */
function wordsOf(batch, done) {
  const failed = batch.failed ? `, ${many(batch.failed)} failed` : "";
  const lines = batch.total ? ` · ${many(done)} of ${many(batch.total)} lines${failed}` : "";
  return `${batch.status.replaceAll("_", " ")}${lines}`;
}
