"""Every stage once more in f64, from its definition, to tell rounding from a
difference in meaning.

A truncation is a function of a row (f64, banned tokens negative infinity) that
gives margins: above zero a token is kept, and by how much. `>=` rules keep at
exactly zero, which the rows do not have.
"""

import numpy as np

INF = np.inf


def order(row):
    """Ids from the best token down; equal logits by id."""
    return np.argsort(-row, kind="stable")


def log_softmax(row):
    best = row.max()
    return row - (best + np.log(np.exp(row - best).sum()))


def softmax(row):
    return np.exp(log_softmax(row))


def entropy(row):
    p = softmax(row)
    some = p > 0
    return -(p[some] * np.log(p[some])).sum()


def by_rank(row, margins_by_rank, ids=None):
    margins = np.empty(len(row))
    margins[order(row) if ids is None else ids] = margins_by_rank
    return margins


def top_k(row, k):
    return by_rank(row, np.where(np.arange(len(row)) < k, INF, -INF))


def mass_before(p):
    return np.concatenate([[0.0], np.cumsum(p)[:-1]])


def top_p(row, p):
    return by_rank(row, p - mass_before(softmax(row)[order(row)]))


def min_p(row, p):
    # In logits; INF off.
    with np.errstate(invalid="ignore"):
        return row - (row.max() + np.log(p)) if p > 0 else np.full(len(row), INF)


def typical(row, p):
    # By how surprising each token is beside the entropy; a head is kept that
    # may be one token too many or too few for rounding, or in another order
    # where two are as surprising.
    logp = log_softmax(row)
    some = np.isfinite(logp)
    shift = np.full(len(row), INF)
    shift[some] = np.abs(-logp[some] - entropy(row))
    ids = np.lexsort((np.arange(len(row)), -row, shift))
    before = mass_before(np.exp(logp)[ids])
    kept = before < p
    # Margin: of mass, or of surprise to the boundary where that is less.
    boundary = shift[ids[kept.sum() - 1]]
    with np.errstate(invalid="ignore"):
        margins = np.minimum(np.abs(p - before), np.abs(shift[ids] - boundary))
    margins = np.where(np.isnan(margins) | (margins == 0), 1e-12, margins)
    return by_rank(row, np.where(kept, margins, -margins), ids)


def epsilon(row, cut):
    return softmax(row) - cut


def eta(row, cut):
    return softmax(row) - min(cut, np.sqrt(cut) * np.exp(-entropy(row)))


def top_n_sigma(row, n):
    # In deviations.
    sigma = row[np.isfinite(row)].std()
    return (row - row.max()) / sigma + n


def xtc(row, threshold):
    """When it fires: of the tokens at or above the threshold all but the least
    likely are dropped."""
    p, ids = softmax(row), order(row)
    above = p[ids] - threshold
    n = int((above >= 0).sum())
    margins = np.full(len(row), INF)
    if n < 2:
        # The second best decides whether there is anything to drop.
        margins[ids[:1]] = np.abs(above[1])
        return margins
    # A token is dropped if the one after it is at the threshold or above, too.
    margins[ids[: n - 1]] = -above[1:n]
    margins[ids[n - 1]] = -above[n] if n < len(row) else INF
    return margins


def dynamic_temperature(row, temperature, spread, exponent):
    n = np.isfinite(row).sum()
    low, high = max(0.0, temperature - spread), temperature + spread
    share = entropy(row) / np.log(n)
    return row / (low + (high - low) * share**exponent)


def surprise(row):
    """In bits."""
    return -log_softmax(row) / np.log(2)


def dry(row, tokens, multiplier, base, allowed, breaks):
    """For each token that once followed an earlier occurrence of the context's
    end, by the longest such match; quadratic, but plainly so."""
    longest = {}
    for at in range(len(tokens) - 1):
        n = 0
        while n <= at and tokens[at - n] == tokens[-1 - n] and not breaks(tokens[at - n]):
            n += 1
        follower = tokens[at + 1]
        if n >= allowed and not breaks(follower):
            longest[follower] = max(longest.get(follower, 0), n)
    row = row.copy()
    most = np.floor(88.7228391 / np.log(base)) if base > 1 else 0
    for token, n in longest.items():
        exponent = min(n - allowed, most)
        row[token] -= min(multiplier * base**exponent, np.finfo(np.float32).max)
    return row


def cut(row, margins, min_keep=1):
    """The row after a truncation."""
    kept = margins >= 0
    if min_keep > 1 or not kept.any():
        kept[order(row)[:min_keep]] = True
    return np.where(kept & np.isfinite(row), row, -INF)


def penalties(row, repeated, repetition, counted, presence, frequency):
    """`repeated` and `counted`: the tokens inside the windows."""
    row = row.copy()
    ids = np.unique(np.array(repeated, np.int64))
    if repetition != 1:
        row[ids] = np.where(row[ids] > 0, row[ids] / repetition, row[ids] * repetition)
    ids, counts = np.unique(np.array(counted, np.int64), return_counts=True)
    row[ids] -= presence + frequency * counts
    return row


def window(tokens, size):
    return tokens[-size:] if size > 0 else tokens


def banned_ngrams(tokens, size):
    tail = tuple(tokens[len(tokens) - size + 1 :]) if size > 1 else ()
    if len(tokens) + 1 < size:
        return []
    runs = range(len(tokens) - size + 1)
    return [tokens[i + size - 1] for i in runs if tuple(tokens[i : i + size - 1]) == tail]


def bad_words(tokens, words):
    return [w[-1] for w in words if len(w) == 1 or tokens[-(len(w) - 1) :] == list(w[:-1])]


def without(row, banned):
    row = row.copy()
    row[np.array(list(banned), np.int64)] = -INF
    return row
