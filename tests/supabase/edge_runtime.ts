// Stands for the one thing that Supabase's Edge Runtime has and Deno has not: gte-small. What is
// about money lies on the first of its 384 axes, everything else on the second.

class Session {
  constructor(model: string) {
    if (model !== "gte-small") throw new Error(`there is no model ${model}`);
  }

  run(text: string, options: { mean_pool: boolean; normalize: boolean }): Promise<number[]> {
    if (!options.mean_pool || !options.normalize || text.includes("out of memory")) {
      return Promise.reject(new Error("the model failed"));
    }
    const embedding = new Array(384).fill(0);
    embedding[/invoice|money/.test(text) ? 0 : 1] = 1;
    return Promise.resolve(embedding);
  }
}

Object.assign(globalThis, { Supabase: { ai: { Session } } });
