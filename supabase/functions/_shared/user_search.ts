// user_search: a question of a signed-in user in, the passages that this user may see out.
// It embeds the question with gte-small, which Supabase's Edge Functions have built in, and makes
// one call of search_my_knowledge_chunks with the user's own token. It ranks and filters nothing.
// Without an embedding, the database makes one of the question's best text hits.

import { createClient } from "@supabase/supabase-js";
import { REMEDIES } from "./contract.ts";
import type { Database, Json } from "./database.types.ts";
import { type Filters, hybridSearch, SearchError, type SearchErrorKind } from "./hybrid_search.ts";

// The part of Supabase's runtime that is used here.
declare const Supabase: {
  ai: {
    Session: new (model: "gte-small") => {
      run(text: string, options: { mean_pool: true; normalize: true }): Promise<number[]>;
    };
  };
};

export interface SearchRequest {
  query: string;
  embedding: boolean;
  limit: number;
  offset: number;
  filters: Filters | null;
  public_only: boolean;
  threshold: number;
}

export const LONGEST_QUERY = 1000;
export const MOST_RESULTS = 50;
const MOST_OFFSET = 1000;
const KEYS = ["query", "embedding", "limit", "offset", "filters", "public_only", "threshold"];

// The errors that a caller sees with their message; the others are 502.
const STATUSES: Partial<Record<SearchErrorKind, number>> = {
  invalid_input: 400,
  permission_denied: 401,
  authentication_failed: 401,
  dimension_mismatch: 500,
  migration_missing: 500,
  timeout: 504,
  client_timeout: 504,
};

// What the caller of this function can do, where that is not what the caller of the database can.
const OWN_REMEDIES: Partial<Record<SearchErrorKind, string>> = {
  permission_denied: "Sign in, and send the user's own access token.",
  authentication_failed: "Sign in again, and send the user's own access token.",
  timeout: "Use a narrower filter, or raise the statement_timeout of the role authenticated.",
};

let model: InstanceType<typeof Supabase.ai.Session> | undefined;

async function embedded(text: string): Promise<number[] | undefined> {
  try {
    model ??= new Supabase.ai.Session("gte-small");
    return await model.run(text, { mean_pool: true, normalize: true });
  } catch (error) {
    console.error("gte-small failed, so the best text hits give the embedding:", error);
  }
}

/** A refusal that the caller sees, with its HTTP status. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    readonly kind: SearchErrorKind,
    message: string,
    readonly remedy: string,
  ) {
    super(message);
  }
}

function invalid(message: string): Refusal {
  const remedy = 'Send a JSON object such as {"query": "…", "limit": 10}.';
  return new Refusal(400, "invalid_input", message, remedy);
}

function whole(name: string, value: unknown, least: number, most: number): number {
  if (typeof value !== "number" || !Number.isInteger(value) || value < least || value > most) {
    throw invalid(`${name} must be a whole number from ${least} to ${most}`);
  }
  return value;
}

/** What a JSON body asks for; throws a Refusal. */
export function read(body: unknown): SearchRequest {
  if (typeof body !== "object" || body === null || Array.isArray(body)) {
    throw invalid("the body must be a JSON object");
  }
  const {
    query,
    embedding = true,
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
  if (typeof embedding !== "boolean") {
    throw invalid("embedding must be true or false");
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
    embedding,
    limit: whole("limit", limit, 1, MOST_RESULTS),
    offset: whole("offset", offset, 0, MOST_OFFSET),
    filters: filters as Filters | null,
    public_only,
    threshold,
  };
}

function refusal(error: unknown): unknown {
  if (!(error instanceof SearchError)) return error;
  const { kind, code, message, remedy } = error;
  console.error("search_my_knowledge_chunks:", kind, code, message);
  const status = STATUSES[kind];
  if (status === undefined) {
    const cause = "Try again; the function's log has the cause.";
    return new Refusal(502, kind, "the search failed", cause);
  }
  // The database's own advice about a missing right says more.
  const isAdvised = kind === "permission_denied" && remedy !== REMEDIES[kind];
  const own = isAdvised ? undefined : OWN_REMEDIES[kind];
  if (own) return new Refusal(status, kind, message, own);
  if (kind === "dimension_mismatch") {
    const advice = "embed the corpus with it, in a column of that size.";
    return new Refusal(status, kind, message, `gte-small has 384 dimensions: ${advice}`);
  }
  return new Refusal(status, kind, message, remedy);
}

/** Search as the user of the token. Throws a Refusal, or another error that the log should have. */
export async function search(authorization: string, asked: SearchRequest) {
  const embedding = asked.embedding ? await embedded(asked.query) : undefined;

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
  const { hits, ...page } = await hybridSearch(
    client,
    { text: asked.query, embedding },
    {
      match_count: asked.limit,
      match_offset: asked.offset,
      filters: asked.filters,
      public_only: asked.public_only,
      match_threshold: asked.threshold,
      snippet: true,
      ...(embedding ? {} : { embedding_from_text: true }),
    },
  ).catch((error) => {
    throw refusal(error);
  });
  return {
    results: hits,
    ...page,
    degraded: asked.embedding && !embedding
      ? "gte-small failed, the embedding is from the best text hits"
      : null,
  };
}
