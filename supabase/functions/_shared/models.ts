// What language models send to a tool and get from it: the same in every tool.

import { ANSWER_BOUND, type ArgumentSchema, INVISIBLE, LEFT_OUT, OVER_BUDGET } from "./contract.ts";
import { SecondBrainError } from "./errors.ts";
import { withinTokens } from "./hybrid_search.ts";

const encoder = new TextEncoder();
const HIDDEN = new RegExp(INVISIBLE, "gu");

/** @internal A text without characters that a reader does not see and a model may obey. */
export function visible(text: string): string {
  return text.replace(HIDDEN, "");
}

/** @internal What a model means: null for what it leaves out, and a value for its JSON in a text. */
export function meant(value: unknown, takesText: boolean): unknown {
  const isNothing = (one: unknown) =>
    one == null || typeof one === "string" && ["", "null"].includes(one.trim());
  if (isNothing(value) || Array.isArray(value) && value.every(isNothing)) return null;
  if (typeof value !== "string" || takesText) return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

/** @internal Whether a schema, or one of its alternatives, takes a text. */
export function takesText(schema: ArgumentSchema | { [key: string]: unknown }): boolean {
  const { type, anyOf = [] } = schema as { type?: string; anyOf?: ArgumentSchema[] };
  return type === "string" || anyOf.some(takesText);
}

/** @internal The results that fit into an answer, at least one, and what to say of the others. */
export function fitting<Result extends { content: string }>(
  found: Result[],
  max_tokens?: number | null,
) {
  const results: Result[] = [];
  let length = 0;
  for (const one of found) {
    const bytes = encoder.encode(one.content).slice(0, ANSWER_BOUND / 2);
    // The last character may be cut.
    const shown = { ...one, content: new TextDecoder().decode(bytes).replace(/\ufffd$/, "") };
    length += encoder.encode(JSON.stringify(shown)).length;
    if (results.length > 0 && length > ANSWER_BOUND) break;
    results.push(shown);
  }
  const left = found.length - results.length;
  const most = withinTokens(results.map((one) => one.content), max_tokens);
  const hints = [
    ...overBudget(results.length - most),
    ...(left > 0 ? [`${left} ${LEFT_OUT}`] : []),
  ];
  return { results: results.slice(0, most), hints };
}

/** @internal What to say of this many results that do not fit into a budget of tokens. */
export function overBudget(left: number): string[] {
  return left > 0 ? [`${left} ${OVER_BUDGET}`] : [];
}

/** @internal An error with its remedy in the message, which is all that a model gets. */
export function told(error: unknown): unknown {
  if (!(error instanceof SecondBrainError)) return error;
  const message = /[.?!]$/.test(error.message) ? error.message : `${error.message}.`;
  return Object.assign(error, { message: visible(`${message} ${error.remedy}`) });
}
