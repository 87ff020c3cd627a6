// user_search: a question of a signed-in user in, the passages that this user may see out.
// It embeds the question with gte-small, which Supabase's Edge Functions have built in, and calls
// the functions of a signed-in user with the user's own token. It ranks and filters nothing.
// Without an embedding, the database makes one of the question's best text hits.

import { createClient } from "@supabase/supabase-js";
import { ARGUMENTS, type ArgumentSchema, REMEDIES } from "./contract.ts";
import type { Database } from "./database.types.ts";
import {
  callFunction,
  hybridSearch,
  readArgument,
  searchArguments,
  SearchError,
  type SearchErrorKind,
  type SearchOptions,
} from "./hybrid_search.ts";

// The part of Supabase's runtime that is used here.
declare const Supabase: {
  ai: {
    Session: new (model: "gte-small") => {
      run(text: string, options: { mean_pool: true; normalize: true }): Promise<number[]>;
    };
  };
};

export interface SearchRequest {
  /** Needed without `like_ids`. */
  query?: string;
  /** Whether gte-small embeds the query. */
  embedding: boolean;
  /** Whether the words of the query are searched too. */
  words: boolean;
  /** Whether to ask why nothing is found. */
  explained: boolean;
  options: SearchOptions;
}

const LONGEST_QUERY = 1000;
const MOST_RESULTS = 50;
const MOST_OFFSET = 1000;

// The keys of a request. Those with another name or other bounds than in SQL are not passed on.
const {
  query_text: _query,
  match_count: _count,
  match_offset: _offset,
  match_threshold: _threshold,
  filters: _filters,
  ...PASSED
} = ARGUMENTS;
const TYPED: Record<string, ArgumentSchema> = {
  query: { type: "string" },
  limit: { type: "integer", minimum: 1, maximum: MOST_RESULTS },
  offset: { type: "integer", minimum: 0, maximum: MOST_OFFSET },
  threshold: { type: "number", minimum: -1, maximum: 1 },
  ...PASSED,
  embedding: { type: "boolean" },
  public_only: { type: "boolean" },
};
const KEYS = [...Object.keys(TYPED), "filters"];

// The errors that a caller sees with their message; the others are 502.
const STATUSES: Partial<Record<SearchErrorKind, number>> = {
  invalid_input: 400,
  permission_denied: 401,
  authentication_failed: 401,
  dimension_mismatch: 500,
  migration_missing: 500,
  module_missing: 500,
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

/** What a JSON body asks for; throws a Refusal. */
export function read(body: unknown): SearchRequest {
  if (typeof body !== "object" || body === null || Array.isArray(body)) {
    throw invalid("the body must be a JSON object");
  }
  const asked: { [name: string]: unknown } = {};
  for (const [name, value] of Object.entries(body)) {
    const schema = Object.hasOwn(TYPED, name) ? TYPED[name] : undefined;
    if (!schema && name !== "filters") {
      throw invalid(`${name} is no key of a request, known are: ${KEYS.join(", ")}`);
    }
    if (value === null && name !== "as_of") continue;
    try {
      // What these numbers and texts may be, the database checks.
      asked[name] = schema && value !== null ? readArgument(name, value, schema) : value;
    } catch (error) {
      throw invalid((error as Error).message);
    }
  }
  const {
    query,
    limit = 10,
    offset = 0,
    filters = null,
    threshold = 0,
    embedding = true,
    ...options
  } = asked;
  const isRelated = query === undefined && options.like_ids !== undefined;
  if (!isRelated && !(typeof query === "string" && query.trim() && query.length <= LONGEST_QUERY)) {
    throw invalid(`query must be a text of 1 to ${LONGEST_QUERY} characters`);
  }
  if (typeof filters !== "object") {
    throw invalid("filters must be an array of conditions or an object");
  }
  return {
    query: query as string | undefined,
    embedding: embedding as boolean,
    words: true,
    explained: false,
    options: {
      ...options,
      match_count: limit,
      match_offset: offset,
      filters,
      match_threshold: threshold,
    } as SearchOptions,
  };
}

function refusal(error: unknown): unknown {
  if (!(error instanceof SearchError)) return error;
  const { kind, code, message, remedy } = error;
  console.error("second-brain:", kind, code, message);
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

function clientOf(authorization: string) {
  return createClient<Database>(
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
}

/** Call an SQL function as the user of the token. Throws as `search` does. */
export async function called(authorization: string, name: string, given: Record<string, unknown>) {
  return await callFunction(clientOf(authorization), name, given, {}).catch((error) => {
    throw refusal(error);
  });
}

/** Search as the user of the token. Throws a Refusal, or another error that the log should have. */
export async function search(authorization: string, asked: SearchRequest) {
  const { query, words, explained } = asked;
  const isEmbedded = asked.embedding && query !== undefined;
  const embedding = isEmbedded ? await embedded(query) : undefined;
  const question = { text: words || !embedding ? query : undefined, embedding };
  const options: SearchOptions = {
    snippet: true,
    ...(embedding || query === undefined ? {} : { embedding_from_text: true }),
    ...asked.options,
  };
  const { hits, ...page } = await hybridSearch(clientOf(authorization), question, options)
    .catch((error) => {
      throw refusal(error);
    });
  const missed = { search: searchArguments(question, options) };
  return {
    results: hits,
    ...page,
    degraded: isEmbedded && !embedding
      ? "gte-small failed, the embedding is from the best text hits"
      : null,
    ...(explained && hits.length === 0
      ? { empty: await called(authorization, EMPTY, missed).catch(() => null) }
      : {}),
  };
}

const EMPTY = "explain_my_empty_knowledge_search";
