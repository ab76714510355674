// A penalty that grows: each time a token was generated, its logit drops by
// `penalty` more.
import { add } from "sluice:sampling/edits@0.1.0";

const schema = {
  type: "object",
  properties: { {{property}} },
  additionalProperties: false,
};

export const plugin = {
  describe: () => ({
    name: "{{name}}",
    version: "0.1.0",
    summary: "{{summary}}",
    paramsSchema: JSON.stringify(schema),
  }),
  prepare: () => {},
};

class Sequence {
  static open({ params }) {
    const sequence = new Sequence();
    sequence.penalty = JSON.parse(params).penalty ?? 0;
    // How often each token was generated. It follows from the accepted tokens
    // alone, however they are split over calls.
    sequence.counts = new Map();
    return sequence;
  }

  plan(accepted) {
    for (const id of accepted) {
      this.counts.set(id, (this.counts.get(id) ?? 0) + 1);
    }
    const counts = [...this.counts];
    add(
      counts.map(([id]) => id),
      counts.map(([, n]) => -this.penalty * n),
    );
  }
}

export const tokenProcessor = { Sequence };
