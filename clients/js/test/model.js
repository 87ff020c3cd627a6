// Stands in for a language model: it calls the tool `search` once, and repeats what it found.

import { MockLanguageModelV4 } from "ai/test";

export function modelThatAsks(input) {
  const usage = {
    inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
    outputTokens: { total: 1, text: 1, reasoning: 0 },
  };
  return new MockLanguageModelV4({
    doGenerate({ prompt }) {
      const last = prompt.at(-1);
      if (last.role === "tool") {
        const { output } = last.content[0];
        const text = output.type === "json" ? output.value.results[0].content : output.value;
        const finishReason = { unified: "stop", raw: "stop" };
        return { content: [{ type: "text", text }], finishReason, usage, warnings: [] };
      }
      const call = { type: "tool-call", toolCallId: "1", toolName: "search" };
      return {
        content: [{ ...call, input: JSON.stringify(input) }],
        finishReason: { unified: "tool-calls", raw: "tool_calls" },
        usage,
        warnings: [],
      };
    },
  });
}
