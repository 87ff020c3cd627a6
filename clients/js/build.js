// Builds dist/: compiles src/ with the modules of the Edge Functions that it imports, and puts all
// into one folder. Declarations keep the names of the sources, so their imports are rewritten too.

import { execFileSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const here = new URL("./", import.meta.url);
const [compiled, dist] = ["build/", "dist/"].map((name) => new URL(name, here));

function tsc(...options) {
  const given = ["--outDir", fileURLToPath(compiled), ...options];
  execFileSync("tsc", given, { cwd: here, stdio: "inherit", shell: process.platform === "win32" });
}

for (const folder of [compiled, dist]) rmSync(folder, { recursive: true, force: true });
mkdirSync(dist);
tsc("--emitDeclarationOnly");
tsc("--declaration", "false", "--removeComments");
for (const folder of ["clients/js/src/", "supabase/functions/_shared/"]) {
  for (const name of readdirSync(new URL(folder, compiled))) {
    const text = readFileSync(new URL(folder + name, compiled), "utf8");
    const code = text.replace(/(?<=from ")\.[^"]*\/(\w+)\.[jt]s(?=")/g, "./$1.js");
    writeFileSync(new URL(name, dist), code);
  }
}
rmSync(compiled, { recursive: true });
