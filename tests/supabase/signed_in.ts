// Adds the token of $TOKEN to each request, for MCP's conformance runner, which sends none.

const serve = Deno.serve;
Deno.serve = ((handler: Deno.ServeHandler) =>
  serve((request, info) => {
    const headers = new Headers(request.headers);
    headers.set("Authorization", `Bearer ${Deno.env.get("TOKEN")}`);
    return handler(new Request(request, { headers }), info);
  })) as typeof serve;
