// The page Search: lines between the places of the same hit, and keys to move among the lists.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function draw() {
  const box = document.getElementById("lists");
  const links = document.getElementById("links");
  if (box === null || links.getClientRects().length === 0) return;
  const frame = box.getBoundingClientRect();
  const edge = (one) => {
    const at = one.getBoundingClientRect();
    return { left: at.left - frame.left, right: at.right - frame.left, middle: at.top - frame.top + 24 };
  };
  const fused = new Map([...box.querySelectorAll('[data-list="hybrid"]')].map((one) => [one.dataset.hit, one]));
  const paths = [];
  for (const hit of box.querySelectorAll('[data-list="vector"], [data-list="text"]')) {
    const other = fused.get(hit.dataset.hit);
    if (other === undefined) continue;
    const leg = hit.dataset.list;
    const [from, to] = leg === "vector" ? [edge(hit), edge(other)] : [edge(other), edge(hit)];
    const half = (to.left - from.right) / 2;
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", leg);
    path.dataset.link = hit.dataset.hit;
    path.setAttribute("d", `M${from.right} ${from.middle} C${from.right + half} ${from.middle} ${to.left - half} ${to.middle} ${to.left} ${to.middle}`);
    paths.push(path);
  }
  links.replaceChildren(...paths);
}

function mark(id) {
  const box = document.getElementById("lists");
  box.classList.toggle("has-active", id !== undefined);
  for (const one of box.querySelectorAll("[data-hit]")) one.classList.toggle("active", one.dataset.hit === id);
  for (const one of box.querySelectorAll("[data-link]")) one.classList.toggle("active", one.dataset.link === id);
}

const hitOf = (target) => (target instanceof Element ? target.closest("[data-hit]") : null);

// The hit that stands beside, or nearest to it, in the next list.
function aside(by) {
  const order = ["vector", "hybrid", "text"];
  const here = hitOf(document.activeElement);
  const from = here === null ? 1 : order.indexOf(here.dataset.list) + by;
  const list = [...document.querySelectorAll(`[data-list="${order[from]}"]`)];
  if (list.length === 0) return;
  const top = here === null ? 0 : here.getBoundingClientRect().top;
  const distance = (one) => Math.abs(one.getBoundingClientRect().top - top);
  const same = here && list.find((one) => one.dataset.hit === here.dataset.hit);
  (same ?? list.reduce((best, one) => (distance(one) < distance(best) ? one : best))).focus();
}

// In a list, j and k stay in it.
function along(by) {
  const here = hitOf(document.activeElement);
  const list = [...document.querySelectorAll(`[data-list="${here === null ? "hybrid" : here.dataset.list}"]`)];
  const all = list.length > 0 ? list : [...document.querySelectorAll("[data-hit]")];
  const at = all.indexOf(here);
  const next = at === -1 ? (by > 0 ? 0 : all.length - 1) : at + by;
  all[Math.min(Math.max(next, 0), all.length - 1)]?.focus();
}

document.addEventListener("DOMContentLoaded", () => {
  shortcuts.set("j", () => along(1));
  shortcuts.set("k", () => along(-1));
  shortcuts.set("h", () => aside(-1));
  shortcuts.set("l", () => aside(1));
  shortcuts.set("w", () => hitOf(document.activeElement)?.querySelector("[data-why]").click());
  shortcuts.set("Enter", (event) => {
    const target = event.target;
    if (target.matches("[data-hit]")) {
      const details = target.querySelector("details");
      details.open = !details.open;
    } else target.click();
  });

  const form = document.getElementById("search");
  // Fields that have their default stay out of the address.
  form.addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData]) {
      if (value === "" || value === form.elements[name].dataset?.default) event.formData.delete(name);
    }
  });
  for (const one of form.querySelectorAll(".controls select")) one.addEventListener("change", () => {
    if (form.elements.q.value.trim() !== "") form.requestSubmit();
  });

  const box = document.getElementById("lists");
  if (box === null) return;
  box.addEventListener("pointerover", (event) => mark(hitOf(event.target)?.dataset.hit));
  box.addEventListener("pointerleave", () => mark(hitOf(document.activeElement)?.dataset.hit));
  box.addEventListener("focusin", (event) => mark(hitOf(event.target)?.dataset.hit));
  box.addEventListener("focusout", () => mark(undefined));
  new ResizeObserver(draw).observe(box);
  draw();
});
