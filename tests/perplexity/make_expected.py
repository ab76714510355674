"""Losses of mlx-lm on harbour.txt, for tests/perplexity.rs.

    VENV/bin/python tests/perplexity/make_expected.py > tests/perplexity/expected.json

VENV is the environment that tests/parity/make_fixture.py describes. For each
policy the windows are written out by hand below: [first token, first scored
token, end], as in `sluice perplexity --help`.
"""

import json
import math
import sys
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "parity"))
import smollm2  # noqa: E402


def disjoint(n: int, window: int) -> list[list[int]]:
    return [[at, at + 1, min(at + window, n)] for at in range(0, n, window)]


def rolling(n: int, window: int, stride: int) -> list[list[int]]:
    ends = [min(window, n)]
    while ends[-1] < n:
        ends.append(min(ends[-1] + stride, n))
    starts = [1, *ends[:-1]]
    return [[max(0, end - window), start, end] for start, end in zip(starts, ends)]


def losses(model, tokens: list[int], windows: list[list[int]]) -> list[float]:
    found = []
    for first, scored, end in windows:
        logits = model(mx.array([tokens[first : end - 1]]))[0].astype(mx.float32)
        # In f64: MLX's own sum over a vocabulary is 1e-4 too small.
        logits = np.array(logits, dtype=np.float64)
        logprobs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        for index in range(scored, end):
            found.append(-logprobs[index - 1 - first, tokens[index]].item())
    return found


def main() -> None:
    model, tokenizer, _ = smollm2.load(smollm2.fetch_gguf())
    text = (HERE / "harbour.txt").read_text(encoding="utf-8")
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    n = len(tokens)
    cases = [
        (["--window", "1024"], tokens, disjoint(n, 1024)),
        (["--window", "128"], tokens, disjoint(n, 128)),
        (["--window", "128", "--stride", "32"], tokens, rolling(n, 128, 32)),
        (
            ["--window", "129", "--stride", "128", "--prefix-token", "0"],
            [0, *tokens],
            rolling(n + 1, 129, 128),
        ),
    ]
    results = []
    for arguments, of_case, windows in cases:
        found = losses(model, of_case, windows)
        results.append(
            {
                "arguments": arguments,
                "n_tokens_scored": len(found),
                "n_windows": len(windows),
                "mean_negative_logprob": math.fsum(found) / len(found),
            }
        )
    versions = {name: version(name) for name in ("mlx", "mlx-lm")}
    json.dump({"versions": versions, "n_bytes": len(text.encode()), "cases": results}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
