"""Records what mlx-lm's samplers and logits processors make of the rows.

    python3 -m venv VENV
    VENV/bin/pip install mlx-lm==0.32.2 "mlx[cpu]==0.32.2"
    MLX_DISABLE_COMPILE=1 VENV/bin/python tests/side_by_side/record_mlx_lm.py

(Compiled, each new parameter costs a run of g++.) The samplers are given what
`generate_step` gives them, logits minus their log-sum-exp; that is computed in
f64 here, because at a logit of 10,000 an f32 is off by 0.0005.
"""

from importlib.metadata import version

import mlx.core as mx
import mlx_lm.sample_utils as mlx_lm
import numpy as np

import differences
import exact
import rows
from fixture import Fixture


def exact_logprobs(row, width):
    """Rounded as mlx-lm gets them, so that what is compared is the truncation."""
    exactly = exact.log_softmax(rows.logits(row, width).astype(np.float64))
    return exactly.astype(np.float32).astype(np.float64)


def logprobs(row, width):
    return mx.array(exact_logprobs(row, width).astype(np.float32))[None]


def tokens(row, width):
    prompt, generated = rows.history(row, width)
    return prompt + generated


def truncation(fixture, name, width, params, apply, margins):
    """`apply(logprobs, params)` and `margins(row, params)`, with min_keep."""

    def run(row, p):
        given = logprobs(row, width)
        left = np.array(apply(given, p)[0])
        given = np.array(given[0])
        finite = np.isfinite(left)
        assert (left[finite] == given[finite]).all(), "a kept logit changed"
        return left

    def check(row, p):
        given = exact_logprobs(row, width)
        margin = margins(given, p)
        return exact.cut(given, margin, p.get("min_keep", 1)), margin

    fixture.op(name, width, params, False, run, check)


def whole_sampler(fixture, width, params):
    """`make_sampler` up to its draw: top_p, min_p, xtc, top_k, temperature."""
    drawn_from = []

    def categorical(logits, temp):
        drawn_from.append(logits * (1.0 / temp))
        return mx.argmax(logits, axis=-1)

    mlx_lm.categorical_sampling = categorical

    def run(row, p):
        mlx_lm.make_sampler(
            temp=p["temperature"],
            top_p=p["top_p"],
            min_p=p["min_p"],
            xtc_probability=1.0,
            xtc_threshold=p["xtc_threshold"],
            top_k=p["top_k"],
        )(logprobs(row, width))
        return np.array(drawn_from.pop()[0])

    def check(row, p):
        left = exact_logprobs(row, width)
        nearest = np.full(width, np.inf)
        for margins in (
            lambda l: exact.top_p(l, p["top_p"]),
            lambda l: exact.min_p(l, p["min_p"]),
            lambda l: exact.xtc(l, p["xtc_threshold"]),
            lambda l: exact.top_k(l, p["top_k"]),
        ):
            margin = margins(left)
            left = exact.cut(left, margin)
            nearest = np.minimum(nearest, np.abs(margin))
        return left / p["temperature"], nearest

    fixture.op("sampler", width, params, True, run, check)


def processors(fixture, name, width, params):
    def run(row, p):
        logits = mx.array(rows.logits(row, width))[None]
        bias = {int(rows.ids_by_rank(row, width)[rank]): b for rank, b in p.get("bias", [])}
        history = mx.array(tokens(row, width))
        for processor in mlx_lm.make_logits_processors(
            bias or None,
            p.get("repetition_penalty"),
            p.get("repetition_context_size", 20),
            p.get("presence_penalty"),
            p.get("presence_context_size", 20),
            p.get("frequency_penalty"),
            p.get("frequency_context_size", 20),
        ):
            logits = processor(history, logits)
        return np.array(logits[0])

    def check(row, p):
        left = rows.logits(row, width).astype(np.float64)
        for rank, b in p.get("bias", []):
            left[rows.ids_by_rank(row, width)[rank]] += b

        def seen(name):
            return exact.window(tokens(row, width), p.get(f"{name}_context_size", 20))

        left = exact.penalties(
            left, seen("repetition"), p.get("repetition_penalty", 1), [], 0, 0
        )
        left = exact.penalties(left, [], 1, seen("presence"), p.get("presence_penalty", 0), 0)
        left = exact.penalties(left, [], 1, seen("frequency"), 0, p.get("frequency_penalty", 0))
        return left, np.full(width, np.inf)

    fixture.op(name, width, params, True, run, check)


def temperature(entry, logits):
    drawn_from = []
    mlx_lm.categorical_sampling = lambda l, temp: drawn_from.append(l * (1.0 / temp))
    mlx_lm.make_sampler(temp=entry["params"]["temperature"])(mx.array(logits)[None])
    return np.array(drawn_from[0][0])


def other_processors(entry, logits):
    left = mx.array(logits)[None]
    for processor in mlx_lm.make_logits_processors(**entry["params"]):
        left = processor(mx.array(entry.get("prompt", []) + entry.get("generated", [])), left)
    return np.array(left[0])


def record_differences():
    def stage(apply):
        return lambda entry, logits: np.array(apply(mx.array(logits)[None], entry)[0])

    # apply_top_p wants probabilities that add up; the others do not mind.
    difference = lambda l: l - mx.logsumexp(l, keepdims=True)
    top_p = lambda l, e: mx.where(
        mx.isfinite(mlx_lm.apply_top_p(difference(l), e["params"]["top_p"])), l, -mx.inf
    )
    differences.record(
        "mlx-lm",
        {
            "top_k": stage(lambda l, e: mlx_lm.apply_top_k(l, e["params"]["top_k"])),
            "top_p": stage(top_p),
            "xtc": stage(
                lambda l, e: mlx_lm.apply_xtc(
                    l, 1.0, e["params"]["xtc_threshold"], e.get("end_ids", [])
                )
            ),
            "temperature": temperature,
            "processors": other_processors,
        },
    )


def main():
    record_differences()
    fixture = Fixture("mlx-lm", {name: version(name) for name in ("mlx-lm", "mlx")})
    for width in rows.WIDTHS:
        truncation(
            fixture, "top_k", width, [{"top_k": k} for k in (1, 2, 7, 40, 99)],
            lambda l, p: mlx_lm.apply_top_k(l, p["top_k"]),
            lambda l, p: exact.top_k(l, p["top_k"]),
        )  # fmt: skip
        truncation(
            fixture, "top_p", width, [{"top_p": p} for p in (0.1, 0.5, 0.9, 0.95, 0.999)],
            lambda l, p: mlx_lm.apply_top_p(l, p["top_p"]),
            lambda l, p: exact.top_p(l, p["top_p"]),
        )  # fmt: skip
        keeps = [(0.02, 1), (0.1, 1), (0.5, 1), (0.1, 5), (1.0, 1), (0.9, 3)]
        truncation(
            fixture, "min_p", width, [{"min_p": p, "min_keep": k} for p, k in keeps],
            lambda l, p: mlx_lm.apply_min_p(l, p["min_p"], p["min_keep"]),
            lambda l, p: exact.min_p(l, p["min_p"]),
        )  # fmt: skip
        truncation(
            fixture, "xtc", width, [{"xtc_threshold": t} for t in (0.1, 0.01, 0.05, 0.2, 0.45)],
            lambda l, p: mlx_lm.apply_xtc(l, 1.0, p["xtc_threshold"], []),
            lambda l, p: exact.xtc(l, p["xtc_threshold"]),
        )  # fmt: skip
        names = ("temperature", "top_p", "min_p", "xtc_threshold", "top_k")
        whole = [
            (0.7, 0.9, 0.02, 0.1, 40),
            (1.3, 0.95, 0.001, 0.02, 20),
            (0.25, 0.5, 0.1, 0.2, 3),
            (2.0, 0.99, 0.01, 0.05, 60),
        ]
        whole_sampler(fixture, width, [dict(zip(names, values)) for values in whole])
        processors(fixture, "bias", width, [{"bias": [[0, -7.25], [3, 5.5], [17, 100.0], [40, -100.0]]}])
        processors(
            fixture, "repetition", width,
            [{"repetition_penalty": r, "repetition_context_size": n}
             for r, n in ((1.3, 20), (1.1, 5), (0.8, 64), (2.0, 1000))],
        )  # fmt: skip
        processors(
            fixture, "presence", width,
            [{"presence_penalty": x, "presence_context_size": n}
             for x, n in ((0.7, 20), (-1.5, 5), (2.0, 64), (0.3, 1000))],
        )  # fmt: skip
        processors(
            fixture, "frequency", width,
            [{"frequency_penalty": x, "frequency_context_size": n}
             for x, n in ((0.7, 20), (-1.5, 5), (2.0, 64), (0.3, 1000))],
        )  # fmt: skip
        processors(
            fixture, "processors", width,
            [{"bias": [[0, -7.25], [3, 5.5], [17, 100.0]],
              "repetition_penalty": r, "repetition_context_size": n,
              "presence_penalty": x, "presence_context_size": m,
              "frequency_penalty": y, "frequency_context_size": k}
             for r, n, x, m, y, k in (
                 (1.3, 20, 0.7, 20, 0.4, 20),
                 (0.9, 9, -0.6, 33, 1.1, 14),
                 (1.8, 50, 1.7, 7, -0.2, 90),
             )],
        )  # fmt: skip
    fixture.write()


if __name__ == "__main__":
    main()
