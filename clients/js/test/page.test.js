// The examples of docs/javascript.md in JavaScript run on PGlite, and print what stands below them.
// Only the client and the model are others.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { pgliteClient } from "@second-brain-sql/client/pglite";
import { emptied, installed, ROOT } from "./database.js";
import { modelThatAsks } from "./model.js";

const page = await readFile(new URL("docs/javascript.md", ROOT), "utf8");
const EXAMPLE = /^```js\n(.*?)^```\n\n```text\n(.*?)^```$/gms;
const examples = [...page.matchAll(EXAMPLE)].map(([, code, printed]) => [code, printed]);

// That of the page's own `init`; the database of the tests has another one.
const [, DIMENSIONS] = /init --dimensions (\d+)/.exec(page);

describe("docs/javascript.md", () => {
  const was = process.cwd();
  let folder;

  before(async () => {
    const database = await installed();
    await emptied(database);
    globalThis.clientOfTest = pgliteClient(database);
    globalThis.modelOfTest = modelThatAsks({ query: "cancel an invoice" });
    folder = await mkdtemp(join(tmpdir(), "page-"));
    process.chdir(folder);
    const [, init] = /^## PGlite$.*?^npx @second-brain-sql\/client (init .*?)$/ms.exec(page);
    const command = fileURLToPath(new URL("../dist/init.js", import.meta.url));
    execFileSync(process.execPath, [command, ...init.split(" ")], { stdio: "pipe" });
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
          .replace(/model: ".*?"/, "model: globalThis.modelOfTest")
          .replace(`vectorSize: ${DIMENSIONS}`, "vectorSize: 1024"),
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
