// @ts-check
// The key of this browser, and whether it keeps conversations.

import { stopAll } from "./answers.js";
import { at, sure } from "./dom.js";
import { faultOfKey, forgetKey, isRemembered, key, keptKey, useKey } from "./key.js";
import { refreshModels } from "./models.js";
import { keeps, listConversations, removeAll, setKeeps } from "./store.js";

const WRONG = "This key is not right: the server does not know it.";

/** @type {() => void} */
let taken = () => {};

/** Begins to listen.
 *  @param {() => void} emptied Called when the conversations were deleted.
 *  @param {() => void} onTaken Called when the server took a key. */
export function listen(emptied, onTaken) {
  taken = onTaken;
  const dialog = at("options");
  at("open-options").addEventListener("click", () => openOptions(""));
  at("options-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    give();
  });
  at("forget").addEventListener("click", async () => {
    forgetKey();
    await refreshModels();
    showKey("");
  });
  at("keep").addEventListener("change", async () => {
    const wanted = at("keep").checked;
    const many = wanted ? 0 : (await listConversations()).length;
    const text = "What is kept is deleted, and later conversations end with this tab.";
    if (many && !(await sure("Keep no conversations?", "Delete and keep none", text))) {
      at("keep").checked = true;
      return;
    }
    if (!wanted) stopAll();
    await setKeeps(wanted).catch((error) => showFault(`The browser did not keep all that is open: ${error?.message}`));
    if (many) emptied();
    showStorage();
  });
  at("delete-all").addEventListener("click", async () => {
    if (!(await sure("Delete all conversations?", "Delete all", "They can't be brought back."))) return;
    stopAll();
    await removeAll();
    emptied();
    showStorage();
  });
}

/** Opens the dialog because a key is needed, or was requested.
 *  @param {string} fault */
export function openOptions(fault) {
  // What was typed and chosen in it stays.
  if (at("options").open) return fault && showFault(fault);
  showKey(fault);
  showStorage();
  at("remember").checked = isRemembered() || !key();
  at("options").showModal();
  at("key").focus();
}

/** Says that the key which is sent is missing, or not right. */
export function askForKey() {
  openOptions(key() ? WRONG : "");
}

async function give() {
  const given = at("key").value.trim();
  const fault = faultOfKey(given);
  if (fault) return showFault(fault);
  const putBack = keptKey();
  useKey(given, at("remember").checked);
  // While one is checked, Enter gives no other one.
  at("key-save").disabled = true;
  const error = await refreshModels();
  at("key-save").disabled = false;
  if (!error) {
    taken();
    at("options").close();
    at("say").focus();
  } else {
    // One that was right stays; nothing that is wrong is kept.
    putBack();
    showFault(error.status === 401 ? WRONG : error.message);
    at("key").select();
  }
}

/** @param {string} fault */
function showFault(fault) {
  at("key-fault").textContent = fault;
  at("key-fault").hidden = !fault;
}

/** @param {string} fault */
function showKey(fault) {
  showFault(fault);
  at("key").value = fault ? at("key").value : "";
  at("key-state").textContent = key()
    ? `A key is set, kept ${isRemembered() ? "in this browser" : "in this tab"}.`
    : "No key is set. It is needed where the server has API keys.";
  at("forget").hidden = !key();
}

async function showStorage() {
  at("keep").checked = keeps();
  const many = (await listConversations()).length;
  at("keep-state").textContent = keeps()
    ? `${many} ${many === 1 ? "conversation" : "conversations"}, on this machine alone.`
    : "Nothing is kept: conversations end with this tab.";
  at("delete-all").hidden = !many;
}
