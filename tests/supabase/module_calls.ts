// Calls hybrid_search.ts for test_hybrid_search_module.py: a call as a line of JSON in, its outcome
// as a line of JSON out.

import { createClient } from "@supabase/supabase-js";
import {
  hybridSearch,
  SearchError,
  searchError,
  type SearchPage,
  searchPages,
} from "../../supabase/functions/_shared/hybrid_search.ts";
import { read } from "../../supabase/functions/_shared/user_search.ts";

type Call = {
  url: string;
  key: string;
  token: string;
  question: Parameters<typeof hybridSearch>[1];
  options: Parameters<typeof hybridSearch>[2];
  pages?: boolean;
  aborted_after?: number;
};

async function outcome(call: Call): Promise<unknown> {
  const { url, key, token, question, options, pages, aborted_after } = call;
  const client = createClient(url, key, { accessToken: () => Promise.resolve(token) });
  const signal = aborted_after === undefined ? undefined : AbortSignal.timeout(aborted_after);
  try {
    if (!pages) return await hybridSearch(client, question, { ...options, signal });
    const found: SearchPage[] = [];
    for await (const page of searchPages(client, question, options)) found.push(page);
    return found;
  } catch (error) {
    if (!(error instanceof SearchError)) return { thrown: (error as Error).name };
    const { kind, message, remedy, code, status } = error;
    return { kind, message, remedy, code, status };
  }
}

/** The error, and the classes that it is of. */
function told(error: SearchError): unknown {
  const classes = [];
  for (let one = Object.getPrototypeOf(error); one !== Error.prototype;) {
    classes.push(one.constructor.name);
    one = Object.getPrototypeOf(one);
  }
  const { kind, message, remedy } = error;
  return { kind, message, remedy, classes };
}

/** What the Edge Function search reads of a body, or how it refuses it. */
function bodyOf(body: unknown): unknown {
  try {
    return read(body).options;
  } catch (error) {
    return { refused: (error as Error).message };
  }
}

let text = "";
for await (const part of Deno.stdin.readable.pipeThrough(new TextDecoderStream())) {
  text += part;
  const lines = text.split("\n");
  text = lines.pop()!;
  for (const line of lines) {
    const asked = JSON.parse(line);
    const answer = asked.bodies
      ? asked.bodies.map(bodyOf)
      : asked.failures
      ? asked.failures.map((one: [Record<string, string>, number]) => told(searchError(...one)))
      : await outcome(asked);
    console.log(JSON.stringify(answer));
  }
}
