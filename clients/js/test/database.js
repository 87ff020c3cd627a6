// A PGlite with the migrations as they are, and the search of each role on it.

import { PGlite } from "@electric-sql/pglite";
import { pg_trgm } from "@electric-sql/pglite/contrib/pg_trgm";
import { vector } from "@electric-sql/pglite-pgvector";
import { readdir, readFile } from "node:fs/promises";
import { basename } from "node:path";
import { createSearch } from "@second-brain-sql/client";
import { pgliteClient } from "@second-brain-sql/client/pglite";

export const ROOT = new URL("../../../", import.meta.url);
export const ANA = "00000000-0000-4000-8000-000000000001";
export const BEN = "00000000-0000-4000-8000-000000000002";
const DIMENSIONS = 1024; // of the migrations

let running;

/** All tests of a process share one: it takes seconds to start. */
export function installed() {
  return running ??= install();
}

async function install() {
  const database = await PGlite.create({ extensions: { pg_trgm, vector } });
  await database.exec(await prelude());
  await database.exec("create extension pg_trgm with schema extensions");
  for (const text of await migrations()) await database.exec(text);
  return database;
}

export function prelude() {
  return readFile(new URL("backend/src/second_brain/database/prelude.sql", ROOT), "utf8");
}

export async function migrations() {
  const folder = new URL("migrations/", ROOT);
  const ofServers = /^(citus|native_bm25)/;
  const names = (await readdir(folder, { recursive: true }))
    .filter((name) => name.endsWith(".sql") && !ofServers.test(name))
    .sort((one, other) => basename(one).localeCompare(basename(other)));
  return await Promise.all(names.map((name) => readFile(new URL(name, folder), "utf8")));
}

/** An embedding with these first numbers. */
export function embedding(...numbers) {
  return [...numbers, ...Array(DIMENSIONS - numbers.length).fill(0)];
}

export function asService(database, setup = {}) {
  return createSearch(pgliteClient(database), {
    function: "hybrid_search_knowledge_chunks",
    ...setup,
  });
}

export function asUser(database, sub, setup = {}) {
  return createSearch(pgliteClient(database, { role: "authenticated", claims: { sub } }), setup);
}

export function asVisitor(database) {
  return createSearch(pgliteClient(database, { role: "anon" }));
}

export async function emptied(database) {
  await database.exec("truncate public.knowledge_documents, public.knowledge_chunks cascade");
}
