"""Draws among the `k` best tokens, by their probabilities."""

import json
from math import exp

from wit_world.imports import logits, random


def draw(logits, u):
    """The index among logits, the best first, at `u` of their sum: the inverse
    of the cumulative distribution."""
    weights = [exp(logit - logits[0]) for logit in logits]
    left = u * sum(weights)
    for index, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return index
    return len(weights) - 1


def uniform(n):
    """Evenly from 0 to below 1, the same for the same seed, choice and
    position."""
    return (random.bits(n) >> 11) * 2.0**-53


class Sequence:
    def __init__(self, k):
        self.k = k

    @classmethod
    def open(cls, info):
        return cls(json.loads(info.params).get("k", 1))

    def sample(self, accepted):
        best = logits.top(self.k)
        return best.ids[draw(best.logits, uniform(0))]
