// Bans a token once it has been generated so many times.
import { deny } from "sluice:sampling/edits@0.1.0";

export const plugin = {
  describe: () => ({
    name: "at-most-javascript",
    version: "0.1.0",
    summary: "Bans a token once it has been generated so many times.",
    paramsSchema: JSON.stringify({
      type: "object",
      properties: { times: { type: "integer", minimum: 1, maximum: 1000000 } },
      required: ["times"],
      additionalProperties: false,
    }),
  }),
  prepare: () => {},
};

class Sequence {
  static open({ params }) {
    const sequence = new Sequence();
    sequence.times = JSON.parse(params).times;
    sequence.counts = new Map();
    return sequence;
  }

  plan(accepted) {
    for (const id of accepted) {
      this.counts.set(id, (this.counts.get(id) ?? 0) + 1);
    }
    deny([...this.counts].filter(([, n]) => n >= this.times).map(([id]) => id));
  }
}

export const tokenProcessor = { Sequence };
