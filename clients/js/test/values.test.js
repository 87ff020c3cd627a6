// What is sent is what was given: who asks is never undefined, and no value is changed on its way.

import { Document } from "@langchain/core/documents";
import { SyntheticEmbeddings } from "@langchain/core/utils/testing";
import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { readFile } from "node:fs/promises";
import {
  callFunction,
  createSearch,
  hybridSearch,
  searchArguments,
  searchPages,
  withinTokens,
} from "@second-brain-sql/client";
import { searchTool } from "@second-brain-sql/client/ai";
import { SecondBrainRetriever, SecondBrainVectorStore } from "@second-brain-sql/client/langchain";
import { pgliteClient } from "@second-brain-sql/client/pglite";
import { ANA, asService, BEN, embedding, emptied, installed, ROOT } from "./database.js";

const HYBRID = { function: "hybrid_search_knowledge_chunks" };
const refused = (path) => (error) => {
  assert.equal(error.name, "InvalidInputError", `${error}`);
  assert.ok(error.message.startsWith(`${path} `), `${path}: ${error.message}`);
  assert.ok(error.remedy);
  return true;
};

/** A client whose calls are a mistake of the test. */
const nobody = { rpc: () => assert.fail("a call was sent") };

describe("who asks", () => {
  const WHO = ["viewer_id", "viewer_groups", "public_only", "required_filters"];
  const search = createSearch(nobody, HYBRID);
  const embeddings = new SyntheticEmbeddings({ vectorSize: 3 });
  const first = (pages) => pages.next();
  const calls = {
    search: (options) => search.search("a", options),
    searchMine: (options) => search.searchMine("a", options),
    searchPublic: (options) => search.searchPublic("a", options),
    pages: (options) => first(search.pages("a", options)),
    facets: (options) => search.facets("a", ["collection"], options),
    "facets of all": (options) => search.facets(null, ["collection"], options),
    explainEmpty: (options) => search.explainEmpty("a", options),
    hybridSearch: (options) => hybridSearch(nobody, "a", { ...HYBRID, ...options }),
    searchPages: (options) => first(searchPages(nobody, "a", { ...HYBRID, ...options })),
    callFunction: (options) => callFunction(nobody, HYBRID.function, options, {}),
    tool: async (options) => await searchTool(search, { options }).execute({ query: "a" }, {}),
    store: async (options) => {
      const store = new SecondBrainVectorStore(embeddings, { client: nobody, options });
      await store.similaritySearch("a");
    },
    retriever: async (options) => await new SecondBrainRetriever({ search, options }).invoke("a"),
  };

  for (const [name, call] of Object.entries(calls)) {
    test(`${name}: undefined is refused before anything is sent`, async () => {
      for (const who of WHO) await assert.rejects(call({ [who]: undefined }), refused(who));
      // Beside another one that says it, too.
      const both = { viewer_id: ANA, viewer_groups: undefined };
      await assert.rejects(call(both), refused("viewer_groups"));
    });
  }

  test("in a batch and in the object of a search, it is refused with its path", async () => {
    for (const who of WHO) {
      const query = { query_text: "a", [who]: undefined };
      const batch = "hybrid_search_knowledge_chunks_batch";
      await assert.rejects(
        callFunction(nobody, batch, { queries: [{}, query] }, {}),
        refused(`queries[1].${who}`),
      );
      await assert.rejects(
        callFunction(nobody, "facet_knowledge_chunks", { search: query, facets: [] }, {}),
        refused(`search.${who}`),
      );
    }
  });

  test("a function that is undefined is that of the setup", async () => {
    const called = [];
    const client = {
      rpc(name) {
        called.push(name);
        return { abortSignal: () => Promise.resolve({ data: [], error: null, status: 200 }) };
      },
    };
    const visitors = createSearch(client, { function: "search_public_knowledge_chunks" });
    await visitors.search("a", { function: undefined, timeout: undefined, signal: undefined });
    assert.deepEqual(called, ["search_public_knowledge_chunks"]);
  });

  test("multiTenant refuses what names nobody, and passes what does", async () => {
    const database = await installed();
    await emptied(database);
    for (const owner_id of [ANA, BEN]) {
      const document = { external_key: owner_id, owner_id };
      await asService(database).upsert(document, [{ content: "A salary." }]);
    }
    const tenants = asService(database, { multiTenant: true });
    const nobodys = [{}, { viewer_id: null }, { viewer_groups: null, public_only: false }];
    for (const options of nobodys) {
      const all = [
        tenants.search("salary", options),
        first(tenants.pages("salary", options)),
        tenants.facets("salary", ["collection"], options),
        tenants.explainEmpty("salary", options),
        searchTool(tenants, { options }).execute({ query: "salary" }, {}),
      ];
      for (const one of all) await assert.rejects(one, refused("the search is multiTenant, so"));
    }
    const { hits } = await tenants.search("salary", { viewer_id: ANA });
    assert.deepEqual(hits.map((hit) => hit.external_key), [ANA]);
    for (const options of [{ viewer_groups: [] }, { public_only: true }]) {
      assert.deepEqual((await tenants.search("salary", options)).hits, []);
    }
    // The functions of users and visitors have their viewer from the token.
    const user = pgliteClient(database, { role: "authenticated", claims: { sub: BEN } });
    const mine = await createSearch(user, { multiTenant: true }).search("salary");
    assert.deepEqual(mine.hits.map((hit) => hit.external_key), [BEN]);
  });
});

describe("the arguments of a search", () => {
  test("each is read as the table says, which Python's tests read, too", async () => {
    const table = new URL("tests/cases/arguments.json", ROOT);
    for (
      const { name, value, time, becomes, refused: isRefused } of JSON.parse(
        await readFile(table, "utf8"),
      )
    ) {
      const options = { [name]: time === undefined ? value : new Date(time) };
      if (isRefused) {
        assert.throws(() => searchArguments("a", options), refused(name), JSON.stringify(options));
      } else {
        const { [name]: read } = searchArguments("a", options);
        assert.deepEqual(read, becomes ?? undefined, JSON.stringify(options));
      }
    }
  });

  test("texts fit into a budget of tokens as the table says, which Python's tests read, too", async () => {
    const table = JSON.parse(await readFile(new URL("tests/cases/tokens.json", ROOT), "utf8"));
    for (const { texts, most, kept } of table) assert.equal(withinTokens(texts, most), kept, texts);
  });

  test("a page ends where the budget does, and the next one begins there", async () => {
    const database = await installed();
    await emptied(database);
    const service = asService(database);
    const chunks = ["one", "two", "three"].map((content) => ({ content: `heron ${content}` }));
    await service.upsert({ external_key: "a" }, chunks);
    const whole = await service.search("heron");
    assert.equal(whole.left_out, 0);
    const page = await service.search("heron", { max_tokens: 6, match_count: 3 });
    assert.deepEqual([page.hits.length, page.left_out, page.next_offset], [2, 1, 2]);
    const all = [];
    for await (const { hits } of service.pages("heron", { max_tokens: 1 })) all.push(...hits);
    assert.deepEqual(all.map((hit) => hit.id), whole.hits.map((hit) => hit.id));
    const count_tokens = (text) => text.split(" ").length;
    const counted = await service.search("heron", { max_tokens: 4, count_tokens });
    assert.equal(counted.hits.length, 2);
    await assert.rejects(service.search("heron", { max_tokens: 0 }), refused("max_tokens"));
    const tool = searchTool(service, { arguments: ["max_tokens"] });
    const { results, left_out, hints } = await tool.execute({ query: "heron", max_tokens: 1 }, {});
    assert.deepEqual([results.length, left_out], [1, 2]);
    assert.match(hints.join(), /max_tokens/);
  });

  test("an offset of a URL continues the list, and a timeout may be a fraction", async () => {
    const database = await installed();
    await emptied(database);
    const service = asService(database);
    const chunks = ["one", "two", "three"].map((content) => ({ content: `heron ${content}` }));
    await service.upsert({ external_key: "a" }, chunks);
    const url = new URL("https://example.org/?offset=1&limit=1");
    const [match_offset, match_count] = ["offset", "limit"].map((n) => url.searchParams.get(n));
    const page = await service.search("heron", { match_offset, match_count, timeout: 5000.5 });
    assert.deepEqual([page.hits.length, page.next_offset, page.truncated], [1, 2, false]);
    const whole = await service.search("heron", { match_offset: url.searchParams.get("none") });
    assert.equal(whole.hits.length, 3);
  });

  test("a name that is none is refused before anything is sent", async () => {
    const search = createSearch(nobody, HYBRID);
    for (const name of ["match_cuont", "viewerId", "constructor", "query"]) {
      await assert.rejects(search.search("a", { [name]: 1 }), refused(name));
    }
  });
});

describe("what is stored", () => {
  let database;
  let service;
  class Point {
    #x = 1;
    get x() {
      return this.#x;
    }
  }
  class Money {
    amount = 1;
    toJSON() {
      return "one";
    }
  }
  const holey = ["a"];
  holey[2] = "c";
  const cyclic = {};
  cyclic.self = cyclic;
  const CHANGED = {
    undefined: undefined,
    NaN: NaN,
    Infinity: Infinity,
    "-Infinity": -Infinity,
    "a BigInt": 1n,
    "a Set": new Set(["a"]),
    "a Map": new Map([["a", 1]]),
    "a WeakMap": new WeakMap(),
    "an invalid Date": new Date(NaN),
    "a Float32Array": new Float32Array([1]),
    "an Uint8Array": new Uint8Array([1]),
    "a Buffer": Buffer.from("a"),
    "an ArrayBuffer": new ArrayBuffer(1),
    "a DataView": new DataView(new ArrayBuffer(1)),
    "a function": () => 1,
    "a symbol": Symbol("a"),
    "a key that is a symbol": { [Symbol("a")]: 1 },
    "a regular expression": /a/,
    "an Error": new Error("a"),
    "a Promise": Promise.resolve(1),
    "a URL": new URL("https://example.org"),
    "a list with a hole": holey,
    "a list with a key": Object.assign(["a"], { index: 0 }),
    "an inherited key": Object.create({ a: 1 }),
    "private fields": new Point(),
    "an own toJSON": new Money(),
    "a boxed NaN": new Number(NaN),
    "itself": cyclic,
  };
  const content = "heron";
  const document = (values) => [{ external_key: "a", ...values }, [{ content }]];
  const chunk = (values) => [{ external_key: "a" }, [{ content }, { content, ...values }]];
  const PLACES = {
    "document.metadata.key": (value) => document({ metadata: { key: value } }),
    "document.metadata.key[1]": (value) => document({ metadata: { key: [0, value] } }),
    "document.metadata.a.b": (value) => document({ metadata: { a: { b: value } } }),
    "document.title": (value) => document({ title: value }),
    "document.owner_id": (value) => document({ owner_id: value }),
    "document.document_date": (value) => document({ document_date: value }),
    "document.allowed_groups[0]": (value) => document({ allowed_groups: [value] }),
    "chunks[1].metadata.key": (value) => chunk({ metadata: { key: value } }),
    "chunks[1].heading": (value) => chunk({ heading: value }),
    "chunks[1].content": (value) => chunk({ content: value }),
  };

  before(async () => {
    database = await installed();
    service = asService(database);
    await emptied(database);
  });

  for (const [name, value] of Object.entries(CHANGED)) {
    test(`${name} is refused by name, wherever it is`, async () => {
      const search = createSearch(nobody, HYBRID);
      for (const [path, given] of Object.entries(PLACES)) {
        await assert.rejects(search.upsert(...given(value)), (error) => {
          assert.equal(error.name, "InvalidInputError", `${path}: ${error}`);
          const place = error.message.slice(0, path.length);
          // What is inside a value has a longer path, of which a message has the first part.
          assert.equal(place, path, error.message);
          return true;
        });
      }
      const metadata = { key: value };
      const store = new SecondBrainVectorStore(new SyntheticEmbeddings({ vectorSize: 3 }), {
        client: { ...nobody, from: pgliteClient(database).from },
      });
      await assert.rejects(
        store.addDocuments([new Document({ pageContent: content, metadata, id: "a" })]),
        /InvalidInputError: document\.metadata\.key/,
      );
    });
  }

  test("an embedding has finite numbers, as a list, a typed array or pgvector's text", async () => {
    const wrong = {
      "chunks[0].embedding[1]": [[1, NaN], [1, undefined], [1, "b"], new Float32Array([1, NaN])],
      "chunks[0].embedding": [undefined, NaN, "near", 5, {}, new Set([1]), new Map()],
    };
    for (const [path, values] of Object.entries(wrong)) {
      for (const value of values) {
        const stored = createSearch(nobody).upsert({ external_key: "a" }, [
          { content, embedding: value },
        ]);
        await assert.rejects(stored, refused(path));
      }
    }
    const numbers = embedding(0.5, 0.25);
    const right = [numbers, new Float32Array(numbers), new Float64Array(numbers)];
    for (const value of [...right, JSON.stringify(numbers)]) {
      const done = await service.upsert({ external_key: "a" }, [
        { content, embedding: value, embedding_model: "m" },
      ]);
      assert.equal(done.embeddings_missing, 0);
      const { hits } = await service.search({ embedding: value });
      assert.equal(hits[0].similarity, 1);
      await service.delete("a");
    }
    for (const value of [NaN, "near", 5, {}, new Set()]) {
      await assert.rejects(createSearch(nobody).search({ embedding: value }), refused("embedding"));
    }
  });

  test("what JSON has comes back as it was given", async () => {
    const metadata = {
      text: "ä\u2028\ud83d\ude00",
      number: -1.5e-7,
      most: Number.MAX_SAFE_INTEGER,
      list: [[], {}, null, true, "", 0],
      deep: { __proto__: null, a: { "b.c": [{ d: false }] } },
    };
    await service.upsert({ external_key: "a", metadata }, [{ content }]);
    const { hits } = await service.search("heron");
    assert.deepEqual(hits[0].metadata, JSON.parse(JSON.stringify(metadata)));
    const day = new Date("2026-02-01T10:00:00Z");
    await service.upsert({ external_key: "a", metadata: { day } }, [{ content }]);
    const [stored] = (await service.search("heron")).hits;
    assert.deepEqual(stored.metadata, { day: "2026-02-01T10:00:00.000Z" });
  });

  test("a key that is no text is refused by delete", async () => {
    for (const key of [undefined, null, 5, ["a"], new Set()]) {
      await assert.rejects(createSearch(nobody).delete(key), refused("external_key"));
    }
  });
});
