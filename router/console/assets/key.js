// @ts-check
// The key that this page sends: kept for the tab, or in the browser where that was wanted.

const NAME = "lmx-key";

/** Returns the key; an empty text if there is none. */
export function key() {
  return sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME) ?? "";
}

/** Returns whether the key outlives the tab. */
export const isRemembered = () => sessionStorage.getItem(NAME) === null && localStorage.getItem(NAME) !== null;

/** Returns a function that has the keys kept as they are now: the tab's, and the browser's for its
 *  other tabs. */
export function keptKey() {
  const kept = [sessionStorage, localStorage].map((storage) => ({ storage, text: storage.getItem(NAME) }));
  return () => {
    forgetKey();
    for (const { storage, text } of kept) if (text !== null) storage.setItem(NAME, text);
  };
}

/** @param {string} text
 *  @param {boolean} remember */
export function useKey(text, remember) {
  forgetKey();
  (remember ? localStorage : sessionStorage).setItem(NAME, text);
}

export function forgetKey() {
  sessionStorage.removeItem(NAME);
  localStorage.removeItem(NAME);
}

/** Returns the headers of a request.
 *  @returns {Record<string, string>} */
export function bearer() {
  return key() ? { Authorization: `Bearer ${key()}` } : {};
}

/** Returns what is wrong with a text as a key, which has printable characters of ASCII alone and no
 *  space; nothing if it may be one. A mail program changes hyphens and quotes.
 *  @param {string} text */
export function faultOfKey(text) {
  if (!text) return "Paste the key here.";
  const characters = [...text];
  const place = characters.findIndex((one) => !/^[!-~]$/.test(one));
  if (place < 0) return "";
  const found = characters[place];
  const shown = /\s/.test(found) ? "a space" : `“${found}”`;
  return (
    `No key has ${shown}, which is character ${place + 1} here. A program that this text went ` +
    "through may have changed it: copy the key from where it was made."
  );
}
