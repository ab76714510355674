"""Records what transformers' logits processors make of the rows.

    python3 -m venv VENV
    VENV/bin/pip install transformers==5.24.0 torch==2.15.0 numpy
    VENV/bin/python tests/side_by_side/record_transformers.py

Each processor runs twice: in f32, as it is used, and in f64, which must give
what `exact.py` gives, with no allowance for rounding.
"""

from importlib.metadata import version

import numpy as np
import torch
import transformers as hf

import differences
import exact
import rows
from fixture import Fixture, distance

torch.set_num_threads(1)
INF = np.inf


class Row:
    """One row as the processors want it."""

    def __init__(self, row: int, width: int):
        self.logits = rows.logits(row, width)
        self.best = rows.ids_by_rank(row, width)
        self.prompt, self.generated = rows.history(row, width)
        self.tokens = self.prompt + self.generated

    def through(self, processors: list, dtype: torch.dtype) -> np.ndarray:
        ids = torch.tensor([self.tokens])
        scores = torch.tensor(self.logits[None]).to(dtype)
        for processor in processors:
            scores = processor(ids, scores)
        return scores[0].numpy()

    def end_ids(self) -> list[int]:
        return [int(self.best[0]), int(self.best[3])]

    def bad_words(self) -> list[list[int]]:
        """Some that end now, whatever the history, and some that do not."""
        best = [int(id) for id in self.best[:10]]
        before, last = ([0] + self.tokens)[-2:]
        return [[best[4]], [last, best[1]], [before, last, best[2]], [best[8], before, last, best[0]],
                [last, before, best[3]]]  # fmt: skip


def record(fixture, name, width, params, values, processors, margins_of):
    """`processors(row, params)`: a list; `margins_of(row, params)`: logits and
    margins by `exact`."""

    def run(row, p):
        row = Row(row, width)
        return row.through(processors(row, p), torch.float32)

    def check(row, p):
        row = Row(row, width)
        in_f64 = row.through(processors(row, p), torch.float64)
        ours, margins = margins_of(row, p)
        assert (np.isfinite(in_f64) == np.isfinite(ours)).all(), (name, width, p)
        assert distance(in_f64, ours) < 1e-9, (name, width, p)
        return ours, margins

    fixture.op(name, width, params, values, run, check)


def truncation(fixture, width, field, choices, warper, margins):
    def margins_of(row, p):
        margin = margins(row.logits.astype(np.float64), p[field])
        return exact.cut(row.logits.astype(np.float64), margin, p["min_keep"]), margin

    params = [{field: c, "min_keep": keep} for c, keep in choices]
    make = lambda row, p: [warper(p[field], min_tokens_to_keep=p["min_keep"])]
    record(fixture, field, width, params, False, make, margins_of)


def unbounded(width, logits):
    return logits, np.full(width, INF)


def tokens(fixture, width):
    """What depends on tokens alone."""
    plain = lambda row: row.logits.astype(np.float64)
    record(
        fixture, "repetition", width, [{"repetition_penalty": r} for r in (1.1, 1.3, 2.0, 0.8)], True,
        lambda row, p: [hf.RepetitionPenaltyLogitsProcessor(p["repetition_penalty"])],
        lambda row, p: unbounded(
            width, exact.penalties(plain(row), row.tokens, p["repetition_penalty"], [], 0, 0)),
    )  # fmt: skip
    record(
        fixture, "no_repeat_ngram", width, [{"no_repeat_ngram_size": n} for n in (1, 2, 3, 4)], False,
        lambda row, p: [hf.NoRepeatNGramLogitsProcessor(p["no_repeat_ngram_size"])],
        lambda row, p: unbounded(
            width, exact.without(plain(row), exact.banned_ngrams(row.tokens, p["no_repeat_ngram_size"]))),
    )  # fmt: skip
    record(
        fixture, "bad_words", width, [{}], False,
        lambda row, p: [hf.NoBadWordsLogitsProcessor(row.bad_words(), eos_token_id=[])],
        lambda row, p: unbounded(
            width, exact.without(plain(row), exact.bad_words(row.tokens, row.bad_words()))),
    )  # fmt: skip
    at_least = [{"min_tokens": n} for n in (0, 1, 20, 40, 79)]
    fewer = lambda row, n: exact.without(plain(row), row.end_ids() if len(row.generated) < n else [])
    record(
        fixture, "min_new_tokens", width, at_least, False,
        lambda row, p: [hf.MinNewTokensLengthLogitsProcessor(
            len(row.prompt), p["min_tokens"], row.end_ids(), device="cpu")],
        lambda row, p: unbounded(width, fewer(row, p["min_tokens"])),
    )  # fmt: skip
    record(
        fixture, "min_length", width, at_least, False,
        lambda row, p: [hf.MinLengthLogitsProcessor(
            len(row.prompt) + p["min_tokens"], row.end_ids(), device="cpu")],
        lambda row, p: unbounded(width, fewer(row, p["min_tokens"])),
    )  # fmt: skip


def whole_chain(fixture, width):
    """In the order of `generate`, as far as we have the stages."""
    names = ("repetition_penalty", "no_repeat_ngram_size", "temperature", "top_k", "top_p", "min_p",
             "typical_p", "epsilon_cutoff", "eta_cutoff")  # fmt: skip
    choices = [
        (1.2, 3, 0.7, 50, 0.95, 0.01, 0.95, 3e-4, 3e-4),
        (1.0, 2, 1.5, 90, 0.99, 0.002, 0.9, 1e-2, 1e-3),
        (0.9, 4, 1.0, 30, 0.8, 0.05, 0.7, 1e-3, 2e-2),
    ]

    def processors(row, p):
        return [
            hf.RepetitionPenaltyLogitsProcessor(p["repetition_penalty"]),
            hf.NoRepeatNGramLogitsProcessor(p["no_repeat_ngram_size"]),
            hf.NoBadWordsLogitsProcessor(row.bad_words(), eos_token_id=[]),
            hf.TemperatureLogitsWarper(p["temperature"]),
            hf.TopKLogitsWarper(p["top_k"]),
            hf.TopPLogitsWarper(p["top_p"]),
            hf.MinPLogitsWarper(p["min_p"]),
            hf.TypicalLogitsWarper(p["typical_p"]),
            hf.EpsilonLogitsWarper(p["epsilon_cutoff"]),
            hf.EtaLogitsWarper(p["eta_cutoff"], device="cpu"),
        ]

    def margins_of(row, p):
        left = exact.penalties(
            row.logits.astype(np.float64), row.tokens, p["repetition_penalty"], [], 0, 0
        )
        left = exact.without(left, exact.banned_ngrams(row.tokens, p["no_repeat_ngram_size"]))
        left = exact.without(left, exact.bad_words(row.tokens, row.bad_words()))
        left = left / p["temperature"]
        nearest = np.full(width, INF)
        for stage, field in (
            (exact.top_k, "top_k"), (exact.top_p, "top_p"), (exact.min_p, "min_p"),
            (exact.typical, "typical_p"), (exact.epsilon, "epsilon_cutoff"), (exact.eta, "eta_cutoff"),
        ):  # fmt: skip
            margin = stage(left, p[field])
            left = exact.cut(left, margin)
            nearest = np.minimum(nearest, np.abs(margin))
        return left, nearest

    params = [dict(zip(names, values)) for values in choices]
    record(fixture, "generate", width, params, True, processors, margins_of)


def record_differences():
    def processor(make):
        def run(entry, logits):
            context = entry.get("prompt", []) + entry.get("generated", [])
            ids = torch.tensor([context], dtype=torch.long)
            return make(entry["params"])(ids, torch.tensor(logits)[None])[0].numpy()

        return run

    differences.record(
        "transformers",
        {
            "top_k": processor(lambda p: hf.TopKLogitsWarper(p["top_k"])),
            "min_p": processor(lambda p: hf.MinPLogitsWarper(p["min_p"], min_tokens_to_keep=p["min_keep"])),
            "temperature": processor(lambda p: hf.TemperatureLogitsWarper(float(p["temperature"]))),
            "bad_words": processor(lambda p: hf.NoBadWordsLogitsProcessor(p["bad_words"], eos_token_id=[])),
        },
    )  # fmt: skip


def main():
    record_differences()
    fixture = Fixture("transformers", {name: version(name) for name in ("transformers", "torch")})
    for width in rows.WIDTHS:
        tokens(fixture, width)
        record(
            fixture, "temperature", width, [{"temperature": t} for t in (0.1, 0.7, 1.3, 5.0)], True,
            lambda row, p: [hf.TemperatureLogitsWarper(p["temperature"])],
            lambda row, p: unbounded(width, row.logits.astype(np.float64) / p["temperature"]),
        )  # fmt: skip
        truncation(fixture, width, "top_k", [(1, 1), (5, 1), (40, 1), (3, 6), (97, 1)],
                   hf.TopKLogitsWarper, exact.top_k)  # fmt: skip
        truncation(fixture, width, "top_p", [(0.1, 1), (0.5, 1), (0.9, 4), (0.95, 1), (0.999, 1)],
                   hf.TopPLogitsWarper, exact.top_p)  # fmt: skip
        truncation(fixture, width, "min_p", [(0.02, 1), (0.1, 1), (0.5, 1), (0.001, 1)],
                   hf.MinPLogitsWarper, exact.min_p)  # fmt: skip
        truncation(fixture, width, "typical_p", [(0.2, 1), (0.5, 1), (0.9, 1), (0.95, 1)],
                   lambda p, min_tokens_to_keep: hf.TypicalLogitsWarper(p), exact.typical)  # fmt: skip
        truncation(fixture, width, "epsilon_cutoff", [(3e-4, 1), (9e-4, 3), (0.02, 1), (0.3, 1)],
                   hf.EpsilonLogitsWarper, exact.epsilon)  # fmt: skip
        truncation(fixture, width, "eta_cutoff", [(3e-4, 1), (6e-4, 3), (0.02, 1), (0.3, 1)],
                   lambda c, min_tokens_to_keep: hf.EtaLogitsWarper(
                       c, min_tokens_to_keep=min_tokens_to_keep, device="cpu"),
                   exact.eta)  # fmt: skip
        whole_chain(fixture, width)
    fixture.write()


if __name__ == "__main__":
    main()
