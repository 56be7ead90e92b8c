// @ts-check
// Cuts Markdown into blocks that can be rendered each by itself, as it grows.

const FENCE = /^ {0,3}(`{3,}|~{3,})([^\n]*)$/;
const INDENTED = /^(\s|$)/;
/** What code may begin behind on one line. */
const MARKS = /^(\s*([-*+]|\d{1,9}[.)])\s+)+/;
const ITEM = /^ {0,3}([-*+]|\d{1,9}[.)])(\s|$)/;

/** Returns the blocks of a text that no further text changes, and the rest: a block ends with an
 *  empty line outside of code, where the line after it begins something new. A list continues over
 *  empty lines.
 *  @param {string} text
 *  @returns {{closed: string[], rest: string}} */
export function cut(text) {
  const closed = [];
  const lines = text.split("\n");
  let begin = 0;
  let fence = "";
  let list = false;
  let blank = false;
  // The last line may still grow.
  for (let place = 0; place < lines.length - 1; place += 1) {
    const line = lines[place];
    if (fence) {
      if (ends(line, fence)) fence = "";
      continue;
    }
    if (!line.trim()) {
      blank = true;
      continue;
    }
    const goesOn = list && (INDENTED.test(line) || ITEM.test(line));
    if (blank && place > begin && !goesOn) {
      closed.push(lines.slice(begin, place).join("\n"));
      begin = place;
      list = false;
    }
    blank = false;
    list ||= ITEM.test(line);
    const opened = line.replace(MARKS, "").trimStart().match(FENCE);
    if (opened && !(opened[1][0] === "`" && opened[2].includes("`"))) fence = opened[1];
  }
  return { closed, rest: lines.slice(begin).join("\n") };
}

/** @param {string} line
 *  @param {string} fence */
function ends(line, fence) {
  const mark = line.trim();
  return mark.length >= fence.length && mark === fence[0].repeat(mark.length);
}
