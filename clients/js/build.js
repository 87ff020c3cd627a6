// Builds dist/: index.js is src/index.ts with the modules of the Edge Functions that it imports, the
// other entries import it. Declarations keep their comments. Code keeps the names of functions,
// classes, methods and properties, for stack traces; local names are shortened. init.js is the command,
// with the migrations in sql/ and what PGlite needs before them.

import { execFileSync } from "node:child_process";
import { chmodSync, cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { minify } from "terser";

const here = new URL("./", import.meta.url);
const [compiled, dist] = ["build/", "dist/"].map((name) => new URL(name, here));
const SHARED = ["contract", "errors", "hybrid_search", "models"].map((name) =>
  `supabase/functions/_shared/${name}`
);
const MODULES = { index: SHARED, ai: [], init: [], langchain: [], pglite: [] };
const PRELUDE = "backend/src/second_brain/database/prelude.sql";

function tsc(...options) {
  const shell = process.platform === "win32";
  execFileSync("tsc", options, { cwd: here, stdio: "inherit", shell });
}

/** The modules as one: what they import from each other is in it. */
function joined(name, extension) {
  const parts = [...MODULES[name], `clients/js/src/${name}`].map((part) =>
    readFileSync(new URL(part + extension, compiled), "utf8")
  );
  const between = /^(import|export) [^;]*? from "\.[^"]*";\n/gm;
  return name === "index"
    ? parts.join("").replace(between, "")
    : parts.join("").replace(/(?<= from ")\.[^"]*(?=")/g, "./index.js");
}

for (const folder of [compiled, dist]) rmSync(folder, { recursive: true, force: true });
mkdirSync(dist);
const into = ["--outDir", fileURLToPath(compiled)];
tsc(...into, "--emitDeclarationOnly");
tsc(...into, "--declaration", "false", "--removeComments");
for (const name of Object.keys(MODULES)) {
  const types = joined(name, ".d.ts").replace(/^( +)\1/gm, "$1"); // two spaces for four
  // What is marked internal is not exported.
  const code = joined(name, ".js")
    .replace(/^export (?=const (\w+))/gm, (all, one) => types.includes(`const ${one}`) ? all : "");
  const small = await minify(code, {
    module: true,
    ecma: 2020,
    compress: { passes: 3 },
    keep_classnames: true,
    keep_fnames: true,
    // Node prints the line of an uncaught error.
    format: { max_line_len: 120 },
  });
  writeFileSync(new URL(`${name}.js`, dist), small.code);
  writeFileSync(new URL(`${name}.d.ts`, dist), types);
}
rmSync(new URL("init.d.ts", dist));
chmodSync(new URL("init.js", dist), 0o755);
const root = new URL("../../", here);
cpSync(new URL("migrations/", root), new URL("sql/", dist), { recursive: true });
cpSync(new URL(PRELUDE, root), new URL("prelude.sql", dist));
tsc("--ignoreConfig", "--noEmit", "--target", "es2022", "dist/index.d.ts");
rmSync(compiled, { recursive: true });
