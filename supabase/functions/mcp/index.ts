// mcp: the search as a server of the Model Context Protocol, for assistants that sign in with
// Supabase Auth. It only reads, keeps no sessions, and searches with the caller's own token.

import {
  createMcpHandler,
  fromJsonSchema,
  type JsonSchemaValidator,
  type jsonSchemaValidator,
  McpServer,
  OAuthError,
  OAuthErrorCode,
  type OAuthTokenVerifier,
  requireBearerAuth,
} from "@modelcontextprotocol/server";
import { createClient } from "@supabase/supabase-js";
import { ANSWER_BOUND, type Json, OFF_SUBJECT, REMEDIES } from "../_shared/contract.ts";
import type { Filters, FilterValues, SearchHit, SearchOptions } from "../_shared/hybrid_search.ts";
import { fitting, meant, takesText, visible } from "../_shared/models.ts";
import {
  EXCERPTS,
  HISTORY,
  INSTRUCTIONS,
  MEMORY,
  METADATA_COLUMNS,
  MORE,
  MOST_CHARACTERS,
  MOST_CHUNKS,
  PASSAGE_COLUMNS,
  type Tool,
  TOOLS,
} from "../_shared/tools.ts";
import { called, Refusal, search } from "../_shared/user_search.ts";

const PROJECT = Deno.env.get("SUPABASE_URL")!;
// The address that callers use: another one with a domain of your own, or where you host Supabase.
const ADDRESS = Deno.env.get("MCP_URL") ?? `${PROJECT}/functions/v1/mcp`;
const METADATA = "/.well-known/oauth-protected-resource"; // RFC 9728

const HEADERS = {
  "Access-Control-Allow-Origin": Deno.env.get("ALLOWED_ORIGIN") ?? "*",
  "Access-Control-Allow-Headers":
    "authorization, content-type, mcp-protocol-version, mcp-method, mcp-name",
  "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
  "Access-Control-Expose-Headers": "WWW-Authenticate",
};

const { auth } = createClient(PROJECT, Deno.env.get("SUPABASE_ANON_KEY")!, {
  auth: { persistSession: false, autoRefreshToken: false },
});

const verifier: OAuthTokenVerifier = {
  async verifyAccessToken(token) {
    const { data, error } = await auth.getClaims(token).catch((error) => ({ data: null, error }));
    if (error?.name === "AuthRetryableFetchError") throw error;
    const claims = data?.claims;
    if (claims?.role !== "authenticated" || claims.aud !== "authenticated") {
      throw new OAuthError(OAuthErrorCode.InvalidToken, "The token is not a signed-in user's.");
    }
    return { token, clientId: claims.role, scopes: [], expiresAt: claims.exp };
  },
};

const signedIn = requireBearerAuth({ verifier, resourceMetadataUrl: `${ADDRESS}${METADATA}` });

interface Asked extends SearchOptions {
  query?: string;
  limit?: number;
  include_memory?: boolean;
  expand_neighbors?: boolean | number;
}

const ENTITIES: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'" };

/** A result as a model reads it: each line of its passage is quoted, and may be an excerpt. */
function passage(hit: SearchHit, excerpt: number) {
  let text = hit.context ?? hit.content;
  if (hit.context === null && text.length > excerpt) {
    const part = (hit.snippet?.replaceAll(/<\/?mark>/g, "") ?? text)
      .replaceAll(
        /&(amp|lt|gt|quot|#39);/g,
        (entity, name) => hit.snippet ? ENTITIES[name] : entity,
      );
    text = part.length <= excerpt ? part : `${part.slice(0, excerpt).trimEnd()} …`;
  }
  const lines = text.slice(0, ANSWER_BOUND / 2).split(/\r\n|[\n\r\v\f\u0085\u2028\u2029]/);
  const columns = Object.fromEntries(PASSAGE_COLUMNS.map((one) => [one, hit[one]]));
  return {
    ...columns as Pick<SearchHit, typeof PASSAGE_COLUMNS[number]>,
    valid_from: bound(hit, "valid_from"),
    valid_until: bound(hit, "valid_until"),
    content: lines.map((line) => `> ${line}`).join("\n"),
  };
}

function bound(hit: SearchHit, name: string): Json {
  return (hit.metadata as Record<string, Json>)[name] ?? null;
}

/** Search, and return what fits into an answer, with hints about the whole. */
async function found(
  token: string,
  { max_tokens, ...asked }: Asked,
  legs = "hybrid",
  excerpt = EXCERPTS.hybrid_search,
) {
  let answer = await searched(token, asked, legs);
  if (answer.pool_ended && answer.results.length < (asked.limit ?? 5)) {
    // The chunks of few documents filled the pools.
    answer = await searched(token, { pool_size: LARGEST_POOL, ...asked }, legs);
  }
  const shown = fitting(answer.results.map((hit) => passage(hit, excerpt)), max_tokens);
  const hints = [
    ...(answer.degraded ? [`${answer.degraded}.`] : []),
    ...(answer.pool_ended ? [MORE] : []),
    ...shown.hints,
  ];
  const truncated = answer.truncated || shown.hints.length > 0;
  const left_out = answer.results.length - shown.results.length;
  return { ...answer, results: shown.results, hints, truncated, left_out };
}

const LARGEST_POOL = 1000;

/** Search; memory and history only if the call asks for them. */
function searched(
  token: string,
  { query, limit = 5, filters, include_memory, expand_neighbors, ...options }: Asked,
  legs: string,
) {
  const conditions = [filters ?? []].flat() as FilterValues[];
  // In the short form, the collection is a key.
  const named = conditions.flatMap((one) =>
    one.field === "collection" ? one.value : one.collection
  );
  const apart = [include_memory ? [] : MEMORY, named.includes(HISTORY) ? [] : HISTORY].flat();
  if (!options.collections && apart.length > 0) {
    conditions.push({ field: "collection", op: "not_in", value: apart });
  }
  return search(`Bearer ${token}`, {
    query: query?.trim() || undefined,
    embedding: legs !== "text",
    words: legs !== "vector",
    explained: true,
    options: {
      one_per_document: options.max_per_document === undefined,
      ...(legs === "text" ? { embedding_from_text: false } : {}),
      ...options,
      match_count: limit,
      neighbor_window: Number(expand_neighbors ?? 0),
      filters: conditions as Filters,
    },
  });
}

interface Stored {
  id: string;
  title: string | null;
  source_url: string | null;
  chunk_count: number;
  chunks: { content: string }[];
  metadata: Record<string, Json>;
}

/** Read a document, or a part of a long one: whole passages, at least one. */
async function fetched(token: string, id: string, offset: number) {
  const document = await called(`Bearer ${token}`, "read_my_knowledge_document", {
    document: id,
    chunk_count: MOST_CHUNKS,
    chunk_offset: offset,
  }) as Stored & Record<string, Json> | null;
  if (!document) {
    const remedy = "Search first, and give the document_id of a result.";
    throw new Refusal(404, "invalid_input", `there is no document ${id} here`, remedy);
  }
  let length = 0;
  const passages = document.chunks.map((chunk) => chunk.content)
    .filter((text, place) => (length += text.length) <= MOST_CHARACTERS || place === 0);
  const next = offset + passages.length;
  const shown = METADATA_COLUMNS.map((column) => [column, document[column]]);
  const next_offset = next < document.chunk_count ? next : null;
  return {
    id,
    title: document.title ?? document.external_key ?? "untitled",
    text: passages.join("\n\n"),
    url: document.source_url ?? "",
    metadata: given({ ...document.metadata, ...Object.fromEntries(shown), next_offset }),
  };
}

// deno-lint-ignore no-explicit-any
type Arguments = any; // checked by the schema

const CALLS: Record<keyof typeof TOOLS, (token: string, asked: Arguments) => Promise<object>> = {
  hybrid_search: (token, asked: Asked) => found(token, asked),
  search_knowledge_base: (token, { query, match_count = 10, source_id, search_type }) => {
    const filters = source_id ? [{ field: "source_id", op: "eq", value: source_id }] : [];
    const asked = { query, limit: match_count, filters } as Asked;
    return found(token, asked, search_type, EXCERPTS.search_knowledge_base);
  },
  search: async (token, { query }) => {
    const { results } = await found(token, { query, limit: 10 });
    return {
      results: results.map((hit) => ({
        id: hit.document_id ?? hit.id,
        title: hit.title ?? hit.external_key ?? "untitled",
        url: hit.source_url ?? "",
      })),
    };
  },
  fetch: (token, { id, offset = 0 }) => fetched(token, id, offset),
};

/** The keys with a value. */
function given(asked: object): object {
  return Object.fromEntries(Object.entries(asked).filter(([, value]) => value != null));
}

/** What a model sent without what it leaves out, and what it wrote as JSON in a text. */
function asMeant(sent: object, { properties }: Tool["inputSchema"]): object {
  return given(Object.fromEntries(
    Object.entries(sent).map(([name, value]) => {
      return [name, meant(value, takesText(properties[name] ?? {}))];
    }),
  ));
}

// A tool checks its arguments itself, so that a refusal has its remedy.
const UNCHECKED: jsonSchemaValidator = {
  getValidator<T>(): JsonSchemaValidator<T> {
    return (input) => ({ valid: true, data: input as T, errorMessage: undefined });
  },
};

const LISTED = Object.entries<Tool>(TOOLS).map(([name, tool]) => {
  const schema = tool.inputSchema;
  return {
    ...tool,
    name: name as keyof typeof TOOLS,
    description: name === "hybrid_search"
      ? `${tool.description} Below an answer_confidence of ${OFF_SUBJECT}, they may be off the ` +
        "subject."
      : tool.description,
    inputSchema: fromJsonSchema<object>(schema, UNCHECKED),
    check: fromJsonSchema<object>(schema)["~standard"].validate,
    names: Object.keys(schema.properties),
  };
});

const handler = createMcpHandler(({ authInfo }) => {
  const server = new McpServer({ name: "second-brain", version: "0.1.0" }, {
    capabilities: { tools: { listChanged: false } },
    instructions: INSTRUCTIONS,
  });
  for (const { name, title, description, inputSchema, check, names, failed } of LISTED) {
    server.registerTool(name, {
      title,
      description,
      inputSchema,
      annotations: { readOnlyHint: true, idempotentHint: true, openWorldHint: false },
    }, async (sent) => {
      try {
        const unknown = Object.keys(sent).find((one) => !names.includes(one));
        const asked = asMeant(sent, TOOLS[name].inputSchema);
        const issues = unknown
          ? [{ message: `${unknown} is no argument, known are: ${names.join(", ")}` }]
          : (await check(asked)).issues;
        if (issues) {
          const message = issues.map((one) => one.message).join("; ");
          throw new Refusal(400, "invalid_input", message, REMEDIES.invalid_input);
        }
        const content = await CALLS[name](authInfo?.token ?? "", asked);
        // In JSON, a passage cannot look like another result.
        const text = visible(JSON.stringify(content, (_, value) => value ?? undefined));
        const structuredContent = JSON.parse(visible(JSON.stringify(content)));
        return { content: [{ type: "text", text }], structuredContent };
      } catch (error) {
        if (!(error instanceof Refusal)) console.error(error);
        const { message, remedy } = error instanceof Refusal
          ? error
          : { message: "the search failed", remedy: "The function's log has the cause." };
        const text = `${failed}: ${message}. ${remedy}`;
        return { content: [{ type: "text", text }], isError: true };
      }
    });
  }
  return server;
}, { onerror: console.error });

async function answer(request: Request): Promise<Response> {
  if (request.method === "OPTIONS") return new Response(null, { status: 204 });
  if (request.method === "GET" && new URL(request.url).pathname.includes(METADATA)) {
    return Response.json({
      resource: ADDRESS,
      authorization_servers: [`${new URL(ADDRESS).origin}/auth/v1`],
      bearer_methods_supported: ["header"],
    });
  }
  const user = await signedIn(request);
  return user instanceof Response ? user : await handler.fetch(request, { authInfo: user });
}

Deno.serve(async (request) => {
  const response = await answer(request);
  for (const [name, value] of Object.entries(HEADERS)) response.headers.set(name, value);
  return response;
});
