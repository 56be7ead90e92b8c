// @ts-check
// The page Connect: for each client the lines to paste, with this server's address and a model of
// its, and a test of the requests that the client makes. clients.json has the clients, and
// docs/clients.md the same lines.

import { ApiError, listModels, url } from "./api.js";
import { check } from "./connect_checks.js";
import { at, copyButton, h } from "./dom.js";
import { openOptions } from "./options.js";

/** @typedef {{where: string, language: string, lines: string[]}} Block */
/** @typedef {{name: string, group: string, tests: string[], note: string, blocks: Block[]}} Client */

const LAST = "lmx-client";
const LOOPBACK = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/;

/** Begins to show the page.
 *  @param {HTMLElement} root
 *  @param {import("./console.js").Console} console
 *  @returns {() => void} a function that ends it */
export function mount(root, console) {
  const ending = new AbortController();
  const { signal } = ending;
  /** @type {any[]} */
  let models = [];
  /** @type {Client[]} */
  let clients = [];
  let tested = new AbortController();

  console.style("connect.css");
  const model = h("select", { id: "connect-model" });
  const notice = h("p", { class: "notice", role: "status", hidden: true });
  const groups = h("nav", { class: "clients", "aria-label": "Clients" });
  const panel = h("section", { class: "client" });
  const base = url("").replace(/\/$/, "");
  root.append(
    h(
      "div",
      { class: "connect" },
      h("h1", {}, "Connect"),
      h(
        "div",
        { class: "given" },
        h("div", {}, h("span", { class: "label" }, "Address"), address(base)),
        h("label", {}, h("span", { class: "label" }, "Model"), model),
      ),
      notice,
      h("div", { class: "columns" }, groups, panel),
    ),
  );

  const chosen = () => clients.find(({ name }) => name === localStorage.getItem(LAST)) ?? clients[0];

  async function listAll() {
    try {
      models = await listModels();
      say();
    } catch (/** @type {any} */ error) {
      models = [];
      say(error);
    }
    const chats = models.filter((one) => (one.kind ?? "chat") === "chat").map(({ id }) => id);
    const before = model.value;
    model.replaceChildren(
      ...chats.map((id) => h("option", { value: id }, id)),
      h("option", { value: "auto" }, "auto: whichever answers soonest"),
    );
    const last = localStorage.getItem("lmx-model") ?? "";
    model.value = [before, last, chats[0]].find((id) => id === "auto" || chats.includes(id)) ?? "auto";
    show();
  }

  /** Says what somebody who connects from elsewhere should know.
   *  @param {unknown} [error] */
  function say(error) {
    const { hostname } = new URL(base);
    const isKeyed = error instanceof ApiError && error.status === 401;
    notice.replaceChildren();
    if (isKeyed) {
      const give = h("button", { type: "button", onclick: () => openOptions("") }, "Give a key");
      notice.append("This server has API keys. The lines name the variable LMX_API_KEY, never the key. ", give);
    } else if (error instanceof Error) notice.append(error.message);
    else if (LOOPBACK.test(hostname)) {
      notice.append(
        "This address is for programs on this machine. For others give the server an address of the network (",
        h("code", {}, "server.host"),
        ") and keys, and open this page by that address: the lines then name it.",
      );
    }
    notice.hidden = !notice.childNodes.length;
  }

  function show() {
    const client = chosen();
    if (!client) return;
    tested.abort();
    const names = [...new Set(clients.map(({ group }) => group))];
    groups.replaceChildren(
      ...names.map((group) =>
        h(
          "div",
          { role: "group", "aria-label": group },
          h("p", { class: "label" }, group),
          ...clients.filter((one) => one.group === group).map((one) => button(one, one === client)),
        ),
      ),
    );
    panel.replaceChildren(...panelOf(client));
  }

  /** @param {Client} client
   *  @param {boolean} is */
  function button(client, is) {
    const onclick = () => {
      localStorage.setItem(LAST, client.name);
      show();
      /** @type {HTMLElement} */ (groups.querySelector("[aria-current]")).focus();
    };
    return h("button", { type: "button", class: "quiet", "aria-current": is ? "true" : null, onclick }, client.name);
  }

  /** @param {Client} client */
  function panelOf(client) {
    const results = h("ul", { class: "results" });
    const test = h("button", { type: "button", class: "main", onclick: () => run(client, test, results) }, "Test");
    const kinds = client.tests.length > 1 ? "the requests" : "the request";
    return [
      h("h2", {}, client.name),
      ...client.blocks.map((block) => blockOf(filled(block.lines.join("\n")), block)),
      client.note ? h("p", { class: "soft" }, filled(client.note)) : "",
      h("div", { class: "buttons" }, test, h("span", { class: "soft" }, `sends ${kinds} that it would make, to ${model.value}`)),
      results,
    ];
  }

  /** @param {Client} client
   *  @param {HTMLButtonElement} button
   *  @param {HTMLElement} results */
  async function run(client, button, results) {
    tested.abort();
    tested = new AbortController();
    const { signal } = tested;
    button.disabled = true;
    results.replaceChildren();
    try {
      for (const name of client.tests) {
        const item = h("li", { class: "pending" }, "Waiting for the answer");
        results.append(item);
        const outcome = await check(name, model.value, signal, (text) => (item.textContent = text));
        item.className = outcome.ok ? "well" : "bad";
        item.replaceChildren(
          h("span", { class: "mono" }, outcome.what),
          outcome.code && h("code", {}, outcome.code),
          outcome.text && h("span", {}, outcome.ok ? `“${outcome.text}”` : outcome.text),
          outcome.advice && h("span", { class: "soft" }, outcome.advice),
        );
        if (!outcome.ok) break;
      }
      const well = !results.querySelector(".bad");
      console.announce(well ? `${client.name}: it works` : `${client.name}: ${results.textContent}`);
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      button.disabled = false;
    }
  }

  /** Returns a text with what is known of this server in the place of what stands for it.
   *  @param {string} text */
  function filled(text) {
    const { hostname } = new URL(base);
    const idOf = (/** @type {string} */ kind) => models.find((one) => one.kind === kind)?.id;
    /** @type {Record<string, any>} */
    const values = {
      base,
      // A container's own loopback address is not this machine's.
      container: LOOPBACK.test(hostname) ? base.replace(hostname, "host.docker.internal") : base,
      model: model.value,
      context: models.find((one) => one.id === model.value)?.context_length,
      embedding: idOf("embedding"),
      transcription: idOf("transcription"),
      speech: idOf("speech"),
    };
    return text.replace(/\{\{(\w+)(?::([^}]*))?\}\}/g, (_, name, otherwise) => String(values[name] ?? otherwise));
  }

  const options = at("options");
  options?.addEventListener("close", listAll, { signal });
  model.addEventListener("change", show);
  fetch(url("ui/clients.json"), { signal })
    .then((response) => response.json())
    .then((table) => {
      clients = table.clients;
      return listAll();
    })
    .catch((error) => signal.aborted || say(error));

  return () => {
    ending.abort();
    tested.abort();
    root.replaceChildren();
  };
}

/** @param {string} base */
function address(base) {
  return h("span", { class: "address" }, h("code", {}, base), copyButton(() => base, "Copy the address"));
}

/** @param {string} text
 *  @param {Block} block */
function blockOf(text, block) {
  return h(
    "figure",
    { class: "code" },
    h("figcaption", {}, block.where, copyButton(() => text, `Copy: ${block.where}`)),
    h("pre", { tabIndex: 0 }, text),
  );
}
