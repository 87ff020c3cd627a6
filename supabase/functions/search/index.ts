// search: a question of a signed-in user in, the passages that this user may see out, over HTTP.

import { read, Refusal, search } from "../_shared/user_search.ts";

const HEADERS = {
  "Access-Control-Allow-Origin": Deno.env.get("ALLOWED_ORIGIN") ?? "*",
  "Access-Control-Allow-Headers": "authorization, x-client-info, apikey, content-type",
  "Access-Control-Allow-Methods": "POST, OPTIONS",
};

async function answer(request: Request): Promise<unknown> {
  if (request.method !== "POST") {
    const message = `${request.method} is not answered here`;
    throw new Refusal(405, "invalid_input", message, "Send a POST.");
  }
  const authorization = request.headers.get("Authorization");
  if (!authorization?.startsWith("Bearer ")) {
    throw new Refusal(
      401,
      "authentication_failed",
      "there is no Authorization header with a token",
      "Sign in, and send the user's own access token.",
    );
  }
  return await search(authorization, read(await request.json().catch(() => undefined)));
}

Deno.serve(async (request) => {
  if (request.method === "OPTIONS") {
    return new Response(null, { status: 204, headers: HEADERS });
  }
  try {
    return Response.json(await answer(request), { headers: HEADERS });
  } catch (error) {
    if (error instanceof Refusal) {
      const { status, message, ...details } = error;
      return Response.json({ error: message, ...details }, { status, headers: HEADERS });
    }
    console.error(error);
    const answer = { error: "the search failed", remedy: "The function's log has the cause." };
    return Response.json({ ...answer, kind: "error" }, { status: 500, headers: HEADERS });
  }
});
