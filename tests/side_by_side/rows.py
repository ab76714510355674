"""Random logits rows and token histories, made of integers alone, so that
`../side_by_side.rs` makes the same ones bit for bit.

A row has no ties: from the best token down the logits are a running sum of
whole gaps of at least one unit, a power of two, and every sum fits an f32.
Its shape and its bans go by the row's number, its tokens lie in random order.
"""

import numpy as np

ROWS = 1000
WIDTHS = (100, 49_152)
# Where a logit is recorded: at the tokens of these ranks, 0 the best.
PROBE_RANKS = (0, 1, 2, 5, 10, 20)

FLAT, ZIPF, PEAKED, NEAR_TIES, EXTREMES, LEAD = range(6)
N_SHAPES = 6
# None banned, a sixteenth, a half, all but about twelve.
N_BANS = 4
# Row numbers with one shape and ban mode after the other; then new parameters.
PERIOD = N_SHAPES * N_BANS
# These ranks are never banned, so at least two tokens are left.
SPARED = (5, 9)


def mix(x):
    """The output function of SplitMix64 (Steele, Lea, Flood 2014)."""
    x = np.asarray(x, np.uint64)
    with np.errstate(over="ignore"):
        x = x * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def numbers(row: int, stream: int, n: int) -> np.ndarray:
    """The first n 32-bit numbers of one of a row's streams."""
    start = (row + 1 << 40) + (stream << 32)
    return (mix(np.arange(start, start + n)) >> np.uint64(32)).astype(np.int64)


def ids_by_rank(row: int, width: int) -> np.ndarray:
    """The ids from the best token down: a line modulo the width, whose slope
    has no factor in common with it (2, 3 or 5)."""
    slope, start = numbers(row, 0, 2) % width
    return ((30 * slope + 7) * np.arange(width) + start) % width


def logits(row: int, width: int) -> np.ndarray:
    shape, bans = row % N_SHAPES, row // N_SHAPES % N_BANS
    rank = np.arange(1, width)
    noise = numbers(row, 1, width - 1)
    # A unit is 2^-8 for extremes and 2^-16 otherwise.
    if shape == FLAT:
        limit = np.full(width - 1, 786_432 // width)
    elif shape == PEAKED:
        limit = 524_288 // rank + 2
    elif shape == NEAR_TIES:
        limit = np.where(rank % 2 == 1, 1, 60_000 // rank + 2)
    elif shape == EXTREMES:
        limit = 2_048 // rank + 2
    else:
        limit = 144_180 // rank + 2
    gaps = 1 + noise % limit
    top = int(numbers(row, 2, 1)[0]) % 2_621_440 - 1_310_720
    if shape == EXTREMES:
        top = 2_560_000
        for at in numbers(row, 3, 4) % 90:
            gaps[at] += 1_200_000
    if shape == LEAD:
        gaps[0] += 2_621_440
    sums = top - np.concatenate([[0], np.cumsum(gaps)])
    assert np.abs(sums).max() < 1 << 24
    values = sums.astype(np.float32) * np.float32(2.0 ** (-8 if shape == EXTREMES else -16))

    dice = numbers(row, 4, width)
    banned = [dice < 0, dice % 16 == 0, dice % 2 == 0, dice % width >= 12][bans]
    banned[list(SPARED)] = False
    values[banned] = -np.inf
    by_id = np.empty(width, np.float32)
    by_id[ids_by_rank(row, width)] = values
    return by_id


def history(row: int, width: int) -> tuple[list[int], list[int]]:
    """Prompt and generated tokens: good tokens for the most part, and runs of
    them that come again."""
    lengths = numbers(row, 5, 3)
    n_prompt, n_generated, period = 1 + lengths[0] % 40, lengths[1] % 80, 3 + lengths[2] % 9
    n = int(n_prompt + n_generated)
    dice, fresh = numbers(row, 6, n), numbers(row, 7, n)
    ids = ids_by_rank(row, width)
    tokens = []
    for i in range(n):
        if i >= period and dice[i] % 8 < 6:
            tokens.append(tokens[i - period])
        else:
            tokens.append(int(ids[fresh[i] % (width if dice[i] % 8 == 7 else 24)]))
    return tokens[:n_prompt], tokens[n_prompt:]


def chosen(row: int, params: list):
    """The parameters that a row is run with."""
    return params[row // PERIOD % len(params)]
