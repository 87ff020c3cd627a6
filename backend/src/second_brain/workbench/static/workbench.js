// What all pages need: keyboard shortcuts, help, copying. Every page works without this file, too.
"use strict";

const isTyping = (target) =>
  target instanceof Element && target.closest("input, select, textarea, [contenteditable]") !== null;

function announce(text) {
  document.getElementById("announcement").textContent = text;
}

// A page adds its own keys: shortcuts.set("j", action).
const shortcuts = new Map();

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const help = document.getElementById("help");
  const action = shortcuts.get(event.key);
  if (action === undefined || (help.open && event.key !== "?")) return;
  event.preventDefault();
  action(event);
});

shortcuts.set("?", () => {
  const help = document.getElementById("help");
  if (help.open) help.close();
  else help.showModal();
});
shortcuts.set("/", () => {
  const field = document.querySelector("[data-focus-key]");
  if (field !== null) {
    field.focus();
    field.select();
  }
});

// j and k move among the elements with data-item, in the order of the page.
function step(by) {
  const items = [...document.querySelectorAll("[data-item]")].filter((one) => one.offsetParent !== null);
  if (items.length === 0) return;
  const at = items.findIndex((one) => one.contains(document.activeElement));
  const next = at === -1 ? (by > 0 ? 0 : items.length - 1) : at + by;
  items[Math.min(Math.max(next, 0), items.length - 1)].focus();
}
shortcuts.set("j", () => step(1));
shortcuts.set("k", () => step(-1));

document.addEventListener("click", async (event) => {
  const button = event.target instanceof Element ? event.target.closest("[data-copy]") : null;
  if (button === null) return;
  const text = document.getElementById(button.dataset.copy).textContent;
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied");
    button.dataset.label ??= button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = button.dataset.label; }, 1500);
  } catch {
    // Without the permission, the text is shown and selected, so that Ctrl+C copies it.
    const shown = document.getElementById(button.dataset.copy);
    for (let box = shown.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    getSelection().selectAllChildren(shown);
    announce("Selected: copy it with Ctrl+C");
  }
});

// An element with data-fragment is replaced by the HTML at that address once the page is there.
async function load(box) {
  try {
    const response = await fetch(box.dataset.fragment, { headers: { accept: "text/html" } });
    if (!response.ok) throw new Error(String(response.status));
    const parsed = new DOMParser().parseFromString(await response.text(), "text/html");
    box.replaceChildren(...parsed.body.childNodes);
  } catch {
    const again = document.createElement("button");
    again.type = "button";
    again.className = "quiet";
    again.textContent = "Try again";
    again.addEventListener("click", () => load(box));
    box.replaceChildren("This part could not be loaded. ", again);
  }
  box.removeAttribute("aria-busy");
}

document.addEventListener("DOMContentLoaded", () => {
  document.getElementById("show-help").addEventListener("click", shortcuts.get("?"));
  for (const box of document.querySelectorAll("[data-fragment]")) load(box);
});
