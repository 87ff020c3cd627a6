// search: a question of a signed-in user in, the passages that this user may see out.
// It embeds the question with gte-small, which Supabase's Edge Functions have built in, and makes
// one call of search_my_knowledge_chunks with the user's own token. It ranks and filters nothing.

import { createClient, type PostgrestError } from "@supabase/supabase-js";
import type { Database, Json } from "../_shared/database.types.ts";

// The part of Supabase's runtime that is used here.
declare const Supabase: {
  ai: {
    Session: new (model: "gte-small") => {
      run(text: string, options: { mean_pool: true; normalize: true }): Promise<number[]>;
    };
  };
};

interface SearchRequest {
  query: string;
  limit: number;
  offset: number;
  filters: Json | null;
  public_only: boolean;
  threshold: number;
}

const LONGEST_QUERY = 1000;
const MOST_RESULTS = 50;
const MOST_OFFSET = 1000;
const KEYS = ["query", "limit", "offset", "filters", "public_only", "threshold"];

const HEADERS = {
  "Access-Control-Allow-Origin": Deno.env.get("ALLOWED_ORIGIN") ?? "*",
  "Access-Control-Allow-Headers": "authorization, x-client-info, apikey, content-type",
  "Access-Control-Allow-Methods": "POST, OPTIONS",
};

const model = new Supabase.ai.Session("gte-small");

class Refusal extends Error {
  constructor(readonly status: number, message: string, readonly remedy: string) {
    super(message);
  }
}

function invalid(message: string): Refusal {
  return new Refusal(400, message, 'Send a JSON object such as {"query": "…", "limit": 10}.');
}

function whole(name: string, value: unknown, least: number, most: number): number {
  if (typeof value !== "number" || !Number.isInteger(value) || value < least || value > most) {
    throw invalid(`${name} must be a whole number from ${least} to ${most}`);
  }
  return value;
}

function read(body: unknown): SearchRequest {
  if (typeof body !== "object" || body === null || Array.isArray(body)) {
    throw invalid("the body must be a JSON object");
  }
  const {
    query,
    limit = 10,
    offset = 0,
    filters = null,
    public_only = false,
    threshold = 0,
    ...others
  } = body as Record<string, Json>;
  const [unknown] = Object.keys(others);
  if (unknown !== undefined) {
    throw invalid(`${unknown} is no key of a request, known are: ${KEYS.join(", ")}`);
  }
  if (typeof query !== "string" || !query.trim() || query.length > LONGEST_QUERY) {
    throw invalid(`query must be a text of 1 to ${LONGEST_QUERY} characters`);
  }
  if (typeof filters !== "object") {
    throw invalid("filters must be an array of conditions or an object");
  }
  if (typeof public_only !== "boolean") {
    throw invalid("public_only must be true or false");
  }
  if (typeof threshold !== "number" || !(threshold >= -1 && threshold <= 1)) {
    throw invalid("threshold must be a cosine similarity from -1 to 1");
  }
  return {
    query,
    limit: whole("limit", limit, 1, MOST_RESULTS),
    offset: whole("offset", offset, 0, MOST_OFFSET),
    filters,
    public_only,
    threshold,
  };
}

function refusal(error: PostgrestError): Refusal {
  switch (error.code) {
    case "22023":
      if (error.message.includes("the stored embeddings have")) {
        return new Refusal(
          500,
          error.message,
          "gte-small has 384 dimensions: embed the corpus with it, in a column of that size.",
        );
      }
      return new Refusal(400, error.message, error.hint ?? "Change what the message names.");
    case "42501":
      return new Refusal(
        401,
        error.message,
        error.hint ?? "Sign in, and send the user's own access token.",
      );
    case "PGRST301":
    case "PGRST302":
    case "PGRST303":
      return new Refusal(401, error.message, "Sign in, and send the user's own access token.");
    case "57014":
      return new Refusal(504, "the search took too long", "Narrow it by filters, or try again.");
    case "PGRST202":
      return new Refusal(500, error.message, "Apply the migrations: supabase db push.");
    default:
      return new Refusal(502, "the search failed", "Try again; the function's log has the cause.");
  }
}

async function search(request: Request): Promise<Json> {
  if (request.method !== "POST") {
    throw new Refusal(405, `${request.method} is not answered here`, "Send a POST.");
  }
  const authorization = request.headers.get("Authorization");
  if (!authorization?.startsWith("Bearer ")) {
    throw new Refusal(
      401,
      "there is no Authorization header with a token",
      "Sign in, and send the user's own access token.",
    );
  }
  const asked = read(await request.json().catch(() => undefined));

  let embedding: string | undefined;
  try {
    embedding = JSON.stringify(
      await model.run(asked.query, { mean_pool: true, normalize: true }),
    );
  } catch (error) {
    console.error("gte-small failed, so the search is by words alone:", error);
  }

  const client = createClient<Database>(
    Deno.env.get("SUPABASE_URL")!,
    Deno.env.get("SUPABASE_ANON_KEY")!,
    // With the user's token the database knows who asks; with the anon key alone it is nobody.
    {
      // The schema of the install; the generated types are the same in every schema.
      db: { schema: (Deno.env.get("SECOND_BRAIN_SCHEMA") ?? "public") as "public" },
      global: { headers: { Authorization: authorization } },
      auth: { persistSession: false, autoRefreshToken: false },
    },
  );
  const { data, error } = await client.rpc("search_my_knowledge_chunks", {
    query_embedding: embedding,
    query_text: asked.query,
    match_count: asked.limit,
    match_offset: asked.offset,
    filters: asked.filters,
    public_only: asked.public_only,
    match_threshold: asked.threshold,
    snippet: true,
  });
  if (error) {
    console.error("search_my_knowledge_chunks:", error.code, error.message);
    throw refusal(error);
  }
  const total = data[0]?.total_count ?? 0;
  return {
    results: data,
    total_count: total,
    // The project's API settings allow fewer rows in one answer.
    truncated: data.length < Math.min(asked.limit, total - asked.offset),
    // Rows beyond the list may match: a leg had as many as its pool holds.
    pool_ended: (data[0]?.pool_ended ?? false) && asked.offset + data.length >= total,
    degraded: embedding === undefined ? "searched by words alone, gte-small failed" : null,
  };
}

Deno.serve(async (request) => {
  if (request.method === "OPTIONS") {
    return new Response(null, { status: 204, headers: HEADERS });
  }
  try {
    return Response.json(await search(request), { headers: HEADERS });
  } catch (error) {
    if (error instanceof Refusal) {
      const told = { error: error.message, remedy: error.remedy };
      return Response.json(told, { status: error.status, headers: HEADERS });
    }
    console.error(error);
    const told = { error: "the search failed", remedy: "The function's log has the cause." };
    return Response.json(told, { status: 500, headers: HEADERS });
  }
});
