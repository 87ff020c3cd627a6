// The package on PGlite: what each role finds, how it is counted, written and refused.

import assert from "node:assert/strict";
import { before, beforeEach, describe, test } from "node:test";
import {
  AuthenticationError,
  ClientTimeoutError,
  ConfigurationError,
  createSearch,
  DimensionMismatchError,
  InvalidInputError,
  MigrationMissingError,
  ModuleMissingError,
  PermissionDeniedError,
  searchError,
  SecondBrainError,
  UnavailableError,
} from "@second-brain-sql/client";
import { pgliteClient } from "@second-brain-sql/client/pglite";
import {
  ANA,
  asService,
  asUser,
  asVisitor,
  BEN,
  embedding,
  emptied,
  installed,
} from "./database.js";

describe("the search", () => {
  let database;
  const near = { "An invoice is due after 14 days.": 0, "Cats sleep for most of the day.": 1 };
  const questions = { "money that people owe": 0 };
  const embed = (texts) =>
    Promise.resolve(
      texts.map((text) =>
        embedding(...[0, 1, 2].map((axis) => +((near[text] ?? questions[text] ?? 2) === axis)))
      ),
    );
  const titles = ({ hits }) => hits.map((hit) => hit.title);

  before(async () => {
    database = await installed();
  });

  beforeEach(async () => {
    await emptied(database);
    const service = asService(database, { embed, model: "by-hand" });
    const [billing, pets] = Object.keys(near);
    const tags = (...names) => ({ metadata: { tags: names } });
    await service.upsert(
      { external_key: "billing", title: "billing", owner_id: ANA, ...tags("money") },
      [{ content: billing }],
    );
    await service.upsert(
      { external_key: "pets", title: "pets", owner_id: ANA, ...tags("cats", "home") },
      [{ content: pets }],
    );
    await service.upsert(
      { external_key: "prices", title: "prices", owner_id: BEN, visibility: "public" },
      [{ content: "The price of an invoice.", embedding: null }],
    );
  });

  test("upsert counts what it stored, and embeds chunks without an embedding", async () => {
    const service = asService(database, { embed, model: "by-hand" });
    const done = await service.upsert({ external_key: "billing" }, [
      { content: Object.keys(near)[0] },
      { content: "A new chunk.", embedding: new Float32Array(embedding(0, 1)) },
    ]);
    const { chunks_added, chunks_unchanged, embeddings_missing } = done;
    assert.deepEqual({ chunks_added, chunks_unchanged, embeddings_missing }, {
      chunks_added: 1,
      chunks_unchanged: 1,
      embeddings_missing: 0,
    });
    assert.equal(await service.delete("billing"), 2);
    assert.equal(await service.delete("billing"), 0);
  });

  test("a question is embedded and finds by both legs what the user may see", async () => {
    const ana = asUser(database, ANA, { embed });
    const page = await ana.searchMine("money that people owe", { match_count: 1 });
    assert.deepEqual(titles(page), ["billing"]);
    assert.equal(page.hits[0].vector_rank, 1);
    assert.equal(page.next_offset, 1);
    assert.deepEqual(titles(await asUser(database, BEN, { embed }).search("invoice")), ["prices"]);
  });

  test("without embed, and with embedding null, a search is by text", async () => {
    const byText = await asUser(database, ANA).search("invoice");
    assert.deepEqual(titles(byText).sort(), ["billing", "prices"]);
    const asked = { text: "money that people owe", embedding: null };
    assert.deepEqual(titles(await asUser(database, ANA, { embed }).search(asked)), []);
    const fromText = await asUser(database, ANA).search("invoice", { embedding_from_text: true });
    assert.deepEqual(fromText.notes, { embedding: "from the best text hits" });
  });

  test("a session of Supabase's runtime embeds the question", async () => {
    const asked = [];
    const session = {
      run(text, options) {
        asked.push([text, options]);
        return embed([text]).then(([one]) => one);
      },
    };
    const ana = asUser(database, ANA, { embed: session });
    assert.equal(titles(await ana.search("money that people owe"))[0], "billing");
    assert.deepEqual(asked, [["money that people owe", { mean_pool: true, normalize: true }]]);
  });

  test("if embed fails, the best text hits give the embedding, and the answer says so", async () => {
    const wrong = [
      () => Promise.reject(new Error("model down")),
      () => {
        throw new TypeError("model down");
      },
      () => Promise.resolve([]),
      () => Promise.resolve([embedding(1), embedding(1)]),
      () => Promise.resolve([undefined]),
      () => Promise.resolve(undefined),
    ];
    for (const failing of wrong) {
      const search = asUser(database, ANA, { embed: failing });
      const page = await search.search("invoice");
      assert.deepEqual(titles(page)[0], "billing");
      assert.match(page.degraded, /^embed .*; the best text hits gave the embedding$/);
      for await (const { degraded } of search.pages("invoice")) assert.ok(degraded);
      assert.ok(await search.explainEmpty("nothing"));
      const stored = asService(database, { embed: failing, model: "m" })
        .upsert({ external_key: "new", owner_id: ANA }, [{ content: "a" }]);
      await assert.rejects(stored, (error) => error instanceof SecondBrainError);
    }
    const working = await asUser(database, ANA, { embed }).search("invoice");
    assert.equal(working.degraded, null);
    const signal = AbortSignal.abort(new Error("stopped"));
    const aborted = asUser(database, ANA, { embed: wrong[0] }).search("invoice", { signal });
    await assert.rejects(aborted, /stopped/);
    const hanging = asUser(database, ANA, { embed: () => new Promise(() => {}) });
    const late = hanging.embeddings(["a", "b"], "query", { timeout: 5 });
    await assert.rejects(late, /embed took longer than 10 ms/);
    const stop = new AbortController();
    const search = hanging.search("invoice", { signal: stop.signal });
    stop.abort(new Error("stopped"));
    await assert.rejects(search, /stopped/);
  });

  test("filters that JSON would change, or of other stores, are refused with a remedy", async () => {
    const wrong = [
      () => 1,
      (rpc) => rpc.filter("metadata->>team", "eq", "a"),
      new Map([["team", "a"]]),
      new Set(["a"]),
      "team = 'a'",
      7,
      Symbol("a"),
      { team: undefined },
      { team: () => 1 },
      { team: NaN },
      { team: 1n },
      { team: new Map() },
      { team: new Date(NaN) },
      { team: [, 1] },
      { team: { [Symbol("a")]: 1 } },
      { page: { gte: 1 } },
      Object.create({ team: "a" }),
      { page: { $in: [1] } },
      { $or: [{ team: "a" }] },
      [{ field: "metadata.team", op: "eq", value: undefined }],
      [{ field: "metadata.team", op: "in", value: [undefined] }],
      [{ $and: [] }],
      [{ field: "metadata.page", op: "ne", value: { $eq: 1 } }],
      [() => 1],
    ];
    const search = asUser(database, ANA);
    for (const filters of wrong) {
      const calls = [
        search.search("invoice", { filters }),
        search.facets("invoice", ["collection"], { filters }),
        search.search("invoice", { required_filters: filters }),
      ];
      for (const call of calls) {
        await assert.rejects(call, (error) => {
          assert.ok(error instanceof InvalidInputError, String(error));
          assert.match(error.message, /^(required_)?filters/);
          assert.match(error.message + error.remedy, /list of conditions/);
          return true;
        });
      }
    }
    const { hits } = await search.search("invoice", { filters: { document_date: null } });
    assert.ok(hits.length > 0);
  });

  test("what JSON would change, and what is no question, is refused by name", async () => {
    const search = asUser(database, ANA);
    const wrong = { match_count: 5n, pool_size: NaN, date_from: new Date(NaN), boosts: new Map() };
    for (const [name, value] of Object.entries(wrong)) {
      await assert.rejects(
        search.search("a", { [name]: value }),
        RegExp(`InvalidInputError: ${name}`),
      );
    }
    const cycle = {};
    cycle.team = cycle;
    await assert.rejects(
      search.search("a", { filters: cycle }),
      /InvalidInputError: filters.*deep/,
    );
    for (
      const question of [null, undefined, 5, ["a"], { query: "a" }, { text: "a", embeding: [] }]
    ) {
      await assert.rejects(search.search(question), /InvalidInputError: question must be/);
    }
    await assert.rejects(search.search("a", { timeout: "5" }), /InvalidInputError: timeout/);
    await assert.rejects(search.upsert({ external_key: "a" }, null), /InvalidInputError: chunks/);
    for (const document of [undefined, null, "a", []]) {
      await assert.rejects(search.upsert(document, []), /InvalidInputError: document must be/);
    }
  });

  test("half of a surrogate pair and NUL are refused by the argument's name", async () => {
    const service = asService(database);
    for (const wrong of ["\ud800", "a\udfffb", "\u0000"]) {
      const stored = service.upsert({ external_key: "odd", title: wrong }, [{ content: "a" }]);
      await assert.rejects(stored, /^InvalidInputError: document has a NUL or half of/);
      const chunks = service.upsert({ external_key: "odd" }, [{ content: wrong }]);
      await assert.rejects(chunks, /^InvalidInputError: chunks has a NUL or half of/);
    }
    await service.upsert({ external_key: "odd" }, [{ content: "\\ud800 is an escape 😀" }]);
    assert.equal(await service.delete("odd"), 1);
  });

  test("a value that cannot be sent breaks no later call", async () => {
    const search = asUser(database, ANA);
    for (const wrong of [{ collections: () => 1 }, { boosts: () => 1 }]) {
      await search.search("invoice", wrong).catch(() => {});
      assert.ok((await search.search("invoice")).hits.length > 0);
    }
  });

  test("every option of a search is passed on under its name", async () => {
    const ana = asUser(database, ANA);
    const page = await ana.search("invoice", {
      filters: [{ field: "metadata.tags", op: "contains", value: ["money"] }],
      collections: ["knowledge"],
      date_to: undefined,
      snippet: true,
      recency_half_life: 30.5,
      one_per_document: true,
    });
    assert.deepEqual(titles(page), ["billing"]);
    assert.match(page.hits[0].snippet, /<mark>invoice<\/mark>/);
    assert.deepEqual(titles(await ana.search("invoice", { public_only: true })), ["prices"]);
    const dated = await ana.search("invoice", { date_from: "2026-01-01" });
    assert.deepEqual(titles(dated), []);
    const groups = { viewer_id: BEN, viewer_groups: ["a", "b"] };
    assert.deepEqual(titles(await asService(database).search("invoice", groups)), ["prices"]);
  });

  test("pages continue to the end of the list", async () => {
    const pages = [];
    for await (const page of asService(database).pages("invoice", { match_count: 1 })) {
      pages.push(page);
    }
    assert.deepEqual(pages.flatMap(titles).sort(), ["billing", "prices"]);
    assert.deepEqual(pages.map((page) => page.next_offset), [1, null]);
  });

  test("visitors find public rows once the project grants it", async () => {
    await assert.rejects(asVisitor(database).searchPublic("invoice"), (error) => {
      assert.ok(error instanceof PermissionDeniedError);
      assert.equal(error.code, "42501");
      return true;
    });
    const execute = "execute on function public.search_public_knowledge_chunks";
    await database.exec(`grant ${execute} to anon`);
    assert.deepEqual(titles(await asVisitor(database).searchPublic("invoice")), ["prices"]);
    await database.exec(`revoke ${execute} from anon`);
  });

  test("facets count values of what the role may see", async () => {
    const ana = asUser(database, ANA);
    assert.deepEqual(await ana.facets(null, ["metadata.tags"], { facet_limit: 2 }), [
      { facet: "metadata.tags", value: "cats", count: 1 },
      { facet: "metadata.tags", value: "home", count: 1 },
    ]);
    assert.deepEqual(await ana.facets("invoice", ["metadata.tags"]), [
      { facet: "metadata.tags", value: "money", count: 1 },
    ]);
    assert.deepEqual(await asUser(database, BEN).facets(null, ["metadata.tags"]), []);
    const [all] = await asService(database).facets(null, ["collection"]);
    assert.equal(all.count, 3);
    const visitor = { function: "search_public_knowledge_chunks" };
    await assert.rejects(ana.facets(null, ["collection"], visitor), InvalidInputError);
  });

  test("an empty search is explained", async () => {
    const filters = { tags: ["nothing"] };
    const said = await asUser(database, ANA).explainEmpty("invoice", { filters });
    assert.equal(said.reason, "filter");
    const all = await asService(database).explainEmpty("invoice", { filters });
    assert.equal(all.reason, "filter");
  });

  test("a refusal has class, code, message and remedy", async () => {
    const ana = asUser(database, ANA);
    const cases = [
      [ana.search("invoice", { match_count: 0 }), InvalidInputError, "22023", /match_count/],
      [ana.search({ embedding: [1, 2] }), DimensionMismatchError, "22023", /1024/],
      [ana.search({ embedding: [1, NaN] }), InvalidInputError, null, /embedding\[1\] is NaN/],
      [ana.search("a", { match_cuont: 3 }), InvalidInputError, null, /^match_cuont is no argument/],
      [
        ana.search("a", { function: "search_all" }),
        MigrationMissingError,
        "PGRST202",
        /search_all/,
      ],
      [
        ana.search("a", { function: "hybrid_search_knowledge_chunks" }),
        PermissionDeniedError,
        "42501",
        /denied/,
      ],
      [ana.search("a", { timeout: -1 }), InvalidInputError, null, /timeout is -1/],
      [
        asService(database, { embed }).upsert({ external_key: "x" }, [{ content: "y" }]),
        ConfigurationError,
        null,
        /model/,
      ],
    ];
    for (const [call, kind, code, message] of cases) {
      const error = await call.then(() => assert.fail("no error"), (one) => one);
      assert.ok(error instanceof kind, `${error}`);
      assert.ok(error instanceof SecondBrainError);
      assert.equal(error.name, kind.name);
      assert.match(kind.name, /^[A-Z]\w+Error$/);
      assert.equal(error.code, code);
      assert.match(error.message, message);
      assert.ok(error.remedy);
    }
  });

  test("an answer that is none is an error of its class", () => {
    const cases = [
      [{ message: "fetch failed" }, 0, UnavailableError],
      [{ message: "TimeoutError: signal timed out" }, 0, ClientTimeoutError],
      [{ message: "Invalid API key" }, 401, AuthenticationError],
      [{ message: "bad gateway" }, 502, UnavailableError],
    ];
    for (const [failure, status, kind] of cases) {
      assert.equal(searchError(failure, status).constructor, kind);
    }
  });

  test("an aborted search rejects with the reason of its signal", async () => {
    const reason = new Error("the user types on");
    const ana = asUser(database, ANA);
    await assert.rejects(ana.search("invoice", { signal: AbortSignal.abort(reason) }), reason);
    const controller = new AbortController();
    const running = ana.search("invoice", { signal: controller.signal });
    controller.abort(reason);
    await assert.rejects(running, reason);
  });

  test("a database without a module says which", async () => {
    const dropped = "drop function public.facet_my_knowledge_chunks";
    const undo = await database.query(
      "select pg_get_functiondef('public.facet_my_knowledge_chunks'::regproc) as text",
    );
    await database.exec(dropped);
    await assert.rejects(asUser(database, ANA).facets(null, ["collection"]), (error) => {
      assert.ok(error instanceof ModuleMissingError);
      assert.match(error.message, /module facets/);
      return true;
    });
    await database.exec(undo.rows[0].text);
    await database.exec(
      "grant execute on function public.facet_my_knowledge_chunks to authenticated",
    );
  });

  test("a call of PGlite's client can be awaited, as supabase-js's", async () => {
    const client = pgliteClient(database, { role: "authenticated", claims: { sub: ANA } });
    const given = { query_text: "invoice" };
    const { data, error, status } = await client.rpc("search_my_knowledge_chunks", given);
    assert.deepEqual([data.length, error, status], [2, null, 200]);
    const refused = await client.rpc("no_such_function");
    assert.equal(refused.error.code, "PGRST202");
  });

  test("a mistake of the program on PGlite is not a refusal of the database", async () => {
    const broken = { transaction: () => Promise.reject(new RangeError("closed")) };
    await assert.rejects(createSearch(pgliteClient(broken)).search("a"), RangeError);
  });
});
