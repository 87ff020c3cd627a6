// Installs Postgres with the search in this tab, stores the corpus, and searches while one types.

import { PGlite } from "@electric-sql/pglite";
import { vector } from "@electric-sql/pglite-pgvector";
import { createSearch } from "@second-brain-sql/client";
import { pgliteClient } from "@second-brain-sql/client/pglite";

const DIMENSIONS = 1024; // of the migrations
const started = performance.now();
const form = document.querySelector("form");
const list = document.querySelector("ol");
const status = document.querySelector("#status");
const progress = document.querySelector("#progress");
const seconds = () => ((performance.now() - started) / 1000).toFixed(1);

async function installed(migrations) {
  status.textContent = "Starting Postgres …";
  const names = ["prelude.sql", ...migrations.map((name) => `migrations/${name}`)];
  const files = Promise.all(names.map((name) => fetch(name).then((answer) => answer.text())));
  const database = await PGlite.create({ extensions: { vector } });
  status.textContent = "Installing the search …";
  for (const text of await files) await database.exec(text);
  return database;
}

async function stored(database, documents) {
  const service = createSearch(pgliteClient(database));
  for (const [place, { document, chunks }] of documents.entries()) {
    await service.upsert(document, chunks.map(padded));
    const left = documents.length - place - 1;
    progress.textContent = left > 0
      ? `${left} of ${documents.length} pages are not stored yet.`
      : "";
    if (place === 0) await opened();
    await new Promise((resolve) => setTimeout(resolve)); // lets the page draw and ask
  }
}

async function opened() {
  form.question.disabled = false;
  form.question.focus();
  form.addEventListener("input", ask);
  form.addEventListener("submit", (event) => event.preventDefault());
  await ask();
}

/** The model has fewer dimensions than the column; zeros do not change a cosine similarity. */
function padded(chunk) {
  const zeros = Array(DIMENSIONS - chunk.embedding.length).fill(0);
  return { ...chunk, embedding: [...chunk.embedding, ...zeros] };
}

function shown(hit) {
  const item = document.createElement("li");
  const title = document.createElement("strong");
  title.textContent = hit.heading ?? hit.title;
  const text = document.createElement("p");
  text.innerHTML = hit.snippet; // escaped by the database, except <mark>
  const ranks = document.createElement("small");
  const rank = (value) => value ?? "none";
  ranks.textContent = `${hit.external_key}: rank ${rank(hit.text_rank)} by words, ` +
    `${rank(hit.vector_rank)} by meaning`;
  item.append(title, text, ranks);
  return item;
}

let search;
let asked = 0;

async function ask() {
  const mine = ++asked;
  const before = performance.now();
  const question = form.question.value.trim();
  if (!question) return list.replaceChildren();
  try {
    const { hits, total_count, answer_confidence } = await search.searchMine(question, {
      match_count: 5,
      snippet: true,
      prefix_last: true,
      embedding_from_text: form.meaning.checked,
      one_per_document: form.once.checked,
    });
    if (mine !== asked) return; // a newer question
    list.replaceChildren(...hits.map(shown));
    const took = Math.round(performance.now() - before);
    status.textContent = `${total_count} hits in ${took} ms` +
      (hits.length > 0 ? `, answer confidence ${answer_confidence?.toFixed(2)}` : "") +
      `. First hit ${form.dataset.first ??= seconds()} s after the start.`;
  } catch (error) {
    status.textContent = `${error.message}. ${error.remedy ?? ""}`;
  }
}

try {
  const { documents, migrations } = await fetch("corpus.json").then((answer) => answer.json());
  const database = await installed(migrations);
  // Any user may see public rows.
  const claims = { sub: crypto.randomUUID() };
  search = createSearch(pgliteClient(database, { role: "authenticated", claims }));
  await stored(database, documents);
  await ask();
} catch (error) {
  status.textContent = `It did not start: ${error.message}`;
  throw error;
}
