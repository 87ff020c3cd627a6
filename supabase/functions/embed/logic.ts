// The work of the function embed: texts are claimed, embedded and stored until none is left or the
// time is over. It reads no environment and knows no HTTP server, so the tests run it as it is.

export interface Claim {
  content_hash: string;
  content: string;
  dimensions: number;
}

export type Result =
  | { content_hash: string; embedding: number[] }
  | { content_hash: string; error: string; is_final: boolean }
  | { content_hash: string; release: true };

export type Counts = Record<string, number>;

export interface Queue {
  claim(): Promise<Claim[]>;
  store(results: Result[]): Promise<Counts>;
}

export type Embed = (texts: string[]) => Promise<number[][]>;

export interface Report {
  claimed: number;
  counts: Counts;
  model_calls: number;
  stopped: "nothing is pending" | "the time is over" | "the model failed";
  problem: string | null;
}

// The model refuses these texts; it may embed others.
export class Refused extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

// The model is overloaded or limits the rate; seconds: how long it asks to wait.
export class Busy extends Error {
  constructor(message: string, readonly seconds: number | null) {
    super(message);
  }
}

// The model cannot be used as it is configured.
export class Unusable extends Error {}

const MOST_WAITS = 5;
const LONGEST_REASON = 300; // characters

export async function run(queue: Queue, embed: Embed, seconds: number): Promise<Report> {
  const end = performance.now() + 1000 * seconds;
  const report: Report = {
    claimed: 0,
    counts: {},
    model_calls: 0,
    stopped: "the time is over",
    problem: null,
  };
  let hasWorked = false;

  async function patiently(texts: string[]): Promise<number[][]> {
    for (let attempt = 0;; attempt++) {
      try {
        report.model_calls++;
        const vectors = await embed(texts);
        hasWorked = true;
        return vectors;
      } catch (error) {
        if (!(error instanceof Busy) || attempt === MOST_WAITS) throw error;
        // The random factor prevents that calls which failed together come back together.
        const wait = error.seconds ?? 2 ** attempt * (0.5 + Math.random() / 2);
        if (performance.now() + 1000 * wait >= end) throw error;
        await new Promise((resolve) => setTimeout(resolve, 1000 * wait));
      }
    }
  }

  // A text that the model refuses fails alone, so a batch is halved until it is found.
  async function embedInto(results: Result[], claims: Claim[]): Promise<void> {
    try {
      const vectors = await patiently(claims.map((claim) => claim.content));
      claims.forEach(({ content_hash, dimensions }, place) => {
        const embedding = vectors[place];
        if (embedding.length !== dimensions) {
          throw new Unusable(
            `the model's embeddings have ${embedding.length} dimensions, the corpus ${dimensions}`,
          );
        }
        results.push({ content_hash, embedding });
      });
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (claims.length > 1) {
        const middle = claims.length >> 1;
        await embedInto(results, claims.slice(0, middle));
        await embedInto(results, claims.slice(middle));
        return;
      }
      // A model that refuses every text is configured wrongly; no text fails for that.
      if (!hasWorked) {
        await patiently(["text"]).catch((refusal) => {
          if (!(refusal instanceof Refused)) throw refusal;
          throw new Unusable(`the model server refuses every text, with status ${refusal.status}`);
        });
      }
      const [{ content_hash }] = claims;
      results.push({ content_hash, error: error.message, is_final: true });
    }
  }

  while (performance.now() < end) {
    const claims = await queue.claim();
    if (claims.length === 0) {
      report.stopped = "nothing is pending";
      break;
    }
    report.claimed += claims.length;
    const results: Result[] = [];
    try {
      await embedInto(results, claims);
    } catch (error) {
      report.stopped = "the model failed";
      report.problem = error instanceof Error ? error.message : String(error);
      const finished = new Set(results.map((result) => result.content_hash));
      for (const { content_hash } of claims) {
        if (!finished.has(content_hash)) results.push({ content_hash, release: true });
      }
    }
    for (const [name, count] of Object.entries(await queue.store(results))) {
      report.counts[name] = (report.counts[name] ?? 0) + count;
    }
    if (report.problem !== null) break;
  }
  return report;
}

export interface Api {
  url: string;
  key: string;
  model: string;
  dimensions: number | null;
}

// An API like OpenAI's: POST /embeddings.
export function hosted({ url, key, model, dimensions }: Api): Embed {
  async function ask(texts: string[]): Promise<Response> {
    try {
      return await fetch(`${url.replace(/\/+$/, "")}/embeddings`, {
        method: "POST",
        // Another host must not receive the key.
        redirect: "error",
        headers: {
          "Content-Type": "application/json",
          ...(key && { Authorization: `Bearer ${key}` }),
        },
        body: JSON.stringify({
          model,
          input: texts,
          ...(dimensions === null ? {} : { dimensions }),
        }),
        signal: AbortSignal.timeout(30_000),
      });
    } catch {
      // The message would contain the address, which can contain credentials.
      throw new Busy("the model server does not answer", null);
    }
  }

  return async (texts) => {
    const response = await ask(texts);
    if (!response.ok) {
      if ([400, 413, 422].includes(response.status)) {
        const told = await response.text().catch(() => "");
        const reason = `status ${response.status}: ${key ? told.replaceAll(key, "...") : told}`;
        throw new Refused(response.status, reason.slice(0, LONGEST_REASON));
      }
      if (response.status === 429 || response.status >= 500) {
        throw new Busy(
          `the model server answers status ${response.status}`,
          waitOf(response.headers.get("Retry-After")),
        );
      }
      // Without the body, which can contain a part of a wrong key.
      throw new Unusable(`the model server answers status ${response.status}`);
    }
    const body = await response.json().catch(() => null);
    const vectors: number[][] = [];
    for (const one of Array.isArray(body?.data) ? body.data : []) {
      if (Array.isArray(one?.embedding)) vectors[one.index] = one.embedding;
    }
    if (texts.some((_, place) => vectors[place] === undefined)) {
      throw new Unusable("the answer of the model server does not have an embedding for each text");
    }
    return vectors;
  };
}

// Retry-After is a number of seconds or a date.
export function waitOf(header: string | null): number | null {
  if (header === null) return null;
  const seconds = /^\d+(\.\d+)?$/.test(header)
    ? Number(header)
    : (Date.parse(header) - Date.now()) / 1000;
  return Number.isFinite(seconds) ? Math.max(seconds, 0) : null;
}

// Digests have one length, and all of it is compared: the time does not depend on the place of the
// first difference.
export async function isSame(given: string, wanted: string): Promise<boolean> {
  const [one, other] = await Promise.all(
    [given, wanted].map(async (text) =>
      new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)))
    ),
  );
  return one.reduce((difference, byte, place) => difference | (byte ^ other[place]), 0) === 0;
}
