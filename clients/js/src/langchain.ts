// A vector store and a retriever for LangChain.js. The store writes and deletes as service role.

import { Document, type DocumentInterface } from "@langchain/core/documents";
import type { EmbeddingsInterface } from "@langchain/core/embeddings";
import { BaseRetriever, type BaseRetrieverInput } from "@langchain/core/retrievers";
import { VectorStore } from "@langchain/core/vectorstores";
import {
  checkFilters,
  createSearch,
  type FilterCondition,
  type FilterGroup,
  type Filters,
  InvalidInputError,
  type KnowledgeDocument,
  present,
  type Question,
  type Search,
  searchError,
  type SearchFunction,
  type SearchHit,
  type SearchOptions,
} from "./index.ts";

export interface StoreConfig {
  /** A client of supabase-js with the key of the service role. */
  client: StoreClient;
  /** The collection of the store's documents, by default `knowledge`. */
  collection?: string;
  /** Which legs a search by text has, by default both. */
  mode?: "hybrid" | "vector" | "text";
  /** The name that is stored with the embeddings; by default that of the model, else the class. */
  model?: string;
  /** Further fields of each document that is written, such as `{ visibility: "public" }`. */
  fields?: Partial<Omit<KnowledgeDocument, "external_key" | "collection" | "metadata">>;
  /** Arguments of each search, such as `{ viewer_id: "..." }`. */
  options?: SearchOptions<"hybrid_search_knowledge_chunks">;
}

/** What is used of a client: functions, and one table to see whose an id is. */
export interface StoreClient {
  // deno-lint-ignore no-explicit-any
  rpc(name: any, given: any): any;
  // deno-lint-ignore no-explicit-any
  from(table: any): any;
}

const AT_ONCE = 8; // writes
const LONGEST_LIST = 2700; // bytes, of which each may be three characters of an address

/**
 * A store: each document is a document of one collection with one chunk, and its id is the
 * `external_key`. A filter is an object of metadata keys, or a list of conditions. Scores are
 * cosine similarities for searches by vector (-1 to 1), else `confidence` (0 to 1).
 */
export class SecondBrainVectorStore extends VectorStore {
  declare FilterType: Filters;
  readonly #search: Search<"hybrid_search_knowledge_chunks">;
  readonly #client: StoreClient;
  readonly #collection: string;
  readonly #mode: "hybrid" | "vector" | "text";
  readonly #model: string;
  readonly #fields: StoreConfig["fields"];
  readonly #options: StoreConfig["options"];

  constructor(embeddings: EmbeddingsInterface, config: StoreConfig) {
    super(embeddings, {});
    this.#client = config.client;
    this.#search = createSearch(config.client, { function: "hybrid_search_knowledge_chunks" });
    this.#collection = config.collection ?? "knowledge";
    this.#mode = config.mode ?? "hybrid";
    this.#model = config.model ?? modelOf(embeddings);
    this.#fields = config.fields;
    this.#options = present(config.options ?? {});
  }

  _vectorstoreType(): string {
    return "second-brain";
  }

  static override async fromTexts(
    texts: string[],
    metadatas: object | object[],
    embeddings: EmbeddingsInterface,
    config: StoreConfig & { ids?: string[] },
  ): Promise<SecondBrainVectorStore> {
    const documents = texts.map((pageContent, place) =>
      new Document({
        pageContent,
        metadata: (Array.isArray(metadatas) ? metadatas[place] : metadatas) ?? {},
      })
    );
    return await this.fromDocuments(documents, embeddings, config);
  }

  static override async fromDocuments(
    documents: DocumentInterface[],
    embeddings: EmbeddingsInterface,
    config: StoreConfig & { ids?: string[] },
  ): Promise<SecondBrainVectorStore> {
    const store = new this(embeddings, config);
    await store.addDocuments(documents, config.ids ? { ids: config.ids } : {});
    return store;
  }

  /** Embed and store documents; one replaces the stored one with its id. Return the ids. */
  async addDocuments(
    documents: DocumentInterface[],
    options: { ids?: (string | undefined)[] } = {},
  ): Promise<string[]> {
    const texts = documents.map((one) => one.pageContent);
    const vectors = texts.length > 0 ? await this.embeddings.embedDocuments(texts) : [];
    return await this.addVectors(vectors, documents, options);
  }

  /** Store documents with their embeddings, each in a transaction of its own. Return the ids. */
  async addVectors(
    vectors: number[][],
    documents: DocumentInterface[],
    { ids = documents.map((one) => one.id) }: { ids?: (string | undefined)[] } = {},
  ): Promise<string[]> {
    for (const [name, given] of Object.entries({ vectors, ids })) {
      if (given.length !== documents.length) {
        throw new InvalidInputError(
          `${name} must have one element for each of the ${documents.length} documents, ` +
            `not ${given.length}`,
        );
      }
    }
    const keys = ids.map((id) => id ?? crypto.randomUUID());
    const elsewhere = (await this.#stored(keys)).find((one) => one.collection !== this.#collection);
    if (elsewhere) {
      throw new InvalidInputError(
        `the id ${elsewhere.external_key} is a document of another collection`,
        { remedy: "Use other ids, such as UUIDs." },
      );
    }
    // Of two documents with one id, the last one is stored.
    const last = new Map(keys.map((key, place) => [key, place]));
    await atOnce([...last], async ([key, place]) => {
      await this.#search.upsert(
        {
          ...this.#fields,
          external_key: key,
          collection: this.#collection,
          metadata: documents[place]!.metadata as KnowledgeDocument["metadata"],
        },
        [{
          content: documents[place]!.pageContent,
          embedding: vectors[place]!,
          embedding_model: this.#model,
        }],
        { fields: "replace" },
      );
    });
    return keys;
  }

  /** Delete the documents with these ids; those that the collection does not have are ignored. */
  override async delete({ ids }: { ids?: string[] } = {}): Promise<void> {
    if (!Array.isArray(ids)) {
      throw new InvalidInputError("delete needs ids", { remedy: "Give { ids: [...] }." });
    }
    const own = (await this.#stored(ids)).filter((one) => one.collection === this.#collection);
    await atOnce(own, async ({ external_key }) => {
      await this.#search.delete(external_key);
    });
  }

  /** Search by vector; the score is the cosine similarity. */
  async similaritySearchVectorWithScore(
    query: number[],
    k: number,
    filter?: Filters,
  ): Promise<[Document, number][]> {
    return (await this.#hits({ embedding: query }, k, filter)).map((hit) => [
      documentOf(hit),
      hit.similarity ?? 0,
    ]);
  }

  /** Search with the legs of the mode. */
  override async similaritySearchWithScore(
    query: string,
    k = 4,
    filter?: Filters,
  ): Promise<[Document, number][]> {
    if (this.#mode === "text") return (await this.#hits({ text: query }, k, filter)).map(scored);
    const embedding = await this.embeddings.embedQuery(query);
    if (this.#mode === "vector") {
      return await this.similaritySearchVectorWithScore(embedding, k, filter);
    }
    return (await this.#hits({ text: query, embedding }, k, filter)).map(scored);
  }

  override async similaritySearch(query: string, k = 4, filter?: Filters): Promise<Document[]> {
    return (await this.similaritySearchWithScore(query, k, filter)).map(([found]) => found);
  }

  async #hits(question: Question, k: number, filter?: Filters): Promise<SearchHit[]> {
    const { hits } = await this.#search.search(question, {
      // Without a threshold a store returns k documents, also those of negative similarity.
      match_threshold: -1,
      ...this.#options,
      match_count: k,
      filters: conditions(filter),
      collections: [this.#collection],
    });
    return hits;
  }

  async #stored(ids: string[]): Promise<{ external_key: string; collection: string }[]> {
    const found: { external_key: string; collection: string }[] = [];
    const lists: string[] = [];
    for (const one of ids.map((id) => `"${id.replaceAll(/["\\]/g, "\\$&")}"`)) {
      const last = `${lists.at(-1) ?? ""},${one}`;
      if (lists.length > 0 && new TextEncoder().encode(last).length <= LONGEST_LIST) {
        lists.splice(-1, 1, last);
      } else lists.push(one);
    }
    for (const list of lists) {
      const { data, error, status } = await this.#client
        .from("knowledge_documents")
        .select("external_key,collection")
        // The client's own `in` does not escape quotes.
        .filter("external_key", "in", `(${list})`);
      if (error) throw searchError(error, status);
      found.push(...data);
    }
    return found;
  }
}

export interface RetrieverConfig<F extends SearchFunction> extends BaseRetrieverInput {
  search: Search<F>;
  /** The most documents, by default 10. */
  k?: number;
  /** Arguments of each search. */
  options?: SearchOptions<F>;
}

/** A retriever over any corpus; its documents have the row's metadata and the hit's columns. */
export class SecondBrainRetriever<F extends SearchFunction = "search_my_knowledge_chunks">
  extends BaseRetriever {
  lc_namespace = ["second_brain", "retrievers"];
  readonly #config: RetrieverConfig<F>;

  static override lc_name(): string {
    return "SecondBrainRetriever";
  }

  constructor(config: RetrieverConfig<F>) {
    super(config);
    present(config.options ?? {});
    this.#config = config;
  }

  override async _getRelevantDocuments(query: string): Promise<Document[]> {
    const { search, k, options } = this.#config;
    const given = { ...options, ...(k === undefined ? {} : { match_count: k }) };
    const { hits, answer_confidence, degraded } = await search.search(
      query,
      given as SearchOptions<F>,
    );
    return hits.map((hit, place) => {
      const { id, content, metadata, ...columns } = hit;
      return new Document({
        id,
        pageContent: hit.context ?? content,
        metadata: {
          ...metadata as object,
          ...columns,
          rank: place + 1,
          answer_confidence,
          degraded,
        },
      });
    });
  }
}

/** An object of metadata keys as conditions: a key with the name of a column is metadata, too. */
function conditions(filter: Filters | undefined): Filters | undefined {
  checkFilters(filter);
  if (
    !filter || Array.isArray(filter) ||
    ("field" in filter && ("op" in filter || "operator" in filter))
  ) return filter;
  return Object.entries(filter).map(([key, value = null]): FilterCondition | FilterGroup => {
    // The groups of LangChain's other stores, each part an object or a list as here.
    if ((key === "$or" || key === "$and") && Array.isArray(value)) {
      const parts = value.map(grouped);
      return key === "$or" ? { any: parts } : { all: parts };
    }
    if (key === "$not" && value !== null && typeof value === "object") {
      return { not: grouped(value) };
    }
    const path = key.replace(/^metadata[.]/, "");
    if (path !== key || !/[.]|^[$]/.test(key)) {
      return { field: `metadata.${path}`, op: "eq", value };
    }
    if (key.startsWith("$") || value === null || typeof value === "object") {
      throw new InvalidInputError(
        `filters: ${key} is no key with a text, a number or a boolean`,
        {
          remedy: "For operators and paths of keys, give a list of conditions, such as " +
            '[{ field: "metadata.page", op: "in", value: [1, 2] }].',
        },
      );
    }
    // In a field, the dot is a path. Containment of a scalar is equality.
    return { field: "metadata", op: "contains", value: { [key]: value } };
  });
}

function grouped(part: unknown): FilterGroup {
  return { all: [conditions(part as Filters) ?? []].flat() as (FilterCondition | FilterGroup)[] };
}

function documentOf(hit: SearchHit): Document {
  return new Document({
    id: hit.external_key ?? hit.id,
    pageContent: hit.content,
    metadata: hit.metadata as Record<string, unknown>,
  });
}

function scored(hit: SearchHit): [Document, number] {
  return [documentOf(hit), hit.confidence];
}

function modelOf(embeddings: EmbeddingsInterface): string {
  const { model, modelName } = embeddings as { model?: unknown; modelName?: unknown };
  for (const name of [model, modelName]) if (typeof name === "string" && name) return name;
  return embeddings.constructor.name;
}

async function atOnce<Item>(items: Item[], run: (item: Item) => Promise<void>): Promise<void> {
  for (let start = 0; start < items.length; start += AT_ONCE) {
    await Promise.all(items.slice(start, start + AT_ONCE).map(run));
  }
}
