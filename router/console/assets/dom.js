// @ts-check
// Builds elements. Texts become texts: nothing here, and nothing else on the page, parses HTML.

/** Returns the element of the page with an id.
 *  @param {string} id
 *  @returns {any} */
export const at = (id) => document.getElementById(id);

/** Returns an element. A property is set as such, one with a hyphen and `class` and `role` as an
 *  attribute, and one that begins with `on` is a listener. What is null or false is left out.
 *  @template {keyof HTMLElementTagNameMap} Tag
 *  @param {Tag} tag
 *  @param {Record<string, any>} properties
 *  @param {...(Node | string | null | false | undefined)} children
 *  @returns {HTMLElementTagNameMap[Tag]} */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.includes("-") || name === "class" || name === "role") {
      element.setAttribute(name, value === true ? "" : value);
    } else Object.assign(element, { [name]: value });
  }
  for (const child of children) if (child || child === "") element.append(child);
  return element;
}

/** Returns an element of SVG.
 *  @param {string} tag
 *  @param {Record<string, string | number>} attributes
 *  @param {...(Node | string)} children */
export function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

const SHAPES = {
  chat: "M5 5h14v11H11l-4 4v-4H5z",
  models: "M4 5h16v5H4zM4 14h16v5H4zM7.5 7.5h.01M7.5 16.5h.01",
  requests: "M4 6h9M8 12h10M12 18h8",
  machines: "M4 4h7v7H4zM13 13h7v7h-7zM11 7.5h5.5V13",
  usage: "M5 20v-7M12 20V5M19 20v-11",
  logs: "M5 6h14M5 10.5h10M5 15h14M5 19.5h7",
  plug: "M9 3v5M15 3v5M6.5 8h11v3a5.5 5.5 0 0 1-11 0zM12 16.5V21",
  attach: "M20 11.5 12 19.5a5 5 0 0 1-7-7l8.5-8.5a3.3 3.3 0 0 1 4.7 4.7L9.8 17a1.6 1.6 0 0 1-2.3-2.3l7.5-7.5",
  close: "M6 6l12 12M18 6 6 18",
  copy: "M9 9h10v11H9zM15 9V5H5v11h4",
  down: "M12 5v14M6 13l6 6 6-6",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  left: "M14 6l-6 6 6 6",
  menu: "M4 7h16M4 12h16M4 17h10",
  microphone: "M12 4a2.5 2.5 0 0 1 2.5 2.5v5a2.5 2.5 0 0 1-5 0v-5A2.5 2.5 0 0 1 12 4M6 11.5a6 6 0 0 0 12 0M12 17.5V21",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  again: "M5 12a7 7 0 1 0 2.2-5.1L5 9M5 4v5h5",
  right: "M10 6l6 6-6 6",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M8 8h8v8H8z",
};

/** Returns a picture for a button. It is hidden from screen readers: the button has a label.
 *  @param {keyof typeof SHAPES} name */
export function icon(name) {
  const picture = { viewBox: "0 0 24 24", "aria-hidden": "true", class: `shape ${name}` };
  return svg("svg", picture, svg("path", { d: SHAPES[name] }));
}

/** Returns a small button with a picture and a label.
 *  @param {keyof typeof SHAPES} shape
 *  @param {string} label
 *  @param {(event: any) => void} onclick */
export function iconButton(shape, label, onclick) {
  return h("button", { class: "quiet icon small", type: "button", "aria-label": label, title: label, onclick }, icon(shape));
}

/** Writes terms and their texts. Only what has changed is touched: a text that is selected stays so.
 *  @param {HTMLElement} list A `dl`.
 *  @param {[string, string][]} facts */
export function writeFacts(list, facts) {
  const written = [...list.querySelectorAll("dt")].map((name) => name.textContent);
  if (written.join("\n") !== facts.map(([name]) => name).join("\n")) {
    list.replaceChildren(...facts.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text))));
    return;
  }
  list.querySelectorAll("dd").forEach((place, index) => {
    if (place.textContent !== facts[index][1]) place.textContent = facts[index][1];
  });
}

/** Copies a text. Without TLS a browser gives no clipboard to another machine's page: the older way
 *  still works there, and where that fails too, the text is shown.
 *  @param {string} text
 *  @returns {Promise<boolean>} whether it was copied */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const box = h("textarea", { value: text, class: "unseen", readOnly: true });
    const focused = /** @type {HTMLElement | null} */ (document.activeElement);
    // What is behind an open dialog can't be selected.
    (document.querySelector("dialog[open]") ?? document.body).append(box);
    box.select();
    const copied = document.execCommand("copy");
    box.remove();
    focused?.focus();
    if (!copied) {
      at("code").textContent = text;
      at("code-dialog").showModal();
    }
    return copied;
  }
}

/** Copies a text when a button is pressed, and says so on it for a moment.
 *  @param {HTMLElement} button
 *  @param {string} text */
export async function copyBy(button, text) {
  if (!(await copyText(text))) return;
  button.classList.add("done");
  announce("Copied");
  setTimeout(() => button.classList.remove("done"), 1500);
}

/** Returns a button that copies what `text` returns.
 *  @param {() => string} text
 *  @param {string} [label] What screen readers say of it. */
export function copyButton(text, label) {
  const button = h(
    "button",
    { class: "quiet small copy", type: "button", "aria-label": label, onclick: () => copyBy(button, text()) },
    icon("copy"),
    h("span", {}, "Copy"),
  );
  return button;
}

/** Returns whether a key belongs to a word that is still composed, as Japanese and Chinese are. Safari
 *  says so of the key that ends the word by its code alone.
 *  @param {KeyboardEvent} event */
export const composes = (event) => event.isComposing || event.keyCode === 229;

/** Has screen readers say a text, once.
 *  @param {string} text */
export function announce(text) {
  at("announce").textContent = text;
}

/** Offers a text as a file.
 *  @param {string} name
 *  @param {string} type
 *  @param {string} text */
export function download(name, type, text) {
  const href = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

/** Asks a question that has to be confirmed.
 *  @param {string} title
 *  @param {string} yes
 *  @param {string} [text]
 *  @returns {Promise<boolean>} */
export function sure(title, yes, text = "") {
  const dialog = at("sure");
  at("sure-title").textContent = title;
  at("sure-text").textContent = text;
  at("sure-yes").textContent = yes;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
