// The page Judge: one key for each mark, stored without loading the page again.
"use strict";

const marks = [];

const items = () => [...document.querySelectorAll("[data-chunk]")];

function current() {
  const focused = document.activeElement?.closest?.("[data-chunk]");
  return focused ?? items().find((one) => one.dataset.grade === "") ?? items()[0];
}

function show(item, grade) {
  item.dataset.grade = grade;
  for (const button of item.querySelectorAll("button[name=grade]")) {
    if (button.value === "") button.hidden = grade === "";
    else button.setAttribute("aria-pressed", String(button.value === grade));
  }
  const marked = items().filter((one) => one.dataset.grade !== "").length;
  document.getElementById("marked").textContent = String(marked);
  document.getElementById("progress").value = marked;
}

// Marks are sent one after the other, so that a quick undo does not overtake its mark.
let sending = Promise.resolve();

async function send(item, grade) {
  const form = item.querySelector("form");
  const body = new URLSearchParams(new FormData(form));
  body.set("grade", grade);
  const response = await fetch(form.action, { method: "POST", body, headers: { accept: "application/json" } });
  if (response.status !== 204) throw new Error(String(response.status));
}

function store(item, grade, said) {
  const before = item.dataset.grade;
  show(item, grade);
  item.classList.remove("failed");
  sending = sending.then(() => send(item, grade)).then(
    () => announce(said()),
    () => {
      if (item.dataset.grade === grade) show(item, before);
      item.classList.add("failed");
      announce("The mark was not stored");
    },
  );
}

function give(item, grade) {
  const before = item.dataset.grade;
  if (before === grade) return;
  marks.push([item, before]);
  store(item, grade, () => {
    const left = items().filter((one) => one.dataset.grade === "").length;
    return left === 0 ? "All chunks are judged" : `${left} left`;
  });
  const all = items();
  const after = [...all.slice(all.indexOf(item) + 1), ...all].find((one) => one.dataset.grade === "");
  (after ?? document.getElementById("next")).focus();
}

function undo() {
  const last = marks.pop();
  if (last === undefined) {
    announce("Nothing to undo");
    return;
  }
  const [item, before] = last;
  item.focus();
  store(item, before, () => "Undone");
}

document.addEventListener("DOMContentLoaded", () => {
  for (const [grade, keys] of [["2", "1r"], ["1", "2p"], ["0", "3w"]]) {
    for (const key of keys) shortcuts.set(key, () => {
      const item = current();
      if (item !== undefined) give(item, grade);
    });
  }
  shortcuts.set("u", undo);
  // The next question is chosen by what is stored.
  shortcuts.set("n", () => sending.then(() => document.getElementById("next").click()));
  for (const item of items()) item.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    give(item, event.submitter.value);
  });
  const first = items().find((one) => one.dataset.grade === "");
  first?.focus({ preventScroll: true });
});
