// A tool for the Vercel AI SDK: the model asks, and the search answers as its setup says.

import { jsonSchema, type Tool, tool } from "ai";
import {
  ARGUMENTS,
  type Json,
  OFF_SUBJECT,
  type Search,
  type SearchFunction,
  type SearchHit,
  type SearchOptions,
} from "./index.ts";

/** The arguments that a model may set; who asks is never one of them. */
export type ModelArgument = Exclude<keyof typeof ARGUMENTS, "query_text">;

export interface SearchToolOptions<F extends SearchFunction> {
  /** What the corpus is about, for the model. */
  description?: string;
  /** What the model may set beside the query. */
  arguments?: ModelArgument[];
  /** The options of each search; what the model sets replaces them. */
  options?: SearchOptions<F>;
}

const { query_text: query, ...OFFERED } = ARGUMENTS;

// The columns of a hit that help to answer.
const SHOWN = [
  "id",
  "title",
  "heading",
  "content",
  "source_url",
  "document_date",
  "confidence",
] as const;

/** What the model sets. */
export type Asked = { query?: string } & { [Name in ModelArgument]?: Json };

/** What the model gets. */
export type Found = {
  results: Pick<SearchHit, typeof SHOWN[number]>[];
  total_count: number | null;
  next_offset: number | null;
  answer_confidence: number | null;
  notes: Json | null;
};

/** Return a tool `{ query, ... }` for `tools` of generateText and streamText. */
export function searchTool<F extends SearchFunction>(
  search: Search<F>,
  {
    description = "Searches the knowledge base by meaning and by words.",
    arguments: names = ["match_count", "match_offset", "date_from", "date_to"],
    options,
  }: SearchToolOptions<F> = {},
): Tool<Asked, Found> {
  const wrong = names.find((name) => !(name in OFFERED));
  if (wrong !== undefined) throw new TypeError(`${wrong} is no argument that a model may set`);
  return tool({
    description:
      `${description} If answer_confidence is below ${OFF_SUBJECT}, the results may not ` +
      "answer the query: say so instead of guessing.",
    inputSchema: jsonSchema<Asked>({
      type: "object",
      properties: {
        query,
        ...Object.fromEntries(names.map((name) => [name, OFFERED[name]])),
      },
      // Documents at hand can stand for a question.
      required: names.includes("like_ids") ? [] : ["query"],
      additionalProperties: false,
    }),
    execute: async ({ query = "", ...given }, { abortSignal }): Promise<Found> => {
      const asked = { ...options, ...given, signal: abortSignal } as unknown as SearchOptions<F>;
      const { hits, total_count, next_offset, answer_confidence, notes } = await search.search(
        query,
        asked,
      );
      const results = hits.map((hit) =>
        Object.fromEntries(SHOWN.map((column) => [column, hit[column]])) as Found["results"][number]
      );
      return { results, total_count, next_offset, answer_confidence, notes };
    },
  });
}
