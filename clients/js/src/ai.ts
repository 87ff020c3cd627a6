// A tool for the Vercel AI SDK: the model asks, and the search answers as its setup says.

import { jsonSchema, type Tool, tool } from "ai";
import {
  ADVICE,
  ARGUMENTS,
  type ArgumentSchema,
  DESCRIPTION,
  fitting,
  InvalidInputError,
  type Json,
  MAX_TOKENS,
  meant,
  overBudget,
  present,
  readArgument,
  type Search,
  type SearchFunction,
  type SearchHit,
  type SearchOptions,
  takesText,
  told,
  visible,
} from "./index.ts";

/** The arguments that a model may set; who asks is never one of them. */
export type ModelArgument =
  | Exclude<keyof typeof ARGUMENTS, "query_text" | "required_filters">
  | "max_tokens";

export interface SearchToolOptions<F extends SearchFunction> {
  /** What the corpus is about, for the model. */
  description?: string;
  /** What the model may set beside the query; by default COMMON without what `options` has. */
  arguments?: ModelArgument[];
  /** The options of each search, which the model cannot set. */
  options?: SearchOptions<F>;
}

const { query_text: query, required_filters: _server, ...OTHERS } = ARGUMENTS;
const OFFERED: Record<ModelArgument, ArgumentSchema> = {
  ...OTHERS,
  max_tokens: MAX_TOKENS,
  // More would not fit into the context of a model.
  match_count: { ...OTHERS.match_count, minimum: 1, maximum: 50 },
};
const COMMON: ModelArgument[] = ["match_count", "match_offset", "date_from", "date_to"];

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
  /** What a model should know of the answer, such as that results do not fit into it. */
  hints: string[];
  total_count: number | null;
  next_offset: number | null;
  /** Further results that do not fit into max_tokens. */
  left_out: number;
  answer_confidence: number | null;
  notes: Json | null;
  degraded: string | null;
};

/**
 * Return a tool `{ query, ... }` for `tools` of generateText and streamText. Throws a TypeError for
 * an argument that no model may set, or that `options` has too. A call with another argument, or
 * with a value of another type, rejects with an InvalidInputError.
 */
export function searchTool<F extends SearchFunction>(
  search: Search<F>,
  {
    description = DESCRIPTION,
    arguments: given,
    options,
  }: SearchToolOptions<F> = {},
): Tool<Asked, Found> {
  present(options ?? {});
  const isBound = (name: string) => Object.hasOwn(options ?? {}, name);
  const names = given ?? COMMON.filter((name) => !isBound(name));
  for (const name of names) {
    if (!Object.hasOwn(OFFERED, name)) {
      throw new TypeError(`${name} is no argument that a model may set`);
    }
    if (isBound(name)) throw new TypeError(`${name} is in options, so the model may not set it`);
  }
  const properties: Record<string, ArgumentSchema> = {
    query,
    ...Object.fromEntries(names.map((name) => [name, OFFERED[name]])),
  };
  // Documents at hand can stand for a question.
  const required = names.includes("like_ids") ? [] : ["query"];
  // Models send arguments that are not in the schema, and null for what they leave out.
  const checked = (input: unknown): Asked => {
    const sent = Object.entries(input ?? {});
    const known = Object.keys(properties);
    const unknown = sent.find(([name]) => !known.includes(name));
    if (unknown) {
      const message = `${unknown[0]} is no argument of this tool, known are: ${known.join(", ")}`;
      throw new InvalidInputError(message);
    }
    const asked = new Map<string, unknown>(required.map((name) => [name, undefined]));
    for (const [name, value] of sent) {
      const read = meant(value, takesText(properties[name]!));
      if (read !== null) asked.set(name, read);
    }
    for (const [name, value] of asked) {
      asked.set(name, readArgument(name, value, properties[name]!));
    }
    return Object.fromEntries(asked) as Asked;
  };
  return tool({
    description: `${description} ${ADVICE}`,
    inputSchema: jsonSchema<Asked>({
      type: "object",
      properties,
      required,
      additionalProperties: false,
    }, {
      validate(input) {
        try {
          return { success: true, value: checked(input) };
        } catch (error) {
          return { success: false, error: told(error) as Error };
        }
      },
    }),
    // It checks again, because nobody else does if it is called directly.
    execute: async (input, { abortSignal }: { abortSignal?: AbortSignal } = {}) => {
      try {
        return await answered(checked(input), abortSignal);
      } catch (error) {
        throw told(error);
      }
    },
  });

  async function answered({ query = "", ...asked }: Asked, signal?: AbortSignal): Promise<Found> {
    const given = { ...options, ...asked, signal } as unknown as SearchOptions<F>;
    const { hits, next_offset, ...page } = await search.search(query, given);
    const { results, hints } = fitting(
      hits.map((hit) =>
        Object.fromEntries(SHOWN.map((name) => [name, hit[name]])) as Found["results"][number]
      ),
    );
    const { total_count, left_out, answer_confidence, notes, degraded } = page;
    const { match_offset } = given as { match_offset?: number };
    const found = {
      results,
      hints: [...hints, ...overBudget(left_out)],
      total_count,
      // What does not fit begins the next page.
      next_offset: hints.length > 0 ? Number(match_offset ?? 0) + results.length : next_offset,
      left_out,
      answer_confidence,
      notes,
      degraded,
    };
    return JSON.parse(visible(JSON.stringify(found)));
  }
}
