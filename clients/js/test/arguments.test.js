// The arguments that shape the list, typed (tsc checks this file) and passed on by search().

import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { ANA, asService, asUser, BEN, emptied, installed } from "./database.js";

/** @import { SearchOptions } from "@second-brain-sql/client" */

describe("the arguments that shape the list", () => {
  /** @type {Awaited<ReturnType<typeof installed>>} */
  let database;
  let known = "";

  before(async () => {
    database = await installed();
    await emptied(database);
    const texts = {
      "2026-01-01": ["The rack has a key."],
      "2026-02-01": [
        "The key of the rack is at the front desk. A key costs 20 euros.",
      ],
      "2026-03-01": [
        "The rack key is lost.",
        "The rack has no key.",
        "The rack has no key.",
      ],
    };
    for (const [day, chunks] of Object.entries(texts)) {
      const { document_id } = await asService(database).upsert(
        { external_key: day, document_date: day, owner_id: ANA },
        chunks.map((content, place) => ({ content, metadata: { place } })),
      );
      known ||= document_id;
    }
  });

  test("search passes all of them on in one call", async () => {
    const options = /** @satisfies {SearchOptions} */ ({
      like_ids: [known],
      boosts: [
        { filters: { document_date: "2026-02-01" }, factor: 3 },
        { field: "metadata.place", modifier: "log1p", weight: 0.1 },
        { field: "document_date", decay: "exp", origin: "now", scale: 365 },
      ],
      diversity: 0.3,
      max_per_document: 2,
      merge_duplicates: true,
      min_confidence: 0.01,
      snippet: true,
      snippets: 2,
      order_by: "document_date",
    });
    const { hits, total_count } = await asUser(database, ANA).search(
      "rack key",
      options,
    );
    assert.deepEqual(hits.map((hit) => hit.document_date?.slice(5)), [
      "03-01",
      "03-01",
      "02-01",
    ]);
    assert.equal(total_count, 3);
    assert.deepEqual(hits.map((hit) => hit.duplicates).sort(), [0, 0, 1]);
    assert.match(hits[2].snippet ?? "", /<mark>key<\/mark>.*<mark>key<\/mark>/);
  });

  test("as_of is another time than now, and null all times", async () => {
    await asService(database).upsert(
      {
        external_key: "ended",
        owner_id: ANA,
        metadata: { valid_until: "2020-01-01" },
      },
      [{ content: "The closet is blue." }],
    );
    /** @type {[SearchOptions, number][]} */
    const cases = [
      [{}, 0],
      [{ as_of: "now" }, 0],
      [{ as_of: "2019-06-01" }, 1],
      [{ as_of: new Date("2019-06-01") }, 1],
      [{ as_of: null }, 1],
    ];
    for (const [options, count] of cases) {
      const { hits } = await asUser(database, ANA).search("closet", options);
      assert.equal(hits.length, count, JSON.stringify(options));
    }
    await assert.rejects(
      asUser(database, ANA).search("closet", { as_of: "yesterday" }),
      /^InvalidInputError: as_of must/,
    );
  });

  test("known documents alone find related ones, and nothing is embedded", async () => {
    const embed = () => Promise.reject(new Error("there is no question"));
    const search = asUser(database, ANA, { embed });
    const options = { like_ids: [known], one_per_document: true };
    for (const question of [{}, "", " "]) {
      const { hits } = await search.search(question, options);
      assert.deepEqual(hits.map((hit) => hit.document_date?.slice(5)).sort(), [
        "02-01",
        "03-01",
      ]);
    }
    await assert.rejects(
      asUser(database, BEN).search({}, options),
      /no visible chunk/,
    );
  });

  test("each of them reaches the database under its name", async () => {
    const refused = {
      like_ids: ["00000000-0000-4000-8000-000000000009"],
      boosts: [{
        field: "document_date",
        decay: "exp",
        origin: "now",
        scale: 0,
      }],
      diversity: 2,
      max_per_document: 0,
      min_confidence: 2,
      snippets: 4,
      order_by: "nothing",
    };
    for (const [name, value] of Object.entries(refused)) {
      const asked = { snippet: true, [name]: value };
      await assert.rejects(asUser(database, ANA).search("rack", asked), {
        message: RegExp(name),
      });
    }
  });
});
