// The tool of the AI SDK over supabase-js, called by generateText with what a model sent. It writes
// whether each call was refused, and its answer. tests/supabase/test_tools_of_models.py starts it.

import { createClient } from "@supabase/supabase-js";
import { generateText, stepCountIs } from "ai";
import { createSearch } from "@second-brain-sql/client";
import { searchTool } from "@second-brain-sql/client/ai";
import { modelThatAsks } from "./model.js";

const { URL, KEY, SERVICE_TOKEN, VIEWER, NAMED, CALLS } = process.env;
const client = createClient(URL, KEY, {
  accessToken: () => Promise.resolve(SERVICE_TOKEN),
  realtime: { transport: class {} },
});
const search = createSearch(client, { function: "hybrid_search_knowledge_chunks" });
const tools = {
  search: searchTool(search, {
    options: {
      viewer_id: VIEWER,
      required_filters: [{ field: "language", op: "eq", value: "english" }],
    },
    arguments: JSON.parse(NAMED),
  }),
};

const answers = [];
for (const input of JSON.parse(CALLS)) {
  const asked = { model: modelThatAsks(input), prompt: "?", tools, stopWhen: stepCountIs(2) };
  const { steps, text } = await generateText(asked);
  const found = steps[0].toolResults[0]?.output;
  // Without the tool result, the model got the error as a text.
  const isRefused = found === undefined;
  answers.push({ is_refused: isRefused, text: isRefused ? text : JSON.stringify(found) });
}
console.log(JSON.stringify(answers));
