// The page Measure: the progress of a run, and choices that apply at once.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  for (const one of document.querySelectorAll("select[data-submits]")) {
    one.addEventListener("change", () => one.form.requestSubmit());
  }
  const box = document.querySelector("[data-running]");
  if (box === null) return;
  let failures = 0;
  const timer = setInterval(async () => {
    try {
      const response = await fetch("/measure/progress", { headers: { accept: "text/html" } });
      if (response.status === 204) {
        clearInterval(timer);
        location.reload();
        return;
      }
      if (!response.ok) throw new Error(String(response.status));
      const parsed = new DOMParser().parseFromString(await response.text(), "text/html");
      box.replaceChildren(...parsed.body.childNodes);
      failures = 0;
    } catch {
      failures += 1;
      if (failures > 5) {
        clearInterval(timer);
        box.textContent = "The workbench does not answer. Load the page again.";
      }
    }
  }, 700);
});
