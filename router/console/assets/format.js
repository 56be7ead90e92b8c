// @ts-check
// Figures as people read them.

const GIB = 2 ** 30;
const MIB = 2 ** 20;

/** Returns a number of bytes with its unit.
 *  @param {number | null | undefined} bytes */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  if (Math.abs(bytes) >= GIB) return `${(bytes / GIB).toFixed(bytes >= 100 * GIB ? 0 : 1)} GiB`;
  return `${Math.round(bytes / MIB)} MiB`;
}

/** Returns a time that passes or has passed.
 *  @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${seconds.toFixed(2)} s`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 100 * 60) return `${Math.round(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} days`;
}

/** Returns a count, with its thousands apart.
 *  @param {number} number */
export const count = (number) => number.toLocaleString("en");

/** Returns a rate of tokens.
 *  @param {number | null | undefined} tokens_per_s */
export const rate = (tokens_per_s) =>
  tokens_per_s === null || tokens_per_s === undefined ? "–" : tokens_per_s.toFixed(tokens_per_s < 10 ? 1 : 0);

/** Returns a share of 1 as a percentage.
 *  @param {number | null | undefined} share */
export const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(100 * share)} %`);

/** Returns the time of day of a moment, with its date if that is not today. Both are local.
 *  @param {number} at_s Unix time. */
export function clock(at_s) {
  const when = new Date(1000 * at_s);
  const time = when.toLocaleTimeString("en-GB");
  if (when.toDateString() === new Date().toDateString()) return time;
  const [month, day] = [when.getMonth() + 1, when.getDate()].map((number) => String(number).padStart(2, "0"));
  return `${when.getFullYear()}-${month}-${day} ${time}`;
}

/** Returns "1 model", "2 models".
 *  @param {number} number
 *  @param {string} one */
export const many = (number, one) => `${count(number)} ${one}${number === 1 ? "" : "s"}`;
