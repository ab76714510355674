"""A penalty that grows: each time a token was generated, its logit drops by
`penalty` more."""

import json
from collections import Counter

from wit_world.imports import edits


class Sequence:
    def __init__(self, penalty):
        self.penalty = penalty
        # How often each token was generated. It follows from the accepted
        # tokens alone, however they are split over calls.
        self.counts = Counter()

    @classmethod
    def open(cls, info):
        return cls(json.loads(info.params).get("penalty", 0))

    def plan(self, accepted):
        self.counts.update(accepted)
        changes = [-self.penalty * n for n in self.counts.values()]
        edits.add(list(self.counts), changes)
