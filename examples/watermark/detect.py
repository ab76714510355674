"""Tells whether text carries the mark of a key.

    python3 detect.py KEY [FRACTION] < answer.json

Reads token ids: the prompt's last, then the generated ones, as a JSON list.
Prints how many are green and the z score: above 4 the text is marked (chance
alone does that once in 30,000 texts)."""

import json
import math
import sys


def mix(x):
    x = (x ^ x >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    x = (x ^ x >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return x ^ x >> 16


def is_green(key, previous, token, fraction):
    return mix(token ^ mix(previous ^ mix(key))) < int(fraction * 0xFFFFFFFF)


def z_score(ids, key, fraction):
    # A pair that comes again says nothing new.
    pairs = set(zip(ids, ids[1:]))
    n_green = sum(is_green(key, *pair, fraction) for pair in pairs)
    expected = fraction * len(pairs)
    deviation = math.sqrt(len(pairs) * fraction * (1 - fraction))
    return n_green, len(pairs), (n_green - expected) / deviation


if __name__ == "__main__":
    key = int(sys.argv[1])
    fraction = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
    n_green, n, z = z_score(json.load(sys.stdin), key, fraction)
    print(f"{n_green} of {n} tokens are green, z = {z:.1f}")
