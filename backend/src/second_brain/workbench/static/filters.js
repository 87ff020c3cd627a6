// The page Search: groups and conditions of a filter, which write the JSON of the field "filters".
"use strict";

const KINDS = ["all", "any", "not"];

// Return the conditions of a filter as a list: those of an object are written out.
function listed(given, columns) {
  if (Array.isArray(given)) return given;
  return Object.entries(given).map(([key, value]) => {
    if (KINDS.includes(key)) return { [key]: value };
    return { field: columns.includes(key) || key.startsWith("metadata.") ? key : `metadata.${key}`, op: "eq", value };
  });
}

// Return a condition, or a group as { kind, members }; "not" is none of its members.
function read(one, columns) {
  const [first, ...others] = Object.keys(one);
  const kind = others.length === 0 && KINDS.includes(first) ? first : undefined;
  if (kind === undefined && "field" in one) return one;
  const inner = kind === undefined ? one : one[kind];
  if (kind === "not") {
    const member = read(inner, columns);
    return { kind, members: member.kind === "any" ? member.members : [member] };
  }
  const members = listed(inner, columns).map((each) => read(each, columns));
  return kind === undefined && members.length === 1 ? members[0] : { kind: kind ?? "all", members };
}

function write(one) {
  if (one.kind === undefined) return one;
  const members = one.members.map(write);
  return one.kind === "not" ? { not: { any: members } } : { [one.kind]: members };
}

// Several values stand between commas; a text that JSON would read otherwise stands in quotes.
function parsed(text, field, takes) {
  const single = (part) => {
    const isOpen = field.startsWith("metadata") || field === "chunk_index";
    try {
      const value = JSON.parse(part);
      if (typeof value === "string" || isOpen) return value;
    } catch {
      // It is a text.
    }
    return part;
  };
  if (takes !== "several") return single(text.trim());
  if (text.trim().startsWith("[")) return single(text.trim());
  return text.split(",").map((part) => part.trim()).filter((part) => part !== "").map(single);
}

function shown(value) {
  if (value === undefined) return "";
  if (Array.isArray(value) && value.every((one) => typeof one !== "object" && !String(one).includes(","))) {
    return value.map(shown).join(", ");
  }
  if (typeof value !== "string") return JSON.stringify(value);
  try {
    JSON.parse(value);
    return JSON.stringify(value);
  } catch {
    return value.startsWith("[") || value !== value.trim() ? JSON.stringify(value) : value;
  }
}

function build() {
  const box = document.getElementById("builder");
  const input = document.querySelector('[name="filters"]');
  const columns = [...document.querySelectorAll("#builder-fields option")].map((one) => one.value);
  const copy = (id) => document.getElementById(id).content.firstElementChild.cloneNode(true);

  const adapt = (row) => {
    const takes = row.querySelector("[data-op]").selectedOptions[0].dataset.takes;
    const value = row.querySelector("[data-value]");
    value.hidden = takes === "nothing";
    value.placeholder = takes === "several" ? "one, another" : "value";
  };
  const add = (members, one) => {
    const element = copy(one.kind === undefined ? "builder-condition" : "builder-group");
    members.append(element);
    if (one.kind === undefined) {
      element.querySelector("[data-field]").value = one.field ?? "";
      element.querySelector("[data-op]").value = one.op ?? "eq";
      element.querySelector("[data-value]").value = shown(one.value);
      adapt(element);
    } else {
      element.querySelector("[data-kind]").value = one.kind;
      for (const member of one.members) add(element.querySelector("[data-members]"), member);
    }
    return element;
  };
  const of = (members) => [...members.children].flatMap((element) => {
    const kind = element.querySelector("[data-kind]");
    if (kind !== null) {
      const inner = of(element.querySelector("[data-members]"));
      return inner.length === 0 ? [] : [{ kind: kind.value, members: inner }];
    }
    const field = element.querySelector("[data-field]").value.trim();
    const op = element.querySelector("[data-op]");
    if (field === "") return [];
    const takes = op.selectedOptions[0].dataset.takes;
    const value = element.querySelector("[data-value]").value;
    return [{ field, op: op.value, ...(takes === "nothing" ? {} : { value: parsed(value, field, takes) }) }];
  });
  const update = () => {
    const whole = of(box.querySelector("[data-root]")).map(write);
    input.value = whole.length === 0 ? "" : JSON.stringify(whole);
  };
  const show = () => {
    const root = box.querySelector("[data-root]");
    root.replaceChildren();
    try {
      for (const one of listed(JSON.parse(input.value.trim() || "[]"), columns)) add(root, read(one, columns));
    } catch {
      root.replaceChildren("The filter is not JSON: correct it, or empty the field.");
    }
  };

  box.hidden = false;
  show();
  input.addEventListener("change", show);
  box.addEventListener("input", (event) => {
    const row = event.target.closest(".condition");
    if (row !== null) adapt(row);
    update();
  });
  box.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button === null) return;
    if ("remove" in button.dataset) {
      button.closest(".condition, .group").remove();
      update();
    } else {
      const group = button.closest(".group");
      const members = (group ?? box).querySelector("[data-members], [data-root]");
      const one = button.dataset.add === "group" ? { kind: "any", members: [{}] } : {};
      add(members, one).querySelector("[data-field]").focus();
    }
  });
}

if (typeof document !== "undefined") document.addEventListener("DOMContentLoaded", build);
