// Turns Markdown into elements. Only text is ever put into the page, never HTML: what a model writes
// can't run, load or style anything.
//
// It knows what models write: paragraphs, headings, lists, quotes, fenced code, tables as text, and
// within a line code, bold, italic and links. What it does not know is shown as it is.

const FENCE = /^\s*(```+|~~~+)\s*([\w+#.-]*)\s*$/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^\s*([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^\s*>\s?(.*)$/;
const INLINE = /(`+)(.+?)\1|\*\*(.+?)\*\*|\*([^*\s][^*]*)\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/g;

const MOST_QUOTES = 20; // A model in a loop writes thousands: what is deeper is shown as it is.
const LONGEST_INLINE = 20_000; // No paragraph is longer, and the marks in it would take too long.

/** Returns a function that draws a text into an element. As long as the text grows, what ends with an
 *  empty line is drawn once: no later line changes it. */
export function drawing(box) {
  let shown = "";
  let nodes = 0;
  return (text) => {
    if (!text.startsWith(shown)) {
      shown = "";
      nodes = 0;
    }
    while (box.childNodes.length > nodes) box.lastChild.remove();
    const { fragment, whole } = blocks(text.slice(shown.length), 0);
    nodes += whole.nodes;
    shown += whole.text;
    box.append(fragment);
  };
}

/** Returns a fragment with the elements of a text, and which part of both no further text changes. */
function blocks(text, depth) {
  const fragment = document.createDocumentFragment();
  const lines = text.split("\n");
  const whole = { text: "", nodes: 0 };
  let at = 0;
  let end = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = line.match(FENCE);
    if (fence) {
      at = code(fragment, lines, at + 1, fence);
    } else if (HEADING.test(line)) {
      const [, marks, title] = line.match(HEADING);
      inline(append(fragment, `h${Math.min(6, marks.length + 2)}`), title);
      at += 1;
    } else if (ITEM.test(line)) {
      at = list(fragment, lines, at);
    } else if (QUOTE.test(line) && depth < MOST_QUOTES) {
      const quoted = [];
      for (; at < lines.length && QUOTE.test(lines[at]); at++) quoted.push(lines[at].match(QUOTE)[1]);
      append(fragment, "blockquote").append(blocks(quoted.join("\n"), depth + 1).fragment);
    } else if (line.trim() === "") {
      at += 1;
      if (at < lines.length) {
        // The last line may go on.
        whole.nodes = fragment.childNodes.length;
        end = at;
      }
    } else {
      at = paragraph(fragment, lines, at);
    }
  }
  whole.text = lines.slice(0, end).map((line) => `${line}\n`).join("");
  return { fragment, whole };
}

function append(parent, name) {
  return parent.appendChild(document.createElement(name));
}

function code(parent, lines, at, [, fence, language]) {
  const held = [];
  while (at < lines.length && !lines[at].trim().startsWith(fence)) held.push(lines[at++]);
  const box = append(parent, "pre");
  if (language) box.dataset.language = language;
  append(box, "code").textContent = held.join("\n");
  return at + 1;
}

function list(parent, lines, at) {
  const made = append(parent, /\d/.test(lines[at].match(ITEM)[1]) ? "ol" : "ul");
  for (; at < lines.length; at++) {
    const item = lines[at].match(ITEM);
    if (item) {
      inline(append(made, "li"), item[2]);
    } else if (lines[at].trim() !== "" && /^\s/.test(lines[at])) {
      made.lastChild.append("\n");
      inline(made.lastChild, lines[at].trim());
    } else {
      break;
    }
  }
  return at;
}

function paragraph(parent, lines, at) {
  const held = [];
  const ends = (line) => line.trim() === "" || FENCE.test(line) || HEADING.test(line) || ITEM.test(line);
  do held.push(lines[at++]);
  while (at < lines.length && !ends(lines[at]));
  inline(append(parent, "p"), held.join("\n"));
  return at;
}

function inline(parent, text) {
  if (text.length > LONGEST_INLINE) return parent.append(text);
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    parent.append(text.slice(from, found.index));
    const [whole, , coded, bold, italic, label, url] = found;
    if (coded !== undefined) {
      append(parent, "code").textContent = coded;
    } else if (bold !== undefined) {
      inline(append(parent, "strong"), bold);
    } else if (italic !== undefined) {
      inline(append(parent, "em"), italic);
    } else {
      const link = append(parent, "a");
      link.href = url;
      link.rel = "noreferrer noopener";
      link.target = "_blank";
      link.textContent = label;
    }
    from = found.index + whole.length;
  }
  parent.append(text.slice(from));
}
