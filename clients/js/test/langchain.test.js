// The store and the retriever: the cases of Python's langchain-tests for vector stores and
// retrievers, written anew, and what they do not ask for. LangChain.js has no get_by_ids and no `k`
// of a single invoke, so documents are read back by a search.

import { Document } from "@langchain/core/documents";
import { Embeddings } from "@langchain/core/embeddings";
import assert from "node:assert/strict";
import { before, beforeEach, describe, test } from "node:test";
import { InvalidInputError } from "@second-brain-sql/client";
import { SecondBrainRetriever, SecondBrainVectorStore } from "@second-brain-sql/client/langchain";
import { pgliteClient } from "@second-brain-sql/client/pglite";
import { ANA, asService, asUser, BEN, embedding, emptied, installed } from "./database.js";

class AxisEmbeddings extends Embeddings {
  model = "by-hand";

  constructor() {
    super({});
  }

  embedDocuments(texts) {
    return Promise.all(texts.map((text) => this.embedQuery(text)));
  }

  // Rotated keys along one axis, other keys near it, all else along another.
  embedQuery(text) {
    const axes = text.includes("rotate") ? [0, 0, 1] : text.includes("key") ? [0, 0.6, 0.8] : [1];
    return Promise.resolve(embedding(...axes));
  }
}

const document = (pageContent, id, metadata = {}) => new Document({ pageContent, id, metadata });
const plain = (found) =>
  found.map(({ id, pageContent, metadata }) => ({ id, pageContent, metadata }));
const ids = (found) => found.map((one) => one.id);

describe("the vector store of LangChain.js", () => {
  let database;
  let store;
  const storeOf = (config = {}) =>
    new SecondBrainVectorStore(new AxisEmbeddings(), { client: pgliteClient(database), ...config });
  const foo = () => document("foo", undefined, { id: 1 });
  const bar = () => document("bar", undefined, { id: 2 });
  const all = async () => plain(await store.similaritySearch("foo", 10));

  before(async () => {
    database = await installed();
  });

  beforeEach(async () => {
    await emptied(database);
    store = storeOf();
  });

  test("a new store is empty", async () => {
    assert.deepEqual(await store.similaritySearch("foo", 1), []);
  });

  test("added documents are found with their metadata", async () => {
    const given = [foo(), bar()];
    const [one, two] = await store.addDocuments(given);
    assert.deepEqual(await all(), [
      { id: one, pageContent: "foo", metadata: { id: 1 } },
      { id: two, pageContent: "bar", metadata: { id: 2 } },
    ]);
    assert.deepEqual(given.map((each) => each.id), [undefined, undefined]);
  });

  test("the store of the next test is empty", async () => {
    assert.deepEqual(await all(), []);
  });

  test("a deleted document is not found", async () => {
    const given = await store.addDocuments([foo(), bar()], { ids: ["1", "2"] });
    assert.deepEqual(given, ["1", "2"]);
    await store.delete({ ids: ["1"] });
    assert.deepEqual(ids(await all()), ["2"]);
  });

  test("several documents are deleted at once", async () => {
    await store.addDocuments([foo(), bar(), document("baz")], { ids: ["1", "2", "3"] });
    await store.delete({ ids: ["1", "2"] });
    assert.deepEqual(ids(await all()), ["3"]);
  });

  test("deleting what is not there changes nothing", async () => {
    await store.delete({ ids: ["1"] });
    await store.delete({ ids: ["1", "2", "3"] });
    assert.deepEqual(await all(), []);
  });

  test("adding documents with ids twice is as adding them once", async () => {
    for (let time = 0; time < 2; time++) {
      await store.addDocuments([foo(), bar()], { ids: ["1", "2"] });
    }
    assert.deepEqual(ids(await all()), ["1", "2"]);
  });

  test("a document replaces the stored one with its id", async () => {
    await store.addDocuments([foo(), bar()], { ids: ["1", "2"] });
    await store.addDocuments([document("new foo", undefined, { some: "field" })], { ids: ["1"] });
    assert.deepEqual(await all(), [
      { id: "1", pageContent: "new foo", metadata: { some: "field" } },
      { id: "2", pageContent: "bar", metadata: { id: 2 } },
    ]);
  });

  test("the ids of the documents are used, and new ones for those without", async () => {
    const [one, two] = await store.addDocuments([document("foo", "foo-id"), bar()]);
    assert.equal(one, "foo-id");
    assert.match(two, /^[0-9a-f-]{36}$/);
    assert.deepEqual(ids(await all()), [one, two]);
  });

  test("a document with an id that is stored replaces it", async () => {
    await store.addDocuments([document("foo", "foo")]);
    const [, two] = await store.addDocuments([document("replaced", "foo"), bar()]);
    const found = await all();
    assert.deepEqual(ids(found).sort(), ["foo", two].sort());
    assert.equal(found.find((one) => one.id === "foo").pageContent, "replaced");
  });

  test("of two documents with one id, the last one is stored", async () => {
    await store.addDocuments([document("first", "same"), document("last", "same")]);
    assert.deepEqual((await all()).map((one) => one.pageContent), ["last"]);
  });

  const filled = (config) =>
    SecondBrainVectorStore.fromTexts(
      [
        "Service role keys are rotated every 90 days.",
        "A leaked key is revoked first.",
        "An invoice is cancelled by a credit note.",
      ],
      [{ team: "platform", title: "Keys" }, { team: "platform" }, { team: "finance", "a.b": 1 }],
      new AxisEmbeddings(),
      { client: pgliteClient(database), ids: ["keys", "leaked", "invoice"], ...config },
    );

  test("a search has both legs, or the one of the mode, each with its score", async () => {
    const both = await (await filled()).similaritySearchWithScore("rotated keys", 3);
    assert.equal(both[0][0].id, "keys");
    assert.ok(Math.abs(both[0][1] - 1) < 1e-9);
    const byText = await storeOf({ mode: "text" }).similaritySearch("credit");
    assert.deepEqual(ids(byText), ["invoice"]);
    const byVector = await storeOf({ mode: "vector" }).similaritySearchWithScore("rotate", 3);
    assert.deepEqual(
      byVector.map(([one, score]) => [one.id, +score.toFixed(2)]),
      [["keys", 1], ["leaked", 0.8], ["invoice", 0]],
    );
    const given = await store.similaritySearchVectorWithScore(embedding(1), 1);
    assert.equal(given[0][0].id, "invoice");
    const opposite = await store.similaritySearchVectorWithScore(embedding(-1), 3);
    assert.deepEqual(opposite.at(-1).map((one) => one.id ?? one), ["invoice", -1]);
  });

  test("the keys of an object are metadata and a list has conditions", async () => {
    await filled();
    assert.deepEqual(ids(await store.similaritySearch("key", 4, { team: "finance" })), ["invoice"]);
    for (const key of ["title", "metadata.title"]) {
      assert.deepEqual(ids(await store.similaritySearch("key", 4, { [key]: "Keys" })), ["keys"]);
    }
    assert.deepEqual(ids(await store.similaritySearch("key", 4, { "a.b": 1 })), ["invoice"]);
    const condition = { field: "metadata.team", op: "ne", value: "platform" };
    const groups = [
      { $or: [{ team: "finance" }, { "a.b": 2 }] },
      { $and: [{ team: "finance" }, [condition]] },
      { $not: { $or: [{ team: "platform" }, { title: "Keys" }] } },
    ];
    for (const group of groups) {
      assert.deepEqual(ids(await store.similaritySearch("key", 4, group)), ["invoice"]);
    }
    assert.deepEqual(ids(await store.similaritySearch("key", 4, [condition])), ["invoice"]);
    await assert.rejects(
      store.similaritySearch("key", 4, [{ ...condition, op: "like" }]),
      InvalidInputError,
    );
  });

  test("a filter that would match nothing or everything is refused", async () => {
    await filled();
    const wrong = [
      (rpc) => rpc.filter("metadata->>team", "eq", "finance"),
      new Map([["team", "finance"]]),
      { page: { $in: [1] } },
      { page: { deep: [{ $gte: 1 }] } },
      { $or: "finance" },
      { $nor: [{ team: "finance" }] },
      { team: undefined },
      { "a.b": { c: 1 } },
      { "a.b": null },
      "team",
    ];
    for (const filter of wrong) {
      const calls = [store.similaritySearch("key", 4, filter)];
      calls.push(store.asRetriever({ k: 4, filter }).invoke("key"));
      for (const call of calls) {
        await assert.rejects(call, (error) => {
          assert.ok(error instanceof InvalidInputError, String(error));
          return /^filters/.test(error.message) && /Give|give/.test(error.message + error.remedy);
        });
      }
    }
  });

  test("ids may have any characters, and any number of them", async () => {
    const odd = ['a,"b"', "back\\slash,", "(x)", "new\nline", "ö".repeat(60), " a "];
    const ids = [
      ...odd,
      ...Array.from({ length: 120 }, (_, n) => `https://example.org/${n}?a=b,c`),
    ];
    const documents = ids.map((id) => ({ pageContent: `key ${id}`, metadata: {}, id }));
    await store.addDocuments(documents);
    const other = storeOf({ collection: "other" });
    for (const id of odd) {
      await assert.rejects(
        other.addDocuments([{ pageContent: "key", metadata: {}, id }]),
        (error) => error.message.includes("another collection"),
      );
      await store.delete({ ids: [id] });
      const { length } = await store.similaritySearch(`key ${id}`, 200);
      assert.equal(length, ids.length - odd.indexOf(id) - 1);
    }
    await store.delete({ ids });
    assert.deepEqual(await store.similaritySearch("key", 9), []);
  });

  test("a delete without ids is refused", async () => {
    for (const given of [undefined, {}, { filter: { a: 1 } }, { ids: "a" }]) {
      await assert.rejects(store.delete(given), (error) => error instanceof InvalidInputError);
    }
  });

  test("a store leaves the documents of other collections", async () => {
    await filled();
    const other = storeOf({ collection: "other" });
    assert.deepEqual(await other.similaritySearch("key"), []);
    const taken = other.addDocuments([document("Mine."), document("Mine.")], {
      ids: ["mine", "keys"],
    });
    await assert.rejects(taken, /the id keys is a document of another collection/);
    assert.deepEqual(await other.similaritySearch("Mine"), []);
    await other.delete({ ids: ["keys"] });
    assert.equal((await store.similaritySearch("key")).length, 3);
  });

  test("a search can be limited to a viewer", async () => {
    await filled({ fields: { owner_id: ANA } });
    for (const [viewer_id, expected] of [[ANA, 3], [BEN, 0]]) {
      const limited = storeOf({ options: { viewer_id } });
      assert.equal((await limited.similaritySearch("rotated keys")).length, expected);
    }
  });

  test("vectors and ids must be as many as documents", async () => {
    await assert.rejects(store.addDocuments([foo(), bar()], { ids: ["1"] }), /ids must have one/);
    await assert.rejects(store.addVectors([], [foo()]), /vectors must have one/);
  });

  test("its retriever returns k documents", async () => {
    const filledStore = await filled();
    for (const k of [3, 1]) {
      const found = await filledStore.asRetriever({ k }).invoke("rotated keys");
      assert.equal(found.length, k);
      assert.ok(found.every((one) => one instanceof Document));
    }
  });

  describe("the retriever", () => {
    beforeEach(() => filled({ fields: { owner_id: ANA } }));
    const retriever = (k) => new SecondBrainRetriever({ search: asUser(database, ANA), k });

    test("the number of its constructor is that of its documents", async () => {
      for (const k of [2, 1]) assert.equal((await retriever(k).invoke("key")).length, k);
    });

    test("invoke returns documents", async () => {
      const found = await retriever().invoke("rotated keys");
      assert.ok(found.length > 0);
      assert.ok(found.every((one) => one instanceof Document));
    });

    test("a batch returns documents for each question", async () => {
      const found = await retriever(1).batch(["leaked", "credit"]);
      assert.deepEqual(found.map(([one]) => one.metadata.external_key), ["leaked", "invoice"]);
    });

    test("documents have the row's metadata and the columns of the hit", async () => {
      const [found] = await retriever().invoke("credit note");
      const { team, rank, match_type, external_key } = found.metadata;
      assert.deepEqual({ team, rank, match_type, external_key }, {
        team: "finance",
        rank: 1,
        match_type: "text",
        external_key: "invoice",
      });
    });

    test("it finds what its user may see", async () => {
      const search = asUser(database, BEN);
      assert.deepEqual(await new SecondBrainRetriever({ search }).invoke("key"), []);
      const options = { viewer_id: ANA };
      const service = new SecondBrainRetriever({ search: asService(database), options });
      assert.equal((await service.invoke("key")).length, 2);
    });
  });
});
