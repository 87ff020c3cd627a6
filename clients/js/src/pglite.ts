// A client for the search on PGlite, a Postgres in the browser or in Node: it has what the package
// uses of supabase-js, and answers as PostgREST does.

import type { SearchClient } from "./index.ts";

/** What is used of a PGlite. */
export interface Database {
  transaction<Result>(run: (transaction: Queries) => Promise<Result>): Promise<Result>;
}

interface Queries {
  query<Row>(sql: string, given?: unknown[]): Promise<{ rows: Row[] }>;
}

export interface PgliteOptions {
  /** Default: service_role. */
  role?: "anon" | "authenticated" | "service_role";
  /** The claims of the token, such as `{ sub: "UUID of the user" }`. */
  claims?: Record<string, unknown>;
  /** The schema of the install, by default public. */
  schema?: string;
}

interface Answer {
  data: unknown;
  error: { message: string; code: string | null; hint: string | null } | null;
  status: number;
}

type Ask = (transaction: Queries) => Promise<Answer>;

const FUNCTION = `
select proretset as "isSet"
  from pg_proc
 where pronamespace = $1::text::regnamespace and proname = $2
`;

/** A client with the functions, and with rows of a table by the values of a column. */
export interface PgliteClient extends SearchClient {
  rpc(
    name: string,
    given?: Record<string, unknown>,
  ): PromiseLike<Answer> & { abortSignal(signal: AbortSignal): Promise<Answer> };
  from(table: string): {
    select(columns: string): {
      filter(column: string, operator: "in", list: string): Promise<Answer>;
    };
  };
}

/** Return a client that calls the functions of a PGlite as a role. */
export function pgliteClient(
  database: Database,
  { role = "service_role", claims = {}, schema = "public" }: PgliteOptions = {},
): PgliteClient {
  const asked = async (ask: Ask, signal?: AbortSignal): Promise<Answer> => {
    if (signal?.aborted) return aborted(signal);
    try {
      const answer = await database.transaction(async (transaction) => {
        const token = JSON.stringify({ ...claims, role });
        await transaction.query("select set_config('request.jwt.claims', $1, true)", [token]);
        await transaction.query("select set_config('role', $1, true)", [role]);
        return await ask(transaction);
      });
      // PGlite cannot cancel a statement.
      return signal?.aborted ? aborted(signal) : answer;
    } catch (error) {
      return failed(error);
    }
  };
  return {
    rpc(name, given = {}) {
      const ask = called(schema, name, given);
      return {
        abortSignal: (signal: AbortSignal) => asked(ask, signal),
        then: (done, failed) => asked(ask).then(done, failed),
      };
    },
    from(table: string) {
      return {
        select: (columns: string) => ({
          filter: (column: string, _in: "in", list: string) =>
            asked(async (transaction) => {
              const names = columns.split(",").map(quoted).join(", ");
              const { rows } = await transaction.query(
                `select ${names} from ${quoted(schema)}.${quoted(table)}
                  where ${quoted(column)} = any ($1::text[])`,
                [elements(list)],
              );
              return { data: rows, error: null, status: 200 };
            }),
        }),
      };
    },
  };
}

function called(schema: string, name: string, given: Record<string, unknown>): Ask {
  return async (transaction) => {
    const { rows: [known] } = await transaction.query<{ isSet: boolean }>(FUNCTION, [schema, name]);
    if (!known) {
      const message = `Could not find the function ${schema}.${name} in the schema cache`;
      return refused(404, "PGRST202", message);
    }
    // Undefined and functions are not in the JSON that supabase-js sends, and PGlite answers nothing
    // more after a parameter that it cannot send.
    const names = Object.keys(given).filter((one) => JSON.stringify(given[one]) !== undefined);
    const list = names.map((one, place) => `${quoted(one)} => $${place + 1}`).join(", ");
    const { rows: [row] } = await transaction.query<{ answer: string }>(
      `select coalesce(json_agg(answer), '[]')::text as answer
         from ${quoted(schema)}.${quoted(name)}(${list}) as answer`,
      names.map((one) => given[one]),
    );
    const data = JSON.parse(row!.answer);
    return { data: known.isSet ? data : data[0] ?? null, error: null, status: 200 };
  };
}

/** The elements of a list as the filter `in` of PostgREST has them, all in quotes. */
function elements(list: string): string[] {
  return [...list.matchAll(/"((?:\\.|[^"\\])*)"/gs)].map(([, one]) =>
    one!.replace(/\\(.)/gs, "$1")
  );
}

function quoted(name: string): string {
  return `"${name.trim().replaceAll('"', '""')}"`;
}

function refused(
  status: number,
  code: string | null,
  message: string,
  hint: string | null = null,
): Answer {
  return { data: null, error: { code, message, hint }, status };
}

function aborted(signal: AbortSignal): Answer {
  const { name, message } = signal.reason ?? { name: "AbortError", message: "" };
  return refused(0, null, `${name}: ${message}`);
}

function failed(error: unknown): Answer {
  const { code, message, hint } = error as { code?: string; message: string; hint?: string };
  if (!code) throw error;
  return refused(code === "42501" ? 403 : 400, code, message, hint);
}
