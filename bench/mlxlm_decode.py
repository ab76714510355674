"""Time of a decode step of mlx-lm's batch generator, as JSON on the last line.

    python bench/mlxlm_decode.py [--batch 1,8,16] [--tokens 64]

Needs the packages of tests/parity/requirements.txt. The model is the one that
`sluice` serves by default, dequantised to f32: mlx-lm's fastest form on a CPU.
A step is one `BatchGenerator.next` with every row decoding; prefill and the
first steps are left out.
"""

import argparse
import json
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

from mlx_lm.generate import BatchGenerator
from mlx_lm.sample_utils import make_logits_processors, make_sampler

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "parity"))
import smollm2  # noqa: E402

N_WARM_UP = 4


def sampler():
    return make_sampler(0.8, top_p=0.95, top_k=40)


def penalties():
    return make_logits_processors({1: -100.0}, 1.1, 20, 0.5, 20, 0.5, 20)


# What chooses the tokens: a sampler, and a maker of logits processors.
CHAINS = {
    "greedy": (make_sampler(0.0), list),
    "sampling": (sampler(), list),
    "penalties": (sampler(), penalties),
}


def step_times_ms(model, prompts: list[list[int]], n_tokens: int, chain: str) -> list[float]:
    """Milliseconds of each step in which all prompts decode."""
    sampler, processors = CHAINS[chain]
    batch = len(prompts)
    generator = BatchGenerator(model, completion_batch_size=batch, prefill_batch_size=batch)
    generator.insert(
        prompts,
        [n_tokens] * batch,
        samplers=[sampler] * batch,
        logits_processors=[processors() for _ in prompts],
    )
    times, n_running = [], batch
    while n_running:
        start = time.perf_counter()
        _, responses = generator.next()
        elapsed = time.perf_counter() - start
        if len(responses) == batch:
            times.append(1000 * elapsed)
        n_running -= sum(response.finish_reason is not None for response in responses)
    generator.close()
    return times[N_WARM_UP:]


def main() -> None:
    arguments = argparse.ArgumentParser(description="Times decode steps of mlx-lm.")
    arguments.add_argument("--batch", default="1,8,16", help="batch sizes, comma-separated")
    arguments.add_argument("--tokens", type=int, default=64, help="tokens per sequence")
    arguments = arguments.parse_args()
    if arguments.tokens <= N_WARM_UP:
        raise SystemExit(f"--tokens must be greater than {N_WARM_UP}")

    model, tokenizer, template = smollm2.load(smollm2.fetch_gguf())
    rows = []
    for batch in map(int, arguments.batch.split(",")):
        texts = [f"Write a long story about dragon number {i + 10} and its cave." for i in range(batch)]
        prompts = [smollm2.prompt_ids("chat", text, tokenizer, template) for text in texts]
        for chain in CHAINS:
            times = step_times_ms(model, prompts, arguments.tokens, chain)
            median = round(statistics.median(times), 2)
            rows.append({"batch": batch, "chain": chain, "step_ms_median": median})
            print(f"batch {batch:2}, {chain}: {median} ms", file=sys.stderr, flush=True)
    versions = {name: version(name) for name in ("mlx", "mlx-lm")}
    print(json.dumps({"versions": versions, "rows": rows}))


if __name__ == "__main__":
    main()
