// The tool of the AI SDK, called by generateText.

import { asSchema, generateText, stepCountIs } from "ai";
import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { searchTool } from "@second-brain-sql/client/ai";
import { ANA, asService, asUser, BEN, emptied, installed } from "./database.js";
import { modelThatAsks } from "./model.js";

describe("the tool of the AI SDK", () => {
  let database;

  before(async () => {
    database = await installed();
    await emptied(database);
    await asService(database).upsert(
      { external_key: "billing", title: "Billing", owner_id: ANA, document_date: "2026-02-01" },
      [{ content: "An invoice is due after 14 days." }],
    );
  });

  const answer = (search, input, options) =>
    generateText({
      model: modelThatAsks(input),
      prompt: "When is an invoice due?",
      tools: { search: searchTool(search, options) },
      stopWhen: stepCountIs(2),
    });

  test("a model finds what the user may see", async () => {
    const { text, steps } = await answer(asUser(database, ANA), {
      query: "invoice",
      match_count: 1,
    });
    assert.equal(text, "An invoice is due after 14 days.");
    const [{ output }] = steps[0].toolResults;
    assert.deepEqual(Object.keys(output.results[0]).slice(0, 4), [
      "id",
      "title",
      "heading",
      "content",
    ]);
    assert.equal(output.total_count, 1);
    const { execute } = searchTool(asUser(database, BEN));
    assert.deepEqual((await execute({ query: "invoice" }, {})).results, []);
  });

  test("the model sees a refusal", async () => {
    const { text } = await answer(asUser(database, ANA), { query: "invoice", match_count: 0 });
    assert.match(text, /match_count must be a whole number from 1 to 50/);
  });

  test("its schema has the chosen arguments, with the types and help of the one list", async () => {
    const tool = searchTool(asUser(database, ANA), {
      description: "The handbook.",
      arguments: ["date_from", "collections", "one_per_document", "recency_half_life"],
    });
    const { properties, required, additionalProperties } = await asSchema(tool.inputSchema)
      .jsonSchema;
    assert.deepEqual(properties, {
      query: { type: "string", description: "the words of the query, for the text leg" },
      date_from: {
        type: "string",
        format: "date",
        description: "only documents of this date or later",
      },
      collections: {
        type: "array",
        items: { type: "string" },
        description: "only these collections, each ranked by itself, then fused",
      },
      one_per_document: {
        type: "boolean",
        description: "only the best chunk of each document",
      },
      recency_half_life: {
        type: "number",
        description: "the age in days that halves a score",
      },
    });
    assert.deepEqual([required, additionalProperties], [["query"], false]);
    assert.match(tool.description, /^The handbook\. .*0\.3/);
  });

  test("with like_ids among its arguments, it needs no query", async () => {
    const more = { external_key: "reminder", owner_id: ANA };
    const [known] = (await asUser(database, ANA).search("invoice")).hits;
    await asService(database).upsert(more, [{ content: "A reminder of an invoice is free." }]);
    const tool = searchTool(asUser(database, ANA), { arguments: ["like_ids"] });
    const { properties, required } = await asSchema(tool.inputSchema).jsonSchema;
    assert.deepEqual([properties.like_ids.type, required], ["array", []]);
    const { results } = await tool.execute({ like_ids: [known.id] }, {});
    assert.deepEqual(results.map((hit) => hit.content), ["A reminder of an invoice is free."]);
    await asService(database).delete("reminder");
  });

  test("what the options bind is neither offered nor taken", async () => {
    const options = { date_from: "2026-03-01", viewer_id: BEN };
    const { execute, inputSchema } = searchTool(asUser(database, ANA), { options });
    const { properties } = await asSchema(inputSchema).jsonSchema;
    assert.deepEqual(Object.keys(properties), ["query", "match_count", "match_offset", "date_to"]);
    const refused = execute({ query: "invoice", date_from: "2026-01-01" }, {});
    await assert.rejects(refused, { name: "InvalidInputError", message: /^date_from is no/ });
    const names = ["date_from", "viewer_id", "public_only", "query_text", "toString", "nothing"];
    for (const name of names) {
      assert.throws(
        () => searchTool(asUser(database, ANA), { options, arguments: [name] }),
        (error) => error instanceof TypeError && error.message.startsWith(name),
      );
    }
  });

  test("its schema refuses what execute refuses", async () => {
    const tool = searchTool(asUser(database, ANA), { arguments: ["filters", "date_from"] });
    const { validate } = asSchema(tool.inputSchema);
    const team = [{ field: "metadata.team", op: "eq", value: 1 }];
    const { value } = await validate({
      query: "a",
      filters: JSON.stringify(team),
      date_from: null,
    });
    assert.deepEqual(value, { query: "a", filters: team });
    const wrong = [
      { filters: { viewer_id: null } },
      { filters: ["team"] },
      { date_from: "yesterday" },
      { query: { text: "a", embedding: [1] } },
      { viewer_id: null },
    ];
    for (const one of wrong) {
      const { error } = await validate({ query: "a", ...one });
      assert.ok(error.message.startsWith(Object.keys(one)[0]), error.message);
      await assert.rejects(tool.execute({ query: "a", ...one }, {}), { message: error.message });
    }
    for (const one of [null, "a", [], {}]) assert.equal((await validate(one)).success, false);
  });

  test("an aborted generation aborts the search", async () => {
    const { execute } = searchTool(asUser(database, ANA));
    const abortSignal = AbortSignal.abort(new Error("stopped"));
    await assert.rejects(execute({ query: "invoice" }, { abortSignal }), /stopped/);
  });
});
