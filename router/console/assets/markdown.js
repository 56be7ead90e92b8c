// @ts-check
// Shows Markdown as it grows. The server makes trees of elements of it: each block that has ended
// once, the last one now and then. Until its tree is there, a block is shown as text.

import { renderMarkdown } from "./api.js";
import { cut } from "./blocks.js";
import { copyButton, h } from "./dom.js";

const PAUSE_MS = 250;
const LONGEST_MOVING = 6000;
const MOST_BLOCKS = 100;
const MOST_CHARACTERS = 50_000;
const MOST_KEPT = 500;
const TRIES = 4;

const TAGS = new Set(
  "a blockquote br code em h1 h2 h3 h4 h5 h6 hr li ol p pre s span strong table tbody td th thead tr ul".split(" "),
);
/** Where more text of a block may be put that has been drawn. */
const INNER = new Set(["OL", "UL", "LI", "P", "BLOCKQUOTE", "H3", "H4", "H5", "H6"]);

// --- Asking for trees --------------------------------------------------------------------------------

/** @type {Map<string, any[]>} */
const trees = new Map();
/** @type {{text: string, keep: boolean, resolve: (tree: any[] | null) => void}[]} */
let waiting = [];
let asking = false;

/** Requests the tree of a block; null where it can't be had.
 *  @param {string} text
 *  @param {boolean} keep Whether it may be needed again.
 *  @returns {Promise<any[] | null>} */
function requestTree(text, keep) {
  return new Promise((resolve) => {
    waiting.push({ text, keep, resolve });
    if (!asking) askForAll();
  });
}

async function askForAll() {
  asking = true;
  await null; // What is drawn in one go is requested in one go.
  while (waiting.length) {
    let characters = 0;
    let many = 0;
    while (many < Math.min(waiting.length, MOST_BLOCKS) && (!many || characters < MOST_CHARACTERS)) {
      characters += waiting[many].text.length;
      many += 1;
    }
    const now = waiting.splice(0, many);
    const found = await askFor(now.map(({ text }) => text));
    now.forEach(({ text, keep, resolve }, place) => {
      const tree = found[place];
      if (tree && keep) remember(text, tree);
      resolve(tree);
    });
  }
  asking = false;
}

/** @param {string[]} texts
 *  @returns {Promise<(any[] | null)[]>} */
async function askFor(texts) {
  for (let pause = 500, tries = 1; ; pause *= 3, tries += 1) {
    try {
      return await renderMarkdown(texts);
    } catch (/** @type {any} */ error) {
      const inVain = error.status >= 400 && error.status < 500 && error.status !== 429;
      if ([400, 413].includes(error.status) && texts.length > 1) {
        // One of them is at fault: each is requested by itself.
        return (await Promise.all(texts.map((text) => askFor([text])))).flat();
      }
      if (inVain || tries === TRIES) return texts.map(() => null);
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
}

/** @param {string} text
 *  @param {any[]} tree */
function remember(text, tree) {
  trees.set(text, tree);
  if (trees.size > MOST_KEPT) trees.delete(/** @type {string} */ (trees.keys().next().value));
}

// --- Drawing them ------------------------------------------------------------------------------------

/** Returns the element of a node. Only known tags and attributes become any.
 *  @param {any} node
 *  @returns {Node} */
function build(node) {
  if (typeof node === "string") return document.createTextNode(node);
  const [tag, attributes, ...children] = node;
  if (!TAGS.has(tag)) return h("span", {}, ...children.map(build));
  if (tag === "pre") return codeBlock(attributes.language ?? "", children.map(build));
  // The page's own headings are the first two levels.
  const heading = /^h(\d)$/.exec(tag);
  const name = heading ? `h${Math.min(6, Number(heading[1]) + 2)}` : tag;
  const element = h(name, {}, ...children.map(build));
  if (tag === "a") {
    Object.assign(element, { href: attributes.href, rel: "noreferrer noopener", target: "_blank" });
  }
  if (attributes.start !== undefined) element.setAttribute("start", String(Number(attributes.start)));
  if (/^[a-z0-9-]{1,20}$/.test(attributes.class ?? "")) element.className = attributes.class;
  if (/^(left|center|right)$/.test(attributes.align ?? "")) element.classList.add(attributes.align);
  if (tag === "table") return h("div", { class: "table", tabIndex: 0, role: "region", "aria-label": "Table" }, element);
  return element;
}

/** @param {string} language
 *  @param {Node[]} content */
function codeBlock(language, content) {
  const code = h("code", {}, ...content);
  return h(
    "figure",
    { class: "code" },
    h("figcaption", {}, h("span", {}, language || "text"), copyButton(() => code.textContent ?? "")),
    h("pre", { tabIndex: 0 }, code),
  );
}

/** Returns a function that shows a text in an element. What has ended is never touched again, so that
 *  it can be selected while the answer continues.
 *  @param {HTMLElement} box */
export function drawing(box) {
  let text = "";
  let closedLength = 0;
  let moving = new Block(box);
  /** @param {string} now
   *  @param {boolean} ended Whether nothing follows. */
  return (now, ended) => {
    if (!now.startsWith(text)) {
      box.replaceChildren();
      closedLength = 0;
      moving = new Block(box);
    }
    text = now;
    const { closed, rest } = cut(text.slice(closedLength));
    for (const block of closed) {
      moving.show(block, true);
      moving = new Block(box);
      closedLength += block.length + 1;
    }
    moving.show(rest, ended);
  };
}

/** One block: as text, or as its tree with what has come since as text behind it. */
class Block {
  /** @param {HTMLElement} box */
  constructor(box) {
    this.box = box;
    /** @type {HTMLElement | null} */
    this.element = null;
    this.text = "";
    this.ended = false;
    this.drawn = "";
    this.asking = false;
    this.tail = document.createTextNode("");
  }

  /** @param {string} text
   *  @param {boolean} ended */
  show(text, ended) {
    if (!text.trim() || (text === this.text && ended === this.ended)) return;
    if (!this.element) {
      this.element = h("div", { class: "block raw" }, this.tail);
      this.box.append(this.element);
    }
    this.text = text;
    this.ended = ended;
    this.addTail();
    this.ask();
  }

  async ask() {
    // White space at its end changes nothing: what is drawn stays, with what is selected in it.
    const wanted = this.text.trimEnd();
    if (this.asking || this.drawn === wanted) return;
    if (!this.ended && this.text.length > LONGEST_MOVING) return;
    this.asking = true;
    const whole = this.ended;
    const tree = trees.get(wanted) ?? (await requestTree(wanted, whole));
    // It may have been replaced by another text meanwhile.
    if (tree && this.text.startsWith(wanted)) this.draw(wanted, tree);
    if (!whole && !this.ended) await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    this.asking = false;
    if (tree) this.ask();
  }

  /** @param {string} text
   *  @param {any[]} tree */
  draw(text, tree) {
    const element = /** @type {HTMLElement} */ (this.element);
    this.drawn = text;
    this.tail = document.createTextNode("");
    // What only defines the addresses of links has no elements: its text is shown.
    element.className = tree.length ? "block" : "block raw";
    element.replaceChildren(...(tree.length ? tree.map(build) : [text]));
    let place = /** @type {Element} */ (element);
    while (place.lastElementChild && INNER.has(place.lastElementChild.tagName)) place = place.lastElementChild;
    const code = place.lastElementChild?.matches("figure.code") && place.lastElementChild.querySelector("code");
    (code || place).append(this.tail);
    this.addTail();
  }

  addTail() {
    const more = this.text.slice(this.drawn.length);
    this.tail.data = more.trim() ? more : "";
  }
}
