// hybridSearch: a search with supabase-js, with typed options, filters, hits and errors.
// It runs in browsers, Node, Deno and Edge Functions. It ranks and filters nothing: each page is
// one call of an SQL function. Options and columns have the names of the database.
// The npm package in clients/js is made of this folder; Edge Functions import it as it is.

import {
  ARGUMENTS,
  type ArgumentSchema,
  type ErrorKind,
  type FILTER_COLUMNS,
  type FilterOperators,
  type Fusion,
  type HitColumns,
  type Json,
  type Searches,
} from "./contract.ts";
import { type Failure, InvalidInputError, searchError, UnexpectedAnswerError } from "./errors.ts";

export { ADVICE, ARGUMENTS, DESCRIPTION, FILTER_COLUMNS, OFF_SUBJECT } from "./contract.ts";
export type { ArgumentSchema, ErrorKind, Json, SearchArguments } from "./contract.ts";
export * from "./errors.ts";

export type SearchErrorKind = ErrorKind;

/** The SQL functions that search: as the user of the token, as a visitor, as the service role. */
export type SearchFunction = keyof Searches;

/** A text, an embedding of the corpus's model, or both. */
export type Question = string | { text?: string; embedding?: ArrayLike<number> | string | null };

export type FilterField = typeof FILTER_COLUMNS[number] | "metadata" | `metadata.${string}`;
type Scalar = string | number | boolean;

/** One condition of a filter. */
export type FilterCondition =
  & { field: FilterField }
  & (
    | { op: FilterOperators["value"]; value: Json }
    | { op: FilterOperators["values"]; value: Scalar[] }
    | { op: FilterOperators["bound"]; value: string | number }
    | { op: FilterOperators["bounds"]; value: [string | number, string | number] }
    | { op: FilterOperators["boolean"]; value?: boolean }
    | { op: FilterOperators["nothing"] }
    | { op: FilterOperators["text"]; value: string }
    | { op: FilterOperators["texts"]; value: string[] }
  );

/** Rows that meet any or all of the parts, or not the one. */
export type FilterGroup =
  | { any: (FilterCondition | FilterGroup | FilterValues)[] }
  | { all: (FilterCondition | FilterGroup | FilterValues)[] }
  | { not: FilterCondition | FilterGroup | FilterValues };

/** The values that columns and metadata keys have, or ranges: `{ document_date: { from: … } }`. */
export type FilterValues = { [columnOrKey: string]: Json | undefined };

/** What must hold: conditions, values, or a list of both. */
export type Filters =
  | (FilterCondition | FilterGroup | FilterValues & { field?: never; op?: never; value?: never })[]
  | FilterValues;

/** A factor of the scores: for rows that pass conditions, by a number, or by a distance. */
export type Boost =
  | { filters: Filters; factor: number }
  | { field: string; modifier: "linear" | "sqrt" | "log1p"; weight: number }
  | {
    field: string;
    decay: "gauss" | "exp" | "linear";
    origin: string | number;
    scale: number;
    offset?: number;
    decay_to?: number;
  };

type Typed = {
  /** Only rows that hold at this time, by default now; null: all. */
  as_of?: string | Date | null;
  boosts?: Boost[] | null;
  filters?: Filters | null;
  formulations?: { query_text?: string; query_embedding?: number[] }[];
  fusion?: Fusion;
  on_bad_embedding?: "error" | "text" | "from_text";
  search_mode?: "websearch" | "simple" | "phrase";
};

/** The arguments of the SQL function, and how it is called. */
export type SearchOptions<F extends SearchFunction = "search_my_knowledge_chunks"> =
  & Omit<Searches[F], "query_text" | "query_embedding" | keyof Typed>
  & Typed
  & CallOptions
  & {
    /** Default: `search_my_knowledge_chunks`, which needs the token of a signed-in user. */
    function?: F;
    /** The best hits with at most this many tokens, at least one hit. */
    max_tokens?: number | null;
    /** Counts the tokens of a hit's content, with neighbours of its context: see countTokens. */
    count_tokens?: (text: string) => number;
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
  /** Further hits of the page that do not fit into `max_tokens`; `next_offset` begins there. */
  left_out: number;
  /** 0 to 1: how well the first hit of the list fits the question; below 0.3 it may not. */
  answer_confidence: number | null;
  /** What the search did beside what was asked, such as an ignored embedding. */
  notes: Json | null;
  /** Why the best text hits gave the embedding of the question: `embed` failed. */
  degraded: string | null;
}

/** What max_tokens may be, in JSON Schema. */
export const MAX_TOKENS: ArgumentSchema = {
  type: "integer",
  minimum: 1,
  maximum: 2 ** 31 - 1,
  description: "The best results with at most this many tokens, at least one result.",
};

/** The tokens of a text where no tokenizer is given: a quarter of its characters, as in Python. */
export function countTokens(text: string): number {
  return Math.ceil([...text].length / 4);
}

/** How many of the first texts have at most `most` tokens together, at least one. */
export function withinTokens(
  texts: string[],
  most: number | null | undefined,
  count: (text: string) => number = countTokens,
): number {
  if (most == null) return texts.length;
  let used = 0;
  const end = texts.findIndex((text, place) => (used += count(text)) > most && place > 0);
  return end < 0 ? texts.length : end;
}

const DEFAULT_FUNCTION = "search_my_knowledge_chunks";
const DEFAULT_COUNT = 10;
export const DEFAULT_TIMEOUT = 30_000; // milliseconds
const DEEPEST = 100; // levels of a value; the functions take less
const LONGEST_TIMEOUT = 2 ** 31 - 1; // of timers; a longer one ends at once

// The bounds that the functions check; searchPages keeps within them.
const BOUNDS: Record<SearchFunction, { offset: number; pool: number; candidates: number }> = {
  search_my_knowledge_chunks: { offset: 1000, pool: 1000, candidates: 2500 },
  search_public_knowledge_chunks: { offset: 200, pool: 100, candidates: 750 },
  hybrid_search_knowledge_chunks: { offset: 1000, pool: 1000, candidates: Infinity },
};

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

const TYPES = {
  string: "a text",
  integer: "a whole number",
  number: "a number",
  boolean: "true or false",
  object: "an object",
  array: "an array",
};
const FORMATS: Record<string, [fits: (text: string) => boolean, name: string]> = {
  date: [
    (text) => /^\d{4}-\d\d-\d\d$/.test(text) && dayOf(new Date(text)) === text,
    "a date such as 2026-01-31",
  ],
  "date-time": [
    (text) => text === "now" || (TIME.test(text) && FORMATS.date![0](text.slice(0, 10))),
    "a time such as 2026-01-31T12:00:00Z",
  ],
  uuid: [(text) => /^[\da-f]{8}(-?[\da-f]{4}){3}-?[\da-f]{12}$/i.test(text), "a UUID"],
};
const TIME = /^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:\d\d)?)?)?$/;
const NUMBER = /^\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*$/i;

/** The day of a point in time, in UTC. */
function dayOf(time: Date): string {
  return Number.isFinite(Number(time)) ? time.toISOString().slice(0, 10) : "";
}

function fits(
  { type, format = "", items, minimum = -Infinity, maximum = Infinity }: ArgumentSchema,
  value: unknown,
): boolean {
  const own = Array.isArray(value) ? "array" : Number.isInteger(value) ? "integer" : typeof value;
  if (value === null || (own !== type && !(own === "integer" && type === "number"))) return false;
  if (Array.isArray(value)) return value.every((one) => !items || fits(items, one));
  if (typeof value === "string") return FORMATS[format]?.[0](value) ?? true;
  return typeof value !== "number" || (value >= minimum && value <= maximum);
}

function described({ type, format, items, minimum, maximum }: ArgumentSchema): string {
  const one = FORMATS[format ?? ""]?.[1] ?? TYPES[type];
  if (items) return `${one}, each element ${described(items)}`;
  return maximum === undefined ? one : `${one} from ${minimum} to ${maximum}`;
}

/** Say what an argument must be, if a value does not fit its schema of ARGUMENTS. */
export function argumentFault(
  name: string,
  value: unknown,
  schema: ArgumentSchema,
): string | undefined {
  return fits(schema, value) ? undefined : `${name} must be ${described(schema)}`;
}

/**
 * @internal Return the value of an argument, which may be a text for a number or for true or false,
 * as in a URL, or a Date for a day. Throws an InvalidInputError for others.
 */
export function readArgument(name: string, value: unknown, schema: ArgumentSchema): unknown {
  const { type, format } = schema;
  let read = value;
  if (typeof value === "string") {
    if (type.match(/integer|number/) && NUMBER.test(value)) read = Number(value);
    if (type === "boolean" && /^(true|false)$/.test(value)) read = value === "true";
  }
  if (format === "date" && value instanceof Date) read = dayOf(value);
  if (format === "date-time" && value instanceof Date) read = dayOf(value) && value.toISOString();
  if (name === "collections" && Array.isArray(read) && read.length === 0) {
    throw new InvalidInputError("collections must be 1 to 50 names, not []");
  }
  const fault = argumentFault(name, read, schema);
  if (fault) throw new InvalidInputError(`${fault}, not ${shown(value)}`);
  if (format === "date-time" && read !== "now") {
    // Without an offset it is UTC, as in filters.
    const [, time, , , offset] = TIME.exec(read as string)!;
    return offset ? read : read + (time ? "Z" : "T00:00:00Z");
  }
  return read;
}

/** @internal Return an embedding as the text that pgvector reads, which it may be already. */
export function vector(embedding: ArrayLike<number> | string, path = "embedding"): string {
  if (typeof embedding === "string" && /^\s*\[/.test(embedding)) return embedding;
  if (typeof embedding !== "object" || typeof embedding?.length !== "number") {
    throw new InvalidInputError(`${path} must be a list of numbers, not ${shown(embedding)}`);
  }
  const numbers = Array.from(embedding);
  // JSON would write null.
  const wrong = numbers.findIndex((value) => !Number.isFinite(value));
  if (wrong >= 0) {
    throw new InvalidInputError(
      `${path}[${wrong}] is ${shown(numbers[wrong])}, it must be a finite number`,
    );
  }
  return JSON.stringify(numbers);
}

// The arguments that say whose rows are found. An undefined one is a user that nobody looked up.
const WHO = ["viewer_id", "viewer_groups", "public_only", "required_filters"];
const KNOWN: Record<string, ArgumentSchema> = {
  ...ARGUMENTS,
  query_embedding: { type: "string" },
  viewer_id: { type: "string", format: "uuid" },
  viewer_groups: { type: "array", items: { type: "string" } },
  public_only: { type: "boolean" },
};

/** @internal The arguments but undefined ones, which are as those that are left out. */
export function present<Options extends object>(options: Options): Options {
  for (const name of WHO) {
    if (Object.hasOwn(options, name) && options[name as keyof Options] === undefined) {
      refuseValue(name, undefined);
    }
  }
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given) as Options;
}

/** @internal Return arguments as JSON has them. Throws an InvalidInputError for other values. */
export function checkedArguments<Options extends object>(options: Options): Options {
  const given = present(options);
  for (const [name, value] of Object.entries(given)) {
    if (name.endsWith("filters")) checkFilters(value, name);
    else checkValue(value, name);
  }
  return given;
}

/** When a call ends early. */
export interface CallOptions {
  /** If it aborts, the call rejects with its reason, like `fetch`. */
  signal?: AbortSignal;
  /** Milliseconds for each call, 30,000 by default. */
  timeout?: number;
}

// What Postgres has no text for, as JSON writes it.
const BROKEN = /(?<!\\)(?:\\\\)*\\u(?:0000|d[89a-f])/;

/** Call an SQL function, and return its rows or its value. Rejects with a SecondBrainError. */
export async function callFunction(
  client: SearchClient,
  name: string,
  given: Record<string, unknown>,
  { signal, timeout = DEFAULT_TIMEOUT }: CallOptions,
): Promise<unknown> {
  if (!(typeof timeout === "number" && timeout > 0 && timeout <= LONGEST_TIMEOUT)) {
    throw new InvalidInputError(
      `timeout is ${timeout}, it must be above 0 and at most ${LONGEST_TIMEOUT} milliseconds`,
    );
  }
  const checked = checkedArguments(given);
  signal?.throwIfAborted();
  const deadline = AbortSignal.timeout(Math.ceil(timeout));
  const { data, error, status } = await client
    .rpc(name, checked)
    .abortSignal(signal ? AbortSignal.any([signal, deadline]) : deadline);
  // The body of a gateway may be null.
  if (error || status > 299) {
    if (status === 0) signal?.throwIfAborted();
    const broken = Object.keys(given).find((one) => BROKEN.test(JSON.stringify(given[one]) ?? ""));
    if (broken && error?.code?.startsWith("22P0")) {
      throw new InvalidInputError(`${broken} has a NUL or half of a character's surrogate pair`, {
        remedy: "Remove these characters: text.toWellFormed() replaces the second kind.",
      });
    }
    throw searchError(error ?? {}, status);
  }
  return data;
}

/** Throw an InvalidInputError for filters that JSON would change, such as a Map or a function. */
export function checkFilters(filters: unknown, name = "filters"): void {
  if (filters == null) return;
  if (typeof filters !== "object" || filters instanceof Date) refuseValue(name, filters);
  checkValue(filters, name);
}

/** @internal Throw an InvalidInputError for a value that JSON would change or leave out. */
export function checkValue(value: unknown, path: string, depth = 0): void {
  const kind = kindOf(value);
  if (depth > DEEPEST) throw new InvalidInputError(`${path.slice(0, 100)} is nested too deeply`);
  if (kind === "Array") {
    const list = value as unknown[];
    // A list has holes as undefined, and JSON has no keys of it.
    Array.from(list).forEach((one, at) => checkValue(one, `${path}[${at}]`, depth + 1));
    const key = Object.keys(list)[list.length];
    if (key !== undefined) refuseValue(`${path}.${key}`, undefined);
  } else if (kind === "Object") {
    const [symbol] = Object.getOwnPropertySymbols(value);
    if (symbol) refuseValue(`${path}.${String(symbol)}`, symbol);
    // What an instance keeps elsewhere, or writes in place of itself, would not come back.
    const isPlain = [null, Object.prototype].includes(Object.getPrototypeOf(value));
    const { toJSON } = value as { toJSON?: unknown };
    if (!isPlain && (toJSON !== undefined || Object.keys(value as object).length === 0)) {
      const type = (value as object).constructor?.name ?? kind;
      refuseValue(path, value, type);
    }
    for (const key in value as object) {
      const inner = (value as Record<string, unknown>)[key];
      // JSON has no inherited keys.
      if (!Object.hasOwn(value as object, key)) refuseValue(`${path}.${key}`, undefined);
      checkValue(inner, `${path}.${key}`, depth + 1);
    }
  } else if (
    !(["String", "Boolean", "Null"].includes(kind) || Number.isFinite(value) ||
      kind === "Date" && Number.isFinite(Number(value)))
  ) {
    refuseValue(path, value);
  }
}

function kindOf(value: unknown): string {
  return Object.prototype.toString.call(value).slice(8, -1);
}

/** A value in a message. */
function shown(value: unknown): string {
  const kind = kindOf(value);
  if (kind === "String") return JSON.stringify(String(value).slice(0, 100));
  return ["Number", "Date", "Undefined", "Null", "Boolean"].includes(kind) ? String(value) : kind;
}

function refuseValue(path: string, value: unknown, type = shown(value)): never {
  throw new InvalidInputError(`${path} must be JSON, not ${type}`, {
    remedy: WHO.includes(path.split(".").at(-1)!) && value === undefined
      ? "Look up who asks before the search: with null, or without the key, the rows of all users " +
        "are searched."
      : path.includes("filters")
      ? 'Give { team: "search" }, or a list of conditions such as ' +
        '[{ field: "metadata.page", op: "in", value: [1, 2] }].'
      : "Give a text, a finite number, a valid Date, a boolean, null, a list or a plain object.",
  });
}

/** Return the text and the embedding of a question. Throws an InvalidInputError for others. */
export function questionParts(question: Question): Exclude<Question, string> {
  if (typeof question === "string") return { text: question };
  const unknown = kindOf(question) === "Object"
    ? Object.keys(question).find((key) => !["text", "embedding"].includes(key))
    : kindOf(question);
  if (unknown) {
    throw new InvalidInputError(`question must be a text or { text, embedding }, not ${unknown}`);
  }
  return question;
}

/** Return a search as the SQL functions take it. Throws an InvalidInputError. */
export function searchArguments<Options extends object>(
  question: Question,
  options: Options,
): Options & { query_text?: string; query_embedding?: string } {
  const { text, embedding } = questionParts(question);
  const query_embedding = embedding == null ? undefined : vector(embedding);
  const given = checkedArguments({ ...options, query_text: text, query_embedding });
  for (const [name, value] of Object.entries(given) as [keyof typeof given & string, unknown][]) {
    const schema = Object.hasOwn(KNOWN, name) ? KNOWN[name] : undefined;
    if (!schema) {
      const known = Object.keys(KNOWN).join(", ");
      throw new InvalidInputError(`${name} is no argument of a search, known are: ${known}`);
    }
    // Null is as what is left out, but as_of null is all times. Conditions and factors have a check
    // of their own.
    if (value === null && name !== "as_of") delete given[name];
    else if (value !== null && schema.items?.type !== "object") {
      Object.assign(given, { [name]: readArgument(name, value, schema) });
    }
  }
  return given;
}

/** Search once, and return the page at `match_offset`. Rejects with a SecondBrainError. */
export async function hybridSearch<F extends SearchFunction = "search_my_knowledge_chunks">(
  client: SearchClient,
  question: Question,
  options: SearchOptions<F> = {} as SearchOptions<F>,
): Promise<SearchPage> {
  const { function: name = DEFAULT_FUNCTION, signal, timeout, ...others } = options;
  const { max_tokens, count_tokens, ...given } = others;
  const budget = max_tokens == null
    ? null
    : readArgument("max_tokens", max_tokens, MAX_TOKENS) as number;
  const asked = searchArguments(question, given);
  const data = await callFunction(client, name, asked, { signal, timeout });
  const whole = page(data, asked, BOUNDS[name]);
  const texts = whole.hits.map((hit) => hit.context ?? hit.content);
  const kept = withinTokens(texts, budget, count_tokens);
  const left_out = whole.hits.length - kept;
  if (left_out === 0) return whole;
  const next_offset = ((asked as { match_offset?: number }).match_offset ?? 0) + kept;
  return { ...whole, hits: whole.hits.slice(0, kept), left_out, next_offset, pool_ended: false };
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
    throw new UnexpectedAnswerError("the answer does not consist of hits");
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
    left_out: 0,
    truncated: hits.length < Math.min(match_count, (total ?? 0) - match_offset),
    answer_confidence: first?.answer_confidence ?? null,
    notes: first?.notes ?? null,
    degraded: null,
  };
}

/**
 * Search page after page, to the end of the list or to the largest `match_offset`. All pages cut
 * one list, by default with the largest pool. Rejects with a SecondBrainError.
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
