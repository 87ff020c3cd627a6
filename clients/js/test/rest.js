// The package over supabase-js and PostgREST. test_javascript_package.py starts what answers.

import { createClient } from "@supabase/supabase-js";
import assert from "node:assert/strict";
import { before, test } from "node:test";
import { createSearch, InvalidInputError, PermissionDeniedError } from "@second-brain-sql/client";

const { URL, KEY, SERVICE_TOKEN, USER, USER_TOKEN } = process.env;
// supabase-js opens no socket here, but before Node 22 it needs a class for one.
const realtime = { transport: class {} };
const as = (token) =>
  createClient(URL, KEY, { accessToken: () => Promise.resolve(token), realtime });
const service = createSearch(as(SERVICE_TOKEN), { function: "hybrid_search_knowledge_chunks" });
const user = createSearch(as(USER_TOKEN));
const LAKE = "The heron flies over the lake.";
const FAR = "The sun goes down behind the trees. ".repeat(20);
const ids = {};

async function keys(options, question = { text: "heron lake", embedding: [1, 0, 0] }) {
  const { hits } = await user.search(question, { text_weight: 0.1, ...options });
  return hits.map((hit) => hit.external_key).join(" ");
}

before(async () => {
  const documents = {
    lake: { day: "2026-01-01", chunks: { [LAKE]: [1, 0, 0] } },
    copy: { day: "2025-01-01", chunks: { [LAKE]: [1, 0.1, 0] } },
    day: {
      day: "2024-01-01",
      chunks: {
        "The heron waits.": [0, 1, 0],
        [`The heron eats. ${FAR}The heron sleeps.`]: [0, 1, 0.2],
      },
    },
    hidden: { day: "2023-01-01", chunks: { "A heron at the lake.": [1, 0, 0] } },
  };
  for (const [key, { day, chunks }] of Object.entries(documents)) {
    const owner = key === "hidden" ? "00000000-0000-4000-8000-000000000009" : USER;
    const { document_id } = await service.upsert(
      { external_key: key, document_date: day, owner_id: owner },
      Object.entries(chunks).map(([content, embedding]) => ({
        content,
        embedding,
        embedding_model: "m",
      })),
    );
    ids[key] = document_id;
  }
});

test("each argument that shapes the list arrives", async () => {
  const year = { field: "document_date", decay: "exp", origin: "2025-01-01", scale: 9 };
  const cases = [
    [{}, "lake copy day day"],
    [{ boosts: [{ filters: { document_date: "2024-01-01" }, factor: 3 }] }, "day day lake copy"],
    [{ boosts: [year] }, "copy lake day day"],
    [{ diversity: 1 }, "lake day day copy"],
    [{ max_per_document: 1 }, "lake copy day"],
    [{ merge_duplicates: true }, "lake day day"],
    [{ min_confidence: 0.9 }, "lake copy"],
    [{ order_by: "document_date asc" }, "day day copy lake"],
  ];
  for (const [options, expected] of cases) assert.equal(await keys(options), expected);
  assert.equal(await keys({ like_ids: [ids.day, ids.lake] }, {}), "copy");
  const marks = [];
  for (const snippets of [1, 2]) {
    const { hits } = await user.search("sun heron", { snippet: true, snippets });
    marks.push(hits[0].snippet.match(/<mark>heron/g).length);
  }
  assert.deepEqual(marks, [1, 2]);
});

test("each of them is refused by name, with a remedy", async () => {
  const refused = {
    like_ids: [ids.hidden],
    boosts: [{ field: "document_date", decay: "exp", origin: "now", scale: 0 }],
    diversity: 2,
    max_per_document: 0,
    min_confidence: 2,
    snippets: 4,
    order_by: "title",
  };
  for (const [name, value] of Object.entries(refused)) {
    const error = await user.search("heron", { snippet: true, [name]: value })
      .then(() => assert.fail(name), (one) => one);
    assert.ok(error instanceof InvalidInputError, `${error}`);
    assert.equal(error.code, "22023");
    assert.match(error.message, RegExp(name));
    assert.ok(error.remedy);
  }
});

test("only the service stores fields and rewrites chunks", async () => {
  await assert.rejects(user.upsert({ external_key: "x" }, []), PermissionDeniedError);
  const refused = await as(USER_TOKEN).rpc("rewrite_knowledge_chunks", {});
  assert.equal(refused.error.code, "42501");
  const text_keys = ["a key, with {a} comma"];
  const { data } = await as(SERVICE_TOKEN).rpc("set_knowledge_fields", { text_keys });
  assert.deepEqual([data].flat()[0].text_keys, text_keys);
  const left = await as(SERVICE_TOKEN).rpc("rewrite_knowledge_chunks", { most: 1 });
  assert.deepEqual([left.data].flat(), [4]);
});
