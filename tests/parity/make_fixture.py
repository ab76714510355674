"""Makes fixture.json: what mlx-lm generates for the prompts in prompts.json.

To run it again (a few minutes; needs pip, a C++ compiler, 2 GB of memory):

    python3 -m venv VENV
    VENV/bin/pip install -r tests/parity/requirements.txt
    VENV/bin/python tests/parity/make_fixture.py

With LD_PRELOAD=/path/to/libopenblas.so.0 (Debian: libopenblas0-pthread) it is
several times faster; the fixture names the BLAS it was made with.

Per prompt: greedy tokens come one at a time from mlx-lm's `generate_step`, at
batch 1 with its KV cache, until the end id (recorded too) or the limit. The
logits are teacher-forced: one forward pass without a cache over the prompt and
the generated ids but the last gives the row of every generated position. The
two must agree on every token. Of each row the fixture keeps the `n_top` largest
logits with their ids, the logits at `probe_ids` and the log-sum-exp.
"""

import argparse
import json
import os
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step

import smollm2

HERE = Path(__file__).parent
MAX_TOKENS = 64
MIN_POSITIONS = 900
MIN_GAP = 0.002
N_TOP = 8
# Thirty-two ids spread over the vocabulary, common and rare ones.
PROBE_IDS = [7 + 1531 * i for i in range(32)]


def greedy(model, prompt: list[int]) -> tuple[list[int], np.ndarray]:
    """The generated ids, end id included, and their rows of logprobs."""
    ids, rows = [], []
    for token, logprobs in generate_step(mx.array(prompt), model, max_tokens=MAX_TOKENS):
        ids.append(int(token))
        rows.append(np.array(logprobs, copy=True))
        if ids[-1] == smollm2.END_ID:
            break
    return ids, np.stack(rows)


def teacher_forced(model, prompt: list[int], generated: list[int]) -> np.ndarray:
    """The logits row of every generated position."""
    inputs = mx.array([prompt + generated[:-1]])
    hidden = model.model(inputs)[:, len(prompt) - 1 :]
    return np.array(model.model.embed_tokens.as_linear(hidden)[0], copy=True)


def rounding(rows: np.ndarray, logprobs: np.ndarray) -> float:
    """Largest difference of the two ways to compute, but for one constant per
    row: `generate_step` gives logprobs, whose normaliser is inexact in f32."""
    difference = rows - logprobs
    return np.abs(difference - np.median(difference, axis=-1, keepdims=True)).max()


def log_sum_exp(rows: np.ndarray) -> np.ndarray:
    wide = rows.astype(np.float64)
    peak = wide.max(axis=-1, keepdims=True)
    return peak[:, 0] + np.log(np.exp(wide - peak).sum(axis=-1))


def rounded(values: np.ndarray) -> list:
    """Five decimals: logits are below 100, so this is f32's precision."""
    return np.round(values.astype(np.float64), 5).tolist()


def record(prompt: dict, ids: list[int], generated: list[int], rows: np.ndarray) -> dict:
    top = np.argsort(-rows, axis=-1, kind="stable")[:, :N_TOP]
    return {
        **prompt,
        "prompt_ids": ids,
        "generated_ids": generated,
        "top_ids": top.tolist(),
        "top_logits": rounded(np.take_along_axis(rows, top, axis=-1)),
        "probe_logits": rounded(rows[:, PROBE_IDS]),
        "log_sum_exp": rounded(log_sum_exp(rows)),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description="Makes the parity fixture.")
    arguments.add_argument("--prompts", type=Path, default=HERE / "prompts.json")
    arguments.add_argument("--out", type=Path, default=HERE / "fixture.json")
    arguments = arguments.parse_args()

    model, tokenizer, template = smollm2.load(smollm2.fetch_gguf())
    cases, gaps, n_positions, noise = [], [], 0, 0.0
    for prompt in json.loads(arguments.prompts.read_text()):
        ids = smollm2.prompt_ids(**prompt, tokenizer=tokenizer, template=template)
        generated, logprobs = greedy(model, ids)
        rows = teacher_forced(model, ids, generated)
        name = prompt["text"][:40].replace("\n", " ")
        if rows.argmax(axis=-1).tolist() != generated:
            raise SystemExit(f"{name!r}: decoding and the teacher-forced pass disagree")
        case = record(prompt, ids, generated, rows)
        gap = min(a - b for a, b, *_ in case["top_logits"])
        noise = max(noise, rounding(rows, logprobs))
        print(f"{prompt['kind']:5} {len(ids):3} + {len(generated):2} tokens, gap {gap:.4f}: {name}", flush=True)
        cases.append(case)
        gaps.append(gap)
        n_positions += len(generated)

    print(f"{len(cases)} prompts, {n_positions} positions, smallest gap {min(gaps):.4f}")
    print(f"decoding and the teacher-forced pass differ by at most {noise:.1e}")
    if n_positions < MIN_POSITIONS:
        raise SystemExit(f"fewer than {MIN_POSITIONS} positions: choose prompts that run longer")
    if min(gaps) < MIN_GAP:
        raise SystemExit(f"a gap below {MIN_GAP} is open to rounding: choose another prompt")
    made_with = {name: version(name) for name in ("mlx", "mlx-lm", "tokenizers", "jinja2")}
    made_with["blas"] = Path(os.environ.get("LD_PRELOAD", "the wheel's own")).resolve().name
    header = {"gguf_sha256": smollm2.GGUF_SHA256, "end_id": smollm2.END_ID, "max_tokens": MAX_TOKENS}
    fixture = {"made_with": made_with, **header, "probe_ids": PROBE_IDS, "cases": cases}
    arguments.out.write_text(json.dumps(fixture, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"wrote {arguments.out}, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
