// @ts-check
// The view Machines: this machine and its peers, with their memory, their models and queues. This one can
// be drained here; what operators do to another one needs that one's admin key, in its own console.

import { h } from "./dom.js";
import { many, size } from "./format.js";
import { budgetBar } from "./memory.js";

/** @typedef {Record<string, any>} Value */

const AGAIN_MS = 2000;
const REFUSED = [401, 403];
const LOADED = ["ready", "loading", "starting", "draining"];

/** Begins to show the machines.
 *  @param {HTMLElement} root
 *  @param {import("./console.js").Console} console
 *  @returns {() => void} what ends it */
export function mount(root, console) {
  /** @type {Value | null} */
  let status = null;
  /** @type {Value | null} */
  let known = null;
  let ended = false;
  let asking = false;
  let failed = false;
  const list = h("div", { class: "page", "aria-live": "off" });
  const button = h("button", { type: "button", onclick: drain }, "Drain");
  const own = makeCard("This machine", button);
  own.element.hidden = true;
  /** @type {Map<string, ReturnType<typeof makeCard<HTMLAnchorElement>>>} */
  const cards = new Map();
  const none = h("p", { class: "soft", hidden: true }, 'This machine has no peers. "lmx pair" on one machine and "lmx pair CODE@HOST" on another one make them.');
  const peers = h("div", { class: "page-peers" }, none);
  list.append(h("div", { class: "heading" }, h("h1", {}, "Machines")), own.element, peers);
  root.append(list);
  console.style("machines.css");

  const isDrained = () => Boolean(status?.system?.supervisor.drained);

  async function drain() {
    const drained = !isDrained();
    const detail = "Its models take no new requests. Peers that have the model answer them; others are refused.";
    if (drained && !(await console.confirm("Drain this machine?", "Drain", detail))) return;
    button.disabled = true;
    try {
      const answer = await console.request("admin/drain", { body: { drained } });
      console.announce(answer.message);
    } catch (error) {
      console.fail(error);
    } finally {
      button.disabled = false;
    }
  }

  function drawOwn() {
    const supervisor = status?.system?.supervisor;
    own.element.hidden = !supervisor;
    if (!status || !supervisor) return;
    button.textContent = isDrained() ? "Undrain" : "Drain";
    own.update(
      known?.machine ?? "This machine",
      isDrained() ? "drained" : "this machine",
      isDrained(),
      budgetBar(supervisor, status.models, console.colour),
      models(status.models.map((/** @type {Value} */ one) => ({ id: one.model, state: one.state, running: one.requests_active, waiting: one.waiting + one.requests_queued }))),
    );
  }

  function drawPeers() {
    if (!known) return;
    none.hidden = Boolean(known.peers.length);
    const names = new Set(known.peers.map((/** @type {Value} */ peer) => peer.name));
    for (const [name, card] of cards) {
      if (names.has(name)) continue;
      card.element.remove();
      cards.delete(name);
    }
    known.peers.forEach((/** @type {Value} */ peer, /** @type {number} */ place) => {
      const element = peerCard(peer);
      if (peers.children[place] !== element) peers.insertBefore(element, peers.children[place]);
    });
  }

  /** Writes what is known of a peer into its card, which it returns.
   *  @param {Value} peer */
  function peerCard(peer) {
    const state = !peer.answers ? peer.problem : peer.drained ? "drained" : "answers";
    // Its certificate is for lmx, and not for browsers: the same port has plain HTTP.
    const linked = peer.kind === "lmx" && /^https?:/.test(peer.url);
    const card = cards.get(peer.name) ?? makeCard(peer.name, h("a", { rel: "noreferrer", target: "_blank" }, "Its console"));
    cards.set(peer.name, card);
    if (!linked) card.action.remove();
    else {
      card.action.href = `${peer.url.replace(/^https:/, peer.pinned ? "http:" : "https:")}/#/models`;
      if (!card.action.parentElement) card.title.append(card.action);
    }
    const ended_ = Object.values(peer.forwarded).reduce((sum, /** @type {any} */ one) => sum + one, 0);
    card.update(
      peer.name,
      state,
      !peer.answers || peer.drained,
      peer.budget_bytes ? bar(peer) : "",
      models(peer.models.map((/** @type {Value} */ one) => ({ id: one.id, state: one.state, running: Math.min(one.running, one.rows), waiting: Math.max(0, one.running - one.rows) }))),
      h("p", { class: "soft small" }, `Forwarded there: ${peer.running} under way, ${ended_} ended.`),
    );
    return card.element;
  }

  /** @param {Value} peer */
  function bar(peer) {
    const reserved = Math.max(0, peer.budget_bytes - peer.free_bytes);
    const share = h("i", { class: "share c0" });
    share.style.width = `${Math.min(100, (100 * reserved) / peer.budget_bytes)}%`;
    const words = `${size(reserved)} of ${size(peer.budget_bytes)} reserved`;
    return h(
      "div",
      { class: "budget" },
      h("div", { class: "memory", role: "img", "aria-label": words }, share),
      h("div", { class: "caption" }, h("span", {}, words), h("span", {}, `free ${size(peer.free_bytes)}`)),
    );
  }

  /** @param {Value[]} all */
  function models(all) {
    const shown = all.filter((one) => LOADED.includes(one.state) || one.running || one.waiting);
    const rest = all.length - shown.length;
    const lines = shown.map((one) =>
      h(
        "li",
        {},
        h("span", { class: `swatch ${console.colour(one.id)}` }),
        h("span", { class: "mono name" }, one.id),
        h("span", { class: "soft" }, `${one.state}, ${one.running} running${one.waiting ? `, ${one.waiting} waiting` : ""}`),
      ),
    );
    if (rest) lines.push(h("li", { class: "soft" }, `${many(rest, shown.length ? "other model" : "model")} not loaded`));
    return h("ul", { class: "loaded", role: "list" }, ...lines);
  }

  /** Makes a card once; its action stays when the rest is written again, so that it keeps the focus.
   *  @template {HTMLElement} Action
   *  @param {string} label
   *  @param {Action} action */
  function makeCard(label, action) {
    const name = h("h2");
    const state = h("span");
    const title = h("div", { class: "machine-title" }, name, state, h("span", { class: "space" }), action);
    const element = h("section", { class: "card machine", "aria-label": label }, title);
    return {
      element,
      title,
      action,
      /** @param {string} machine
       *  @param {string} is
       *  @param {boolean} warns
       *  @param {...(Node | string)} rest */
      update(machine, is, warns, ...rest) {
        name.textContent = machine;
        state.className = warns ? "bad" : "good";
        state.textContent = is;
        while (title.nextSibling) title.nextSibling.remove();
        element.append(...rest);
      },
    };
  }

  async function load() {
    if (asking) return;
    asking = true;
    try {
      const found = await console.request("admin/peers");
      if (ended) return;
      known = found;
      failed = false;
      drawOwn();
      drawPeers();
    } catch (/** @type {any} */ error) {
      // A fault that lasts is said once.
      if (!ended && !failed) console.fail(error);
      failed = true;
      if (REFUSED.includes(error.status)) stop();
    } finally {
      asking = false;
    }
  }

  const ends = console.live.on("status", (now) => {
    status = now;
    drawOwn();
  });
  const ticking = setInterval(() => document.hidden || load(), AGAIN_MS);
  const stop = () => clearInterval(ticking);
  load();
  return () => {
    ended = true;
    stop();
    ends();
  };
}
