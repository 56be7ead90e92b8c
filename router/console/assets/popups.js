// @ts-check
// Menus that open below a button.

document.addEventListener("click", (event) => closePopups(/** @type {Node} */ (event.target)));
document.addEventListener("keydown", (event) => event.key === "Escape" && closePopups(null) && event.preventDefault());

/** Closes every menu but the one that was clicked in. Returns whether any was open.
 *  @param {Node | null} inside */
export function closePopups(inside) {
  const open = document.querySelectorAll(".popup:not([hidden])");
  for (const popup of open) {
    const menu = /** @type {HTMLElement} */ (popup.parentElement);
    if (inside && menu.contains(inside) && !popup.contains(inside)) continue;
    const button = /** @type {HTMLElement | null} */ (menu.querySelector("[aria-expanded]"));
    // What is hidden has no focus: it would begin again at the top of the page.
    if (popup.contains(document.activeElement)) button?.focus();
    /** @type {HTMLElement} */ (popup).hidden = true;
    button?.setAttribute("aria-expanded", "false");
  }
  return open.length > 0;
}

/** Has a button open a menu. Both stand in one element of the class `menu`.
 *  @param {HTMLElement} button
 *  @param {HTMLElement} popup */
export function menu(button, popup) {
  button.addEventListener("click", () => {
    const opens = popup.hidden;
    closePopups(null);
    popup.hidden = !opens;
    button.setAttribute("aria-expanded", String(opens));
    if (opens) popup.querySelector("button")?.focus();
  });
}
