"""Time to the first token of a prompt with mlx-lm, as JSON on the last line.

    python bench/mlxlm_prefill.py [--prompt-tokens 1500] [--times 1]

Needs the packages of tests/parity/requirements.txt; the model is the one of
mlxlm_decode.py. The size of mlx-lm's prefill steps was the fastest of 128, 512
and 2,048 with OpenBLAS on two processors.
"""

import argparse
import json
import time
from importlib.metadata import version

import mlx.core as mx
from mlx_lm.generate import generate_step

from mlxlm_decode import prompt, smollm2

PREFILL_STEP = 512


def first_token_s(model, n_tokens: int) -> float:
    ids = mx.array(prompt(0, n_tokens))
    start = time.perf_counter()
    next(generate_step(ids, model, max_tokens=1, prefill_step_size=PREFILL_STEP))
    return time.perf_counter() - start


def main() -> None:
    arguments = argparse.ArgumentParser(description="Times a prompt with mlx-lm.")
    arguments.add_argument("--prompt-tokens", type=int, default=1500)
    arguments.add_argument("--times", type=int, default=1)
    arguments = arguments.parse_args()
    model, _, _ = smollm2.load(smollm2.fetch_gguf())
    first_token_s(model, 16)
    times = [first_token_s(model, arguments.prompt_tokens) for _ in range(arguments.times)]
    versions = {name: version(name) for name in ("mlx", "mlx-lm")}
    print(json.dumps({"versions": versions, "first_token_s": times}))


if __name__ == "__main__":
    main()
