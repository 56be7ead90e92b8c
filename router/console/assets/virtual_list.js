// @ts-check
// A list of any length, of which only the rows in view exist.

import { h } from "./dom.js";

const MARGIN_ROWS = 6;

/** @template Item
 *  @typedef {object} Row
 *  @property {HTMLElement} element
 *  @property {(item: Item) => void} update Draws an item, which may be the same as before. */

/** Shows items as rows of one height. What is read stays where it is when items come before it.
 *  @template {{id: string}} Item */
export class VirtualList {
  /** @param {string} label
   *  @param {() => Row<Item>} makeRow
   *  @param {() => number} rowHeight Returns the height of a row in pixels. */
  constructor(label, makeRow, rowHeight) {
    this.makeRow = makeRow;
    this.rowHeight = rowHeight;
    /** @type {Item[]} */
    this.items = [];
    /** @type {Map<string, Row<Item>>} */
    this.rows = new Map();
    this.body = h("ul", { class: "rows", role: "list", "aria-label": label });
    this.element = h("div", { class: "virtual", onscroll: () => this.schedule(), onkeydown: (/** @type {KeyboardEvent} */ event) => this.move(event) }, this.body);
    this.scheduled = false;
    this.watch = new ResizeObserver(() => this.schedule());
    this.watch.observe(this.element);
  }

  close() {
    this.watch.disconnect();
  }

  schedule() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => {
      this.scheduled = false;
      this.draw();
    });
  }

  /** @param {Item[]} items */
  show(items) {
    const height = this.rowHeight();
    const first = Math.floor(this.element.scrollTop / height);
    const anchor = this.element.scrollTop > 0 ? this.items[first]?.id : undefined;
    this.items = items;
    this.body.style.height = `${items.length * height}px`;
    if (anchor !== undefined) {
      const now = items.findIndex((one) => one.id === anchor);
      if (now >= 0 && now !== first) this.element.scrollTop += (now - first) * height;
    }
    this.draw();
  }

  /** Draws the rows that are in view. */
  draw() {
    const height = this.rowHeight();
    const top = this.element.scrollTop;
    const first = Math.max(0, Math.floor(top / height) - MARGIN_ROWS);
    const last = Math.min(this.items.length, Math.ceil((top + this.element.clientHeight) / height) + MARGIN_ROWS);
    const wanted = this.items.slice(first, last);
    const focused = /** @type {HTMLElement | null} */ (document.activeElement);
    const kept = new Set(wanted.map((item) => item.id));
    // The row that has the focus stays, wherever it is: a keyboard would have to begin again.
    const holder = [...this.rows].find(([, { element }]) => element.contains(focused))?.[0];
    const held = holder === undefined || kept.has(holder) ? -1 : this.items.findIndex((item) => item.id === holder);
    const spare = [...this.rows].filter(([id]) => !kept.has(id) && !(held >= 0 && id === holder));
    if (held >= 0 && holder !== undefined) this.place(/** @type {Row<Item>} */ (this.rows.get(holder)), held);
    /** @type {Element | null} */
    let next = this.body.firstElementChild;
    wanted.forEach((item, place) => {
      let row = this.rows.get(item.id);
      if (!row) {
        // A row that left the view is used again: making one costs ten times as much as filling it.
        const [id, free] = spare.pop() ?? ["", this.makeRow()];
        this.rows.delete(id);
        this.rows.set(item.id, (row = free));
      }
      const { element } = row;
      if (element === next) next = element.nextElementSibling;
      else this.body.insertBefore(element, next);
      this.place(row, first + place);
    });
    for (const [id, { element }] of spare) {
      this.rows.delete(id);
      element.remove();
    }
    if (focused && focused !== document.activeElement && this.body.contains(focused)) focused.focus({ preventScroll: true });
  }

  /** @param {Row<Item>} row
   *  @param {number} index */
  place(row, index) {
    row.element.style.transform = `translateY(${index * this.rowHeight()}px)`;
    row.element.dataset.index = `${index}`;
    row.element.setAttribute("aria-posinset", `${index + 1}`);
    row.element.setAttribute("aria-setsize", `${this.items.length}`);
    row.update(this.items[index]);
  }

  /** Moves the focus from row to row.
   *  @param {KeyboardEvent} event */
  move(event) {
    const row = /** @type {HTMLElement} */ (event.target).closest("li");
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight()) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    if (!row || step === undefined) return;
    event.preventDefault();
    const index = Math.min(this.items.length - 1, Math.max(0, Number(row.dataset.index) + step));
    const height = this.rowHeight();
    const { scrollTop, clientHeight } = this.element;
    if (index * height < scrollTop) this.element.scrollTop = index * height;
    else if ((index + 1) * height > scrollTop + clientHeight) this.element.scrollTop = (index + 1) * height - clientHeight;
    this.draw();
    this.rows.get(this.items[index].id)?.element.querySelector("button")?.focus({ preventScroll: true });
  }
}
