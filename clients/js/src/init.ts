#!/usr/bin/env node
// `npx @second-brain-sql/client init`: writes the SQL of this package into the migrations of a Supabase project,
// as `second-brain init` of the Python package does, and the same bytes. It connects to nothing.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { FUSIONS } from "../../../supabase/functions/_shared/contract.ts";

const USAGE = `Usage: npx @second-brain-sql/client init --dimensions N [options]

Write the migrations into your Supabase project: core, and the modules of --with. Files that are
there are not changed, so a newer version, or another module, adds only new ones.

  --dimensions N        size of your model's embeddings, 1 to 16000
  --with MODULES        modules beside core, with commas; all: those without a further extension
  --into FOLDER         default: supabase/migrations
  --fusion NAME         ${FUSIONS.join(", ")} or none: stored in a new install, for
                        searches that name none (default: auto)
  --vector-schema NAME  schema that has pgvector; default: that of existing files, or extensions

Then: supabase db push. The Python package has --schema, --declarative, --one-file and --check.`;

const EXTENSIONS = "extensions";
const PREFIX = "second_brain_";

interface File {
  path: string;
  version: string;
  name: string;
  sql: string;
}

/** What was wrong, and what to do: two sentences. */
class Refusal extends Error {}

function refuse(what: string, remedy: string): never {
  throw new Refusal(`${what}. ${remedy}`);
}

/** The SQL files of a folder and of those in it, in the order of their versions. */
function found(folder: string): File[] {
  const files = [];
  for (const path of present(folder, true)) {
    const [, version, name] = /^([0-9]+)_(.*)\.sql$/.exec(basename(path)) ?? [];
    if (version === undefined || name === undefined) continue;
    files.push({ path, version, name, sql: readFileSync(join(folder, path), "utf8") });
  }
  return files.sort((one, other) => one.version < other.version ? -1 : 1);
}

function present(folder: string, recursive: boolean): string[] {
  try {
    return readdirSync(folder, { recursive, encoding: "utf8" });
  } catch (error) {
    if ((error as { code?: string }).code === "ENOENT") return [];
    throw error;
  }
}

/** The value of a line such as "-- Module: facets." in the comment at the beginning. */
function headed(key: string, { sql }: File): string | undefined {
  const head = /^(?:--[^\n]*\n)+/.exec(sql)?.[0] ?? "";
  return new RegExp(`^-- ${key}: (.+)\\.$`, "m").exec(head)?.[1];
}

/** The migrations of core and of the chosen and present modules. */
function selected(text: string, written: (string | undefined)[]): File[] {
  const packaged = found(fileURLToPath(new URL("sql/", import.meta.url)));
  const needs = new Map<string, string | undefined>();
  for (const one of packaged) {
    const module = headed("Module", one);
    if (module) needs.set(module, headed("Needs", one));
  }
  const names = text.split(",").map((name) => name.trim()).filter((name) => name);
  const [unknown] = names.filter((name) => name !== "all" && !needs.has(name)).sort();
  if (unknown !== undefined) {
    const known = [...needs].map(([name, extension]) =>
      extension ? `${name} (needs ${extension})` : name
    );
    refuse(`there is no module '${unknown}'`, `The modules are: ${known.join(", ")}.`);
  }
  const wanted = new Set([
    ...[...needs.keys()].filter((name) =>
      names.includes(name) || (names.includes("all") && !needs.get(name))
    ),
    ...written,
  ]);
  for (const one of packaged) {
    const module = headed("Module", one);
    const fitting = headed("Only with", one)?.split(", ");
    if (!fitting || !wanted.has(module)) continue;
    const others = [...wanted].filter((name) => name && name !== module && !fitting.includes(name))
      .sort();
    if (others.length) {
      refuse(
        `module ${module} cannot be with ${others.join(", ")}, whose triggers or statements need ` +
          "all rows in one table",
        `Use core with ${fitting.join(", ")} alone.`,
      );
    }
  }
  return packaged.filter((one) => {
    const module = headed("Module", one);
    return module === undefined || wanted.has(module);
  });
}

function rendered(sql: string, dimensions: number, vectorSchema: string, fusion: string): string {
  if (fusion !== "none" && sql.includes("create table public.knowledge_settings (")) {
    sql += `
-- The fusion of this install's searches that name none.
insert into public.knowledge_settings (collection, fusion) values ('', '${fusion}');
`;
  }
  sql = sql.replace(/extensions\.vector\(\d+\)/g, `extensions.vector(${dimensions})`);
  return vectorSchema === EXTENSIONS ? sql : sql.replace(
    /\bextensions\.(?=\S)|(?<=schema )extensions\b|(?<=')\bextensions(?=')/g,
    (name) => name.replace(EXTENSIONS, vectorSchema),
  );
}

/** That many timestamps after all versions, the last one of the second before this one if it can. */
function* momentsAfter(versions: string[], count: number): Generator<string> {
  const text = (moment: number) => new Date(moment).toISOString().replace(/[-:T]|\..*/g, "");
  let moment = (Math.floor(Date.now() / 1000) - count) * 1000;
  const last = versions.reduce((one, other) => one < other ? other : one, "");
  if (last >= text(moment)) {
    const parts = /^(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)$/.exec(last)?.slice(1) ?? [];
    const [day, time] = [parts.slice(0, 3).join("-"), parts.slice(3).join(":")];
    moment = Date.parse(`${day}T${time}Z`) + 1000;
    // Date.parse takes February 30 for March 2.
    if (Number.isNaN(moment) || text(moment - 1000) !== last || text(moment).length !== 14) {
      refuse(
        `no timestamp sorts after the migration with version ${last}`,
        "Rename that migration to a timestamp (YYYYMMDDHHMMSS).",
      );
    }
  }
  for (;; moment += 1000) yield text(moment);
}

interface Options {
  dimensions: number;
  modules: string;
  into: string;
  fusion: string;
  vectorSchema: string | undefined;
}

function init({ dimensions, modules, into, fusion, vectorSchema }: Options): string[] {
  if (!(dimensions >= 1 && dimensions <= 16_000)) {
    refuse(
      `dimensions is ${dimensions}, but pgvector's type vector stores 1 to 16000`,
      "Request shorter embeddings from the model, or truncate and normalise those of a Matryoshka model.",
    );
  }
  const there = found(into);
  const isOurs = /^second_brain_\d+_\w+$/;
  const packaged = selected(
    modules,
    there.filter(({ path, name }) => path === basename(path) && isOurs.test(name))
      .map((one) => headed("Module", one)),
  );
  const handedOut = (one: File) => `${PREFIX}${one.version}_${one.name}`;
  const ours = new Set(packaged.map(handedOut));
  for (const { path, name, sql } of there) {
    for (const [, schema, size] of sql.matchAll(/\b(\w+)\.vector\((\d+)\)/g)) {
      if (isOurs.test(name)) vectorSchema ??= schema;
      if (ours.has(name) && Number(size) !== dimensions) {
        refuse(
          `${join(into, path)} has embeddings of ${size} dimensions, not ${dimensions}`,
          `Use --dimensions ${size}; or, if these were never pushed, delete them and run this again.`,
        );
      }
    }
  }
  vectorSchema ??= EXTENSIONS;
  if (!/^[a-z_][a-z0-9_]*$/.test(vectorSchema)) {
    refuse(
      `the schema of pgvector must be a name that needs no quotes, not '${vectorSchema}'`,
      "Use lower-case letters, digits and underscores.",
    );
  }
  // `supabase migration fetch` writes those of `migrate` under their own versions.
  const fetched = new Set(packaged.map(({ version, name }) => `${version}_${name}`));
  const names = new Set(
    there.map((one) => fetched.has(`${one.version}_${one.name}`) ? handedOut(one) : one.name),
  );
  const unwritten = packaged.filter((one) => !names.has(handedOut(one)));
  const moments = momentsAfter(there.map((one) => one.version), unwritten.length);
  mkdirSync(into, { recursive: true });
  return unwritten.map((one) => {
    const path = join(into, `${moments.next().value}_${handedOut(one)}.sql`);
    writeFileSync(path, rendered(one.sql, dimensions, vectorSchema, fusion));
    return path;
  });
}

function main(): void {
  const text = { type: "string" } as const;
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      dimensions: text,
      with: text,
      into: text,
      fusion: text,
      "vector-schema": text,
      help: { type: "boolean", short: "h" },
    },
  });
  if (values.help || !positionals.length) {
    console.log(USAGE);
    return;
  }
  if (positionals.join(" ") !== "init") {
    refuse(
      `there is no command '${positionals.join(" ")}'`,
      "This package has `second-brain init`.",
    );
  }
  if (!/^\d+$/.test(values.dimensions ?? "")) {
    const given = values.dimensions === undefined ? "is missing" : `is '${values.dimensions}'`;
    refuse(`--dimensions ${given}`, "Pass the size of your model's embeddings, such as 384.");
  }
  const fusion = values.fusion ?? "auto";
  if (![...FUSIONS, "none"].includes(fusion)) {
    refuse(`--fusion is '${fusion}'`, `Use one of ${FUSIONS.join(", ")}, none.`);
  }
  const written = init({
    dimensions: Number(values.dimensions),
    modules: values.with ?? "",
    into: values.into ?? "supabase/migrations",
    fusion,
    vectorSchema: values["vector-schema"],
  });
  for (const path of written) console.log(path);
  console.error(
    written.length ? "Next: supabase db push" : "Nothing to write: all migrations exist.",
  );
}

try {
  main();
} catch (error) {
  const isUsage = String((error as { code?: string }).code).startsWith("ERR_PARSE_ARGS");
  if (!isUsage && !(error instanceof Refusal)) throw error;
  console.error(`error: ${(error as Error).message}`);
  process.exitCode = isUsage ? 2 : 1;
}
