// The examples of docs/clients.md in JavaScript run on PGlite, and print what stands below them.
// Only the client and the model are others.

import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { pgliteClient } from "second-brain/pglite";
import { emptied, installed, migrations, prelude, ROOT } from "./database.js";
import { modelThatAsks } from "./model.js";

const page = await readFile(new URL("docs/clients.md", ROOT), "utf8");
const EXAMPLE = /^```js\n(.*?)^```\n\n```text\n(.*?)^```$/gms;
const examples = [...page.matchAll(EXAMPLE)].map(([, code, printed]) => [code, printed]);

describe("docs/clients.md", () => {
  const was = process.cwd();
  let folder;

  before(async () => {
    const database = await installed();
    await emptied(database);
    globalThis.clientOfTest = pgliteClient(database);
    globalThis.modelOfTest = modelThatAsks({ query: "cancel an invoice" });
    folder = await mkdtemp(join(tmpdir(), "page-"));
    await writeFile(join(folder, "prelude.sql"), await prelude());
    await writeFile(join(folder, "second-brain.sql"), (await migrations()).join("\n"));
    process.chdir(folder);
  });

  after(async () => {
    process.chdir(was);
    await rm(folder, { recursive: true });
  });

  test("it has examples", () => assert.ok(examples.length >= 3));

  for (const [place, [code, printed]] of examples.entries()) {
    test(`example ${place + 1}`, async (context) => {
      const file = new URL(`example_${place}.tmp.js`, import.meta.url);
      const lines = [];
      context.mock.method(console, "log", (...said) => lines.push(said.join(" ")));
      await writeFile(
        file,
        code.replace(/createClient\(.*?\)/s, "globalThis.clientOfTest")
          .replace(/model: ".*?"/, "model: globalThis.modelOfTest"),
      );
      try {
        await import(file);
      } finally {
        await rm(file);
      }
      assert.equal(lines.join("\n") + "\n", printed);
    });
  }
});
