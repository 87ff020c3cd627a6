// second-brain: search, facets and writing with a supabase-js client that the caller passes.
// It ranks and filters nothing: each method is one call of an SQL function.

import type { DocumentColumns, Upserted } from "../../../supabase/functions/_shared/contract.ts";
import {
  callFunction,
  type CallOptions,
  checkValue,
  ConfigurationError,
  DEFAULT_TIMEOUT,
  hybridSearch,
  InvalidInputError,
  type Json,
  present,
  type Question,
  questionParts,
  type SearchArguments,
  searchArguments,
  type SearchClient,
  type SearchFunction,
  type SearchOptions,
  type SearchPage,
  searchPages,
  SecondBrainError,
  UnavailableError,
  UnexpectedAnswerError,
  vector,
} from "../../../supabase/functions/_shared/hybrid_search.ts";

export type { Upserted } from "../../../supabase/functions/_shared/contract.ts";
export * from "../../../supabase/functions/_shared/hybrid_search.ts";
export * from "../../../supabase/functions/_shared/models.ts";

/** Texts to embeddings of the corpus's model, one for each, in their order. */
export type Embed = (
  texts: string[],
  purpose: "query" | "document",
) => Promise<ArrayLike<number>[]>;

/** A model of Supabase's Edge Functions: `new Supabase.ai.Session("gte-small")`. */
export interface EmbeddingSession {
  run(text: string, options: { mean_pool: true; normalize: true }): Promise<unknown>;
}

export interface Setup<F extends SearchFunction = SearchFunction> extends CallOptions {
  /** What `search` calls: as the signed-in user (the default), as a visitor, as service role. */
  function?: F;
  /** Embeds questions, and chunks of `upsert`; without it, searches are by text. */
  embed?: Embed | EmbeddingSession;
  /** The name that is stored with the embeddings of `upsert`. */
  model?: string;
  /** Refuse a search as service role without viewer_id, viewer_groups or `public_only: true`. */
  multiTenant?: boolean;
}

/** A document: its key and what is known of it. */
export type KnowledgeDocument = Omit<
  DocumentColumns,
  "id" | "content_hash" | "created_at" | "updated_at" | "source_row"
>;

/** A chunk of a document. */
export interface KnowledgeChunk {
  content: string;
  heading?: string | null;
  /** A list, a typed array, or a text in pgvector's form. */
  embedding?: ArrayLike<number> | string | null;
  embedding_model?: string | null;
  collection?: string;
  metadata?: Json;
}

/** How many of the matching chunks have a value. */
export interface FacetCount {
  facet: string;
  value: string | number | boolean;
  count: number;
}

/** Why a search found nothing: see `explain_empty_knowledge_search` in the reference. */
export type EmptyExplanation = { [key: string]: Json | undefined };

// The functions that count and explain what a function that searches finds.
const BESIDE = {
  search_my_knowledge_chunks: {
    facets: "facet_my_knowledge_chunks",
    empty: "explain_my_empty_knowledge_search",
  },
  search_public_knowledge_chunks: {
    facets: null,
    empty: "explain_public_empty_knowledge_search",
  },
  hybrid_search_knowledge_chunks: {
    facets: "facet_knowledge_chunks",
    empty: "explain_empty_knowledge_search",
  },
} as const;

/** The search of one client. All methods reject with a SecondBrainError. */
export class Search<F extends SearchFunction = "search_my_knowledge_chunks"> {
  readonly client: SearchClient;
  readonly setup: Setup<F>;

  constructor(client: SearchClient, setup: Setup<F> = {}) {
    this.client = client;
    this.setup = setup;
  }

  /** Search with the function of the setup, and return the page at `match_offset`. */
  async search<G extends SearchFunction = F>(
    question: Question,
    options?: SearchOptions<G>,
  ): Promise<SearchPage> {
    const { degraded, ...asked } = await this.#embedded<G>(question, this.#options(options));
    return { ...await hybridSearch<G>(this.client, asked.question, asked.options), degraded };
  }

  /** Search as the user of the client's token: own rows, rows of the user's groups, public ones. */
  searchMine(
    question: Question,
    options?: SearchOptions<"search_my_knowledge_chunks">,
  ): Promise<SearchPage> {
    return this.search(question, { ...options, function: "search_my_knowledge_chunks" });
  }

  /** Search public rows as a visitor; the project must have granted it. */
  searchPublic(
    question: Question,
    options?: SearchOptions<"search_public_knowledge_chunks">,
  ): Promise<SearchPage> {
    return this.search(question, { ...options, function: "search_public_knowledge_chunks" });
  }

  /** Search page after page. */
  async *pages<G extends SearchFunction = F>(
    question: Question,
    options?: SearchOptions<G>,
  ): AsyncGenerator<SearchPage, void, undefined> {
    const { degraded, ...asked } = await this.#embedded<G>(question, this.#options(options));
    for await (const page of searchPages<G>(this.client, asked.question, asked.options)) {
      yield { ...page, degraded };
    }
  }

  /**
   * Count the values of columns and metadata keys in the chunks that match, most frequent first.
   * Without a question (null), in all chunks that pass the filters. It needs the module facets.
   */
  async facets<G extends SearchFunction = F>(
    question: Question | null,
    facets: string[],
    options?: SearchOptions<G> & { facet_limit?: number },
  ): Promise<FacetCount[]> {
    const { facet_limit, ...others } = this.#options(options);
    const { name, search, call } = await this.#described(
      question ?? {},
      others as SearchOptions<G>,
    );
    const counting = BESIDE[name].facets;
    if (!counting) throw new InvalidInputError(`there are no facets of ${name}`);
    const given = { search, facets, facet_limit };
    return this.#rows<FacetCount>(await callFunction(this.client, counting, given, call));
  }

  /** Say why a search found nothing. It needs the module insight. */
  async explainEmpty<G extends SearchFunction = F>(
    question: Question,
    options?: SearchOptions<G>,
  ): Promise<EmptyExplanation> {
    const { name, search, call } = await this.#described(question, this.#options(options));
    const said = await callFunction(this.client, BESIDE[name].empty, { search }, call);
    return said as EmptyExplanation;
  }

  /**
   * Store a document and all its chunks in one transaction, as service role. A chunk without an
   * embedding gets one from `embed`, if there is one. `fields`: merge or replace.
   */
  async upsert(
    document: KnowledgeDocument,
    chunks: KnowledgeChunk[],
    options: CallOptions & { fields?: "merge" | "replace" } = {},
  ): Promise<Upserted> {
    const { fields, ...call } = { ...this.#call(), ...present(options) };
    if (typeof document !== "object" || !document || Array.isArray(document)) {
      throw new InvalidInputError("document must be an object with external_key");
    }
    checkValue(document, "document");
    const given = { document, chunks: await this.#withEmbeddings(chunks, call), fields };
    const answer = await callFunction(this.client, "upsert_knowledge_document", given, call);
    const [done] = this.#rows<Upserted>(answer);
    if (!done) throw new UnexpectedAnswerError("the answer does not say what was stored");
    return done;
  }

  /** Delete the document with this external_key for good, as service role; count its chunks. */
  async delete(external_key: string, options: CallOptions = {}): Promise<number> {
    if (typeof external_key !== "string") {
      throw new InvalidInputError(`external_key must be a text, not ${typeof external_key}`);
    }
    const given = { document_key: external_key };
    const call = { ...this.#call(), ...present(options) };
    return await callFunction(this.client, "delete_knowledge_document", given, call) as number;
  }

  /**
   * Embed texts with `embed`: one embedding for each, or a SecondBrainError. It ends early as a
   * call of the database does; `timeout` is for each text.
   */
  async embeddings(
    texts: string[],
    purpose: "query" | "document",
    { signal, timeout = DEFAULT_TIMEOUT }: CallOptions = this.#call(),
  ): Promise<ArrayLike<number>[]> {
    const { embed } = this.setup;
    if (!embed) throw new ConfigurationError("createSearch() got no embed");
    let found: unknown[] = [];
    try {
      const run = async () => {
        if (typeof embed === "function") return await embed(texts, purpose);
        const each: unknown[] = [];
        // The runtime of Edge Functions runs one at a time.
        for (const text of texts) {
          each.push(await embed.run(text, { mean_pool: true, normalize: true }));
        }
        return each;
      };
      signal?.throwIfAborted();
      found = await within(run(), timeout * texts.length, signal);
    } catch (error) {
      signal?.throwIfAborted();
      if (error instanceof SecondBrainError) throw error;
      const failed = new UnavailableError(`embed failed: ${(error as Error)?.message ?? error}`);
      throw Object.assign(failed, { cause: error });
    }
    const isWhole = Array.isArray(found) && found.length === texts.length;
    if (!isWhole || found.some((one) => typeof (one as number[])?.length !== "number")) {
      throw new UnexpectedAnswerError(
        `embed must resolve to one array of numbers for each of the ${texts.length} texts`,
        { remedy: "Return the embeddings in the order of the texts." },
      );
    }
    return found as ArrayLike<number>[];
  }

  #call(): CallOptions {
    const { signal, timeout } = this.setup;
    return { signal, timeout };
  }

  #options<G extends SearchFunction, O extends SearchOptions<G>>(options?: O): O {
    const given = { function: this.setup.function, ...this.#call(), ...present(options ?? {}) };
    const { viewer_id, viewer_groups, public_only } = given as SearchArguments;
    const isOfAll = viewer_id == null && viewer_groups == null && public_only !== true;
    if (this.setup.multiTenant && isOfAll && given.function === "hybrid_search_knowledge_chunks") {
      throw new InvalidInputError(
        "the search is multiTenant, so each call needs viewer_id, viewer_groups or " +
          "public_only: true",
      );
    }
    return given as O;
  }

  /**
   * Add the embedding of a text; `embedding: null` searches by the text alone. If `embed` fails,
   * the database makes one of the best text hits.
   */
  async #embedded<G extends SearchFunction>(question: Question, options: SearchOptions<G>) {
    const { text, embedding } = questionParts(question);
    if (!this.setup.embed || embedding !== undefined || !text?.trim()) {
      return { question, options, degraded: null };
    }
    try {
      const [found] = await this.embeddings([text], "query", options);
      return { question: { text, embedding: found }, options, degraded: null };
    } catch (error) {
      options.signal?.throwIfAborted();
      const degraded = `${(error as Error).message}; the best text hits gave the embedding`;
      return { question: text, options: { embedding_from_text: true, ...options }, degraded };
    }
  }

  /** A search as one object, as functions take it that count or explain searches. */
  async #described<G extends SearchFunction>(asked: Question, given: SearchOptions<G>) {
    const { question, options } = await this.#embedded(asked, given);
    const { function: name = "search_my_knowledge_chunks" as G, signal, timeout, ...others } =
      options;
    const search = searchArguments(question, others);
    return { name: name as SearchFunction, search, call: { signal, timeout } };
  }

  async #withEmbeddings(chunks: KnowledgeChunk[], call: CallOptions): Promise<Json[]> {
    if (!Array.isArray(chunks) || chunks.some((one) => typeof one !== "object" || !one)) {
      throw new InvalidInputError("chunks must be a list of objects, each with content");
    }
    chunks.forEach((one, at) => {
      const { embedding, ...others } = one;
      checkValue(others, `chunks[${at}]`);
      if ("embedding" in one && embedding !== null) vector(embedding!, `chunks[${at}].embedding`);
    });
    const bare = this.setup.embed ? chunks.filter((one) => one.embedding === undefined) : [];
    if (bare.length > 0 && !this.setup.model) {
      throw new ConfigurationError("createSearch() got embed without model, the model's name");
    }
    const texts = bare.map((one) => one.content);
    const found = texts.length > 0 ? await this.embeddings(texts, "document", call) : [];
    return chunks.map((one, at) => {
      const place = bare.indexOf(one);
      const embedding = place < 0 ? one.embedding : found[place];
      if (embedding == null) return one as unknown as Json;
      const { model } = this.setup;
      const numbers = vector(embedding, `chunks[${at}].embedding`);
      return { ...(model && { embedding_model: model }), ...one, embedding: numbers } as Json;
    });
  }

  #rows<Row>(data: unknown): Row[] {
    if (!Array.isArray(data)) {
      throw new UnexpectedAnswerError("the answer does not consist of rows");
    }
    return data;
  }
}

/** Wait for work, but no longer than these milliseconds, and only until the signal aborts. */
async function within<T>(work: Promise<T>, most: number, signal?: AbortSignal): Promise<T> {
  let stop = () => {};
  const ended = new Promise<never>((_, reject) => {
    const abort = () => reject(signal?.reason);
    const late = new UnavailableError(`embed took longer than ${most} ms`);
    // setTimeout ends at once for a longer time.
    const timer = setTimeout(() => reject(late), Math.min(most, 2 ** 31 - 1));
    signal?.addEventListener("abort", abort);
    stop = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    };
  });
  try {
    return await Promise.race([work, ended]);
  } finally {
    stop();
  }
}

/** Return the search of a supabase-js client, or of its `schema("...")`. */
export function createSearch<F extends SearchFunction = "search_my_knowledge_chunks">(
  client: SearchClient,
  setup: Setup<F> = {},
): Search<F> {
  return new Search(client, setup);
}
