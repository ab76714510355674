// A floor: tokens whose logit lies more than `distance` below the best one are
// banned.
import { deny } from "sluice:sampling/edits@0.1.0";
import { row } from "sluice:sampling/logits@0.1.0";

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

// The ids that are too far below the best logit.
function tooLow(logits, distance) {
  const best = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const ids = [];
  logits.forEach((logit, id) => {
    if (logit < best - distance) ids.push(id);
  });
  return ids;
}

class Sequence {
  static open({ params }) {
    const sequence = new Sequence();
    // Undefined: off.
    sequence.distance = JSON.parse(params).distance;
    return sequence;
  }

  // Returns nothing: the edits say what changes.
  process(_accepted) {
    if (this.distance !== undefined) deny(tooLow(row(), this.distance));
  }
}

export const logitsProcessor = { Sequence };
