// hybridSearch: a search with supabase-js, with typed options, filters, hits and errors.
// It runs in browsers, Node, Deno and Edge Functions. It ranks and filters nothing: each page is
// one call of an SQL function. Options and columns have the names of the database.

import type { Database, Json } from "./database.types.ts";

type Functions = Database["public"]["Functions"];
type HitColumns = Database["public"]["CompositeTypes"]["knowledge_search_hit"];

/** The SQL functions that search: as the user of the token, as a visitor, as the service role. */
export type SearchFunction =
  | "search_my_knowledge_chunks"
  | "search_public_knowledge_chunks"
  | "hybrid_search_knowledge_chunks";

/** A text, an embedding of the corpus's model, or both. */
export type Question = string | { text?: string; embedding?: ArrayLike<number> };

export const FILTER_COLUMNS = [
  "chunk_index",
  "collection",
  "created_at",
  "document_date",
  "document_id",
  "embedding_model",
  "knowledge_type",
  "language",
  "owner_id",
  "sensitivity",
  "source_id",
  "source_origin",
  "updated_at",
  "visibility",
] as const;

export type FilterField = typeof FILTER_COLUMNS[number] | "metadata" | `metadata.${string}`;
type Scalar = string | number | boolean;

/** One condition of a filter. */
export type FilterCondition =
  & { field: FilterField }
  & (
    | { op: "eq" | "ne"; value: Json }
    | { op: "in" | "not_in" | "has_any"; value: Scalar[] }
    | { op: "contains"; value: Json }
    | { op: "gte" | "gt" | "lte" | "lt"; value: string | number }
    | { op: "between"; value: [string | number, string | number] }
    | { op: "exists"; value?: boolean }
  );

/** Conditions that must all hold, or the required values of columns and metadata keys. */
export type Filters = FilterCondition[] | { [columnOrKey: string]: Json | undefined };

type Typed = {
  filters?: Filters | null;
  formulations?: { query_text?: string; query_embedding?: number[] }[];
  fusion?: "rrf" | "relative_score" | "auto";
  on_bad_embedding?: "error" | "text" | "from_text";
  search_mode?: "websearch" | "simple" | "phrase";
};

/** The arguments of the SQL function, and how it is called. */
export type SearchOptions<F extends SearchFunction = "search_my_knowledge_chunks"> =
  & Omit<Functions[F]["Args"], "query_text" | "query_embedding" | keyof Typed>
  & Typed
  & {
    /** Default: `search_my_knowledge_chunks`, which needs the token of a signed-in user. */
    function?: F;
    /** If it aborts, the search rejects with its reason, like `fetch`. */
    signal?: AbortSignal;
    /** Milliseconds for each page, 30,000 by default. */
    timeout?: number;
  };

type NeverNull =
  | "id"
  | "content"
  | "knowledge_type"
  | "source_origin"
  | "metadata"
  | "rrf_score"
  | "matched_terms"
  | "collection"
  | "total_count"
  | "pool_ended"
  | "collections"
  | "confidence";

/** One hit: the columns of `hybrid_search_knowledge_chunks`. */
export type SearchHit =
  & Omit<HitColumns, NeverNull | "match_type">
  & { [Column in NeverNull]: NonNullable<HitColumns[Column]> }
  & { match_type: "vector" | "text" | "both" };

/** One page of the ranked list. */
export interface SearchPage {
  hits: SearchHit[];
  /** The length of the list. Null for a page after its end, which does not say it. */
  total_count: number | null;
  /** The `match_offset` of the next page; null on the last one. */
  next_offset: number | null;
  /** The list ends here because a leg filled its pool: more rows can match. */
  pool_ended: boolean;
  /** The project's setting Max rows cut the page; `next_offset` continues after the cut. */
  truncated: boolean;
  /** 0 to 1: how well the first hit of the list fits the question; below 0.3 it may not. */
  answer_confidence: number | null;
  /** What the search did beside what was asked, such as an ignored embedding. */
  notes: Json | null;
}

export type SearchErrorKind =
  | "invalid_input"
  | "dimension_mismatch"
  | "migration_missing"
  | "permission_denied"
  | "authentication_failed"
  | "timeout"
  | "client_timeout"
  | "unavailable"
  | "conflict"
  | "unexpected_answer"
  | "error";

/** A failed search. */
export class SearchError extends Error {
  override readonly name = "SearchError";
  readonly kind: SearchErrorKind;
  /** What to do. */
  readonly remedy: string;
  /** The SQLSTATE or PostgREST's code; null where there was none. */
  readonly code: string | null;
  /** The HTTP status; 0 without an answer. */
  readonly status: number;

  constructor(
    kind: SearchErrorKind,
    message: string,
    { remedy = REMEDIES[kind], code = null, status = 0 }: {
      remedy?: string;
      code?: string | null;
      status?: number;
    } = {},
  ) {
    super(message);
    this.kind = kind;
    this.remedy = remedy;
    this.code = code;
    this.status = status;
  }
}

const DEFAULT_FUNCTION = "search_my_knowledge_chunks";
const DEFAULT_COUNT = 10;
const DEFAULT_TIMEOUT = 30_000; // milliseconds
const LONGEST_TIMEOUT = 2 ** 31 - 1; // of timers; a longer one ends at once
const LONGEST_MESSAGE = 300; // characters

// The bounds that the functions check; searchPages keeps within them.
const BOUNDS: Record<SearchFunction, { offset: number; pool: number; candidates: number }> = {
  search_my_knowledge_chunks: { offset: 1000, pool: 1000, candidates: 2500 },
  search_public_knowledge_chunks: { offset: 200, pool: 100, candidates: 750 },
  hybrid_search_knowledge_chunks: { offset: 1000, pool: 1000, candidates: Infinity },
};

const REMEDIES: Record<SearchErrorKind, string> = {
  invalid_input: "Correct the argument that the message names.",
  dimension_mismatch: "Embed the question with the model that embedded the corpus.",
  migration_missing:
    "Apply the migrations: supabase db push. If they are applied: notify pgrst, 'reload schema'.",
  permission_denied:
    "Send the user's own access token: search_my_knowledge_chunks needs a signed-in user. The " +
    "other searches need the service role or a grant.",
  authentication_failed:
    "Sign in again, and send the user's own access token; check the API key too.",
  timeout: "Use a narrower filter or a smaller pool_size, or raise the role's statement_timeout.",
  client_timeout: "Raise timeout if the network is slow; else check that the server answers.",
  unavailable: "Try again shortly; if it stays, check the URL and that the project runs.",
  conflict: "Repeat the search.",
  unexpected_answer: "Check that the URL is the Supabase project's own and that no proxy answers.",
  error: "Look the code up in the log of the database.",
};

// SQLSTATEs (whole, or the two characters of their class), PostgREST's codes, HTTP statuses.
const CODES: Partial<Record<SearchErrorKind, string>> = {
  invalid_input:
    "22023 22000 22001 22003 22007 22008 2201W 2201X 22021 22P02 22P05 42846 54 PGRST102 413",
  migration_missing: "PGRST106 PGRST202 PGRST203 42883 42P01 42703 42704 3F000",
  permission_denied: "42501",
  authentication_failed: "PGRST300 PGRST301 PGRST302 PGRST303 28000 28P01 401 403",
  timeout: "57014",
  unavailable:
    "PGRST000 PGRST001 PGRST002 PGRST003 57P01 57P02 57P03 08 53 502 503 504 520 521 522 523 524",
  conflict: "40001 40P01 55P03",
  unexpected_answer: "200 204 301 302 307 308 404",
};

const KINDS = new Map(
  Object.entries(CODES).flatMap(([kind, codes]) =>
    codes.split(" ").map((code) => [code, kind as SearchErrorKind] as const)
  ),
);

const DIMENSIONS = /different vector dimensions|expected \d+ dimensions|\d+ dimensions/;
const UNKNOWN_ROLE = /^role ".*" does not exist/;
const LONG_ARGUMENTS = /\((?:[^()]|\([^()]*\)){40,}\)/g;

interface Failure {
  message?: string;
  code?: string | null;
  hint?: string | null;
}

interface Answer {
  data: unknown;
  error: Failure | null;
  status: number;
}

/** What is used of a client: one of supabase-js, or its `schema("...")`, with any types. */
export interface SearchClient {
  // deno-lint-ignore no-explicit-any
  rpc(name: any, given: any): { abortSignal(signal: AbortSignal): PromiseLike<Answer> };
}

/** The error of an answer that supabase-js returned. */
export function searchError(failure: Failure, status: number): SearchError {
  const code = failure.code || null;
  // In an answer that is no error, the message is the body that could not be read.
  const isRead = status < 200 || status > 299;
  const message = isRead ? shortened(failure.message) : "the answer could not be read";
  if (status === 0) {
    // fetch failed: supabase-js begins its message with the name of the error.
    const isAborted = /^(AbortError|TimeoutError)/.test(message);
    return new SearchError(isAborted ? "client_timeout" : "unavailable", message);
  }
  let kind = KINDS.get(code ?? "") ??
    (code?.length === 5 ? KINDS.get(code.slice(0, 2)) : KINDS.get(String(status))) ?? "error";
  if (code === "22023" && UNKNOWN_ROLE.test(message)) kind = "authentication_failed";
  else if (/^220(00|23)$/.test(code ?? "") && DIMENSIONS.test(message)) kind = "dimension_mismatch";
  // The functions of second-brain write into the hint of a refusal what to do.
  const remedy = kind === "permission_denied" && failure.hint || undefined;
  return new SearchError(kind, message, { remedy, code, status });
}

function shortened(message: unknown): string {
  const text = String(message ?? "").replace(LONG_ARGUMENTS, "(…)").replace(/\s+/g, " ").trim();
  if (text.length <= LONGEST_MESSAGE) return text || "no message";
  return `${text.slice(0, LONGEST_MESSAGE - 1)}…`;
}

function vector(embedding: ArrayLike<number>): string {
  const numbers = Array.from(embedding);
  // JSON would write null.
  const wrong = numbers.findIndex((value) => !Number.isFinite(value));
  if (wrong >= 0) {
    throw new SearchError(
      "invalid_input",
      `embedding[${wrong}] is ${numbers[wrong]}, it must be a finite number`,
    );
  }
  return JSON.stringify(numbers);
}

/** Search once, and return the page at `match_offset`. Rejects with a SearchError. */
export async function hybridSearch<F extends SearchFunction = "search_my_knowledge_chunks">(
  client: SearchClient,
  question: Question,
  options: SearchOptions<F> = {} as SearchOptions<F>,
): Promise<SearchPage> {
  const { function: name = DEFAULT_FUNCTION, signal, timeout = DEFAULT_TIMEOUT, ...given } =
    options;
  const { text, embedding } = typeof question === "string"
    ? { text: question, embedding: undefined }
    : question;
  if (!(timeout > 0 && timeout <= LONGEST_TIMEOUT)) {
    throw new SearchError(
      "invalid_input",
      `timeout is ${timeout}, it must be above 0 and at most ${LONGEST_TIMEOUT} milliseconds`,
    );
  }
  signal?.throwIfAborted();
  const deadline = AbortSignal.timeout(timeout);
  const { data, error, status } = await client
    .rpc(name, {
      ...given,
      query_text: text,
      query_embedding: embedding && vector(embedding),
    })
    .abortSignal(signal ? AbortSignal.any([signal, deadline]) : deadline);
  if (error) {
    if (status === 0) signal?.throwIfAborted();
    throw searchError(error, status);
  }
  return page(data, given, BOUNDS[name]);
}

function page(
  data: unknown,
  { match_count = DEFAULT_COUNT, match_offset = 0 }: {
    match_count?: number;
    match_offset?: number;
  },
  largest: { offset: number },
): SearchPage {
  if (!Array.isArray(data) || data.some((row) => typeof row?.id !== "string")) {
    throw new SearchError("unexpected_answer", "the answer does not consist of hits");
  }
  const hits = data as SearchHit[];
  const [first] = hits;
  const total = first?.total_count ?? (match_offset > 0 ? null : 0);
  const next = match_offset + hits.length;
  const isLast = hits.length === 0 || next >= (total ?? 0) || next > largest.offset;
  return {
    hits,
    total_count: total,
    next_offset: isLast ? null : next,
    pool_ended: (first?.pool_ended ?? false) && next >= (total ?? 0),
    truncated: hits.length < Math.min(match_count, (total ?? 0) - match_offset),
    answer_confidence: first?.answer_confidence ?? null,
    notes: first?.notes ?? null,
  };
}

/**
 * Search page after page, to the end of the list or to the largest `match_offset`. All pages cut
 * one list, by default with the largest pool. Rejects with a SearchError.
 */
export async function* searchPages<F extends SearchFunction = "search_my_knowledge_chunks">(
  client: SearchClient,
  question: Question,
  options: SearchOptions<F> = {} as SearchOptions<F>,
): AsyncGenerator<SearchPage, void, undefined> {
  const { pool, candidates } = BOUNDS[options.function ?? DEFAULT_FUNCTION];
  // Each question has a list in each collection, and all lists together have that many candidates.
  const { formulations, collections } = options as Record<string, unknown>;
  const [further, scopes] = [formulations, collections].map((one) =>
    Array.isArray(one) ? one.length : 0
  );
  const lists = (1 + further) * Math.max(1, scopes);
  let next: number | null = options.match_offset ?? 0;
  while (next !== null) {
    const found: SearchPage = await hybridSearch(client, question, {
      pool_size: Math.min(pool, Math.max(1, Math.floor(candidates / lists))),
      ...options,
      match_offset: next,
    });
    if (found.hits.length > 0) yield found;
    next = found.next_offset;
  }
}
