// Draws among the `k` best tokens, by their probabilities.
import { top } from "sluice:sampling/logits@0.1.0";
import { bits } from "sluice:sampling/random@0.1.0";

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

// The index among logits, the best first, at `u` of their sum: the inverse of
// the cumulative distribution.
function draw(logits, u) {
  const weights = [...logits].map((logit) => Math.exp(logit - logits[0]));
  let left = u * weights.reduce((a, b) => a + b, 0);
  for (let index = 0; index < weights.length; index++) {
    left -= weights[index];
    if (left < 0) return index;
  }
  return weights.length - 1;
}

// Evenly from 0 to below 1, the same for the same seed, choice and position.
const uniform = (n) => Number(bits(n) >> 11n) * 2 ** -53;

class Sequence {
  static open({ params }) {
    const sequence = new Sequence();
    sequence.k = JSON.parse(params).k ?? 1;
    return sequence;
  }

  sample(_accepted) {
    const best = top(this.k);
    return best.ids[draw(best.logits, uniform(0))];
  }
}

export const sampler = { Sequence };
