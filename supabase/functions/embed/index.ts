// embed: embeds the chunks that have no embedding yet. pg_cron calls it (schedule.sql), or whoever
// else has the service role's key. The database decides what is pending and what is stored.

import { createClient, type SupabaseClient } from "@supabase/supabase-js";
import type { Database, Json } from "../_shared/database.types.ts";
import { type Embed, hosted, isSame, type Queue, type Report, run } from "./logic.ts";

// The part of Supabase's runtime that is used here.
declare const Supabase: {
  ai: {
    Session: new (model: "gte-small") => {
      run(text: string, options: { mean_pool: true; normalize: true }): Promise<number[]>;
    };
  };
};

interface EmbedRequest {
  batch_size: number;
  collections: string[] | null;
  seconds: number;
}

const KEYS = ["batch_size", "collections", "seconds"];
const MOST_TEXTS = 256;
const MOST_SECONDS = 350;
// Longer than a call: what a killed function has claimed is handed out again after it.
const SECONDS_OF_LEASE = 60;
const MOST_ATTEMPTS = 3;

class Refusal extends Error {
  constructor(readonly status: number, message: string, readonly remedy: string) {
    super(message);
  }
}

function invalid(message: string): Refusal {
  return new Refusal(400, message, 'Send a JSON object such as {"seconds": 100}, or nothing.');
}

function whole(name: string, value: unknown, most: number): number {
  if (typeof value !== "number" || !Number.isInteger(value) || value < 1 || value > most) {
    throw invalid(`${name} must be a whole number from 1 to ${most}`);
  }
  return value;
}

function read(text: string): EmbedRequest {
  let body: unknown;
  try {
    body = text.trim() === "" ? {} : JSON.parse(text);
  } catch {
    body = null;
  }
  if (typeof body !== "object" || body === null || Array.isArray(body)) {
    throw invalid("the body must be a JSON object");
  }
  const { batch_size = 16, collections = null, seconds = 100, ...others } = body as Record<
    string,
    Json
  >;
  const [unknown] = Object.keys(others);
  if (unknown !== undefined) {
    throw invalid(`${unknown} is no key of a request, known are: ${KEYS.join(", ")}`);
  }
  if (
    collections !== null &&
    !(Array.isArray(collections) && collections.every((name) => typeof name === "string"))
  ) {
    throw invalid("collections must be an array of names");
  }
  return {
    batch_size: whole("batch_size", batch_size, MOST_TEXTS),
    collections: collections as string[] | null,
    seconds: whole("seconds", seconds, MOST_SECONDS),
  };
}

function model(): { name: string; embed: Embed } {
  const url = Deno.env.get("EMBEDDING_URL");
  if (!url) {
    const session = new Supabase.ai.Session("gte-small");
    const options = { mean_pool: true, normalize: true } as const;
    return {
      name: Deno.env.get("EMBEDDING_MODEL") || "gte-small",
      embed: (texts) => Promise.all(texts.map((text) => session.run(text, options))),
    };
  }
  const name = Deno.env.get("EMBEDDING_MODEL");
  const dimensions = Number(Deno.env.get("EMBEDDING_DIMENSIONS") || 0);
  if (!name || !Number.isInteger(dimensions) || dimensions < 0) {
    throw new Refusal(
      500,
      "EMBEDDING_MODEL is missing, or EMBEDDING_DIMENSIONS is no whole number",
      "Set both with supabase secrets set; EMBEDDING_DIMENSIONS is optional.",
    );
  }
  const key = Deno.env.get("EMBEDDING_KEY") ?? "";
  return { name, embed: hosted({ url, key, model: name, dimensions: dimensions || null }) };
}

function queue(client: SupabaseClient<Database>, name: string, asked: EmbedRequest): Queue {
  const worker = `embed ${crypto.randomUUID()}`;
  return {
    async claim() {
      const { data, error } = await client.rpc("claim_knowledge_embeddings", {
        model: name,
        max_chunks: asked.batch_size,
        lease: `${asked.seconds + SECONDS_OF_LEASE} seconds`,
        worker,
        collections: asked.collections ?? undefined,
      });
      if (error) throw failure("claim_knowledge_embeddings", error);
      return data;
    },
    async store(results) {
      for (let attempt = 1;; attempt++) {
        const { data, error } = await client.rpc("store_knowledge_embeddings", {
          model: name,
          results,
          worker,
        });
        if (!error) return data[0];
        // Without an SQLSTATE of its own, the database was not reached; 40...: repeat it.
        const isPassing = /^(|08.*|40.*|57P.*|PGRST00.*)$/.test(error.code ?? "");
        if (!isPassing || attempt === MOST_ATTEMPTS) {
          throw failure("store_knowledge_embeddings", error);
        }
        await new Promise((resolve) => setTimeout(resolve, 1000 * attempt * Math.random()));
      }
    },
  };
}

function failure(called: string, error: { code: string; message: string }): Refusal {
  console.error(`${called}:`, error.code, error.message);
  if (error.code === "PGRST202") {
    return new Refusal(500, error.message, "Apply the migrations: supabase db push.");
  }
  if (error.code === "22023") return new Refusal(500, error.message, "Change what it names.");
  return new Refusal(502, "the database failed", "Try again; the function's log has the cause.");
}

async function embed(request: Request): Promise<Report> {
  if (request.method !== "POST") {
    throw new Refusal(405, `${request.method} is not answered here`, "Send a POST.");
  }
  const key = Deno.env.get("SUPABASE_SERVICE_ROLE_KEY");
  if (!key) {
    throw new Refusal(
      500,
      "SUPABASE_SERVICE_ROLE_KEY is missing",
      "Supabase sets it; deploy again.",
    );
  }
  const [, token] = request.headers.get("Authorization")?.match(/^Bearer (.+)$/) ?? [];
  if (token === undefined) {
    throw new Refusal(401, "there is no Authorization header with a key", "Send the service key.");
  }
  if (!await isSame(token, key)) {
    throw new Refusal(403, "this is not the service role's key", "Send the service key.");
  }
  const asked = read(await request.text());
  const { name, embed } = model();
  const client = createClient<Database>(Deno.env.get("SUPABASE_URL")!, key, {
    // The schema of the install; the generated types are the same in every schema.
    db: { schema: (Deno.env.get("SECOND_BRAIN_SCHEMA") ?? "public") as "public" },
    auth: { persistSession: false, autoRefreshToken: false },
  });
  return await run(queue(client, name, asked), embed, asked.seconds);
}

Deno.serve(async (request) => {
  try {
    const { counts, ...report } = await embed(request);
    const status = report.problem === null ? 200 : 502;
    if (report.problem !== null) console.error("the model failed:", report.problem);
    return Response.json({ ...report, ...counts }, { status });
  } catch (error) {
    if (error instanceof Refusal) {
      const told = { error: error.message, remedy: error.remedy };
      return Response.json(told, { status: error.status });
    }
    console.error(error instanceof Error ? error.message : "unknown failure");
    const told = { error: "the function failed", remedy: "The function's log has the cause." };
    return Response.json(told, { status: 500 });
  }
});
