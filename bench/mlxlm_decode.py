"""Time of a decode step of mlx-lm's batch generator, as JSON on the last line.

    python bench/mlxlm_decode.py [--batch 1,8,16] [--chain greedy,default] [--tokens 64]

Needs the packages of tests/parity/requirements.txt. The model is the one that
`sluice` serves by default, dequantised to f32: mlx-lm's fastest form on a CPU.
Prompts, chains and their parameters are those of `sluice bench`. A step is one
`BatchGenerator.next` with every row decoding; prefill and the first steps are
left out.
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
    return make_logits_processors(
        logit_bias={100: -1.5, 200: 0.5},
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=0.2,
    )


# What chooses the tokens: a sampler, and a maker of logits processors.
CHAINS = {
    "greedy": (make_sampler(0.0), list),
    "sampling": (sampler(), list),
    "default": (sampler(), penalties),
}


def prompt(row: int, n_tokens: int) -> list[int]:
    return [1000 + (7 * row + i) % 1500 for i in range(n_tokens)]


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
    arguments.add_argument("--chain", default=",".join(CHAINS), help="chains, comma-separated")
    arguments.add_argument("--prompt-tokens", type=int, default=64, help="tokens of each prompt")
    arguments.add_argument("--tokens", type=int, default=64, help="steps of each case")
    arguments = arguments.parse_args()
    chains = arguments.chain.split(",")
    if unknown := set(chains) - set(CHAINS):
        raise SystemExit(f"--chain knows {', '.join(CHAINS)}, not {', '.join(unknown)}")
    if arguments.tokens <= N_WARM_UP:
        raise SystemExit(f"--tokens must be greater than {N_WARM_UP}")

    model, _, _ = smollm2.load(smollm2.fetch_gguf())
    rows = []
    for batch in map(int, arguments.batch.split(",")):
        prompts = [prompt(row, arguments.prompt_tokens) for row in range(batch)]
        for chain in chains:
            times = step_times_ms(model, prompts, arguments.tokens, chain)
            median = round(statistics.median(times), 2)
            rows.append({"batch": batch, "chain": chain, "step_ms_median": median})
            print(f"batch {batch:2}, {chain}: {median} ms", file=sys.stderr, flush=True)
    versions = {name: version(name) for name in ("mlx", "mlx-lm")}
    print(json.dumps({"versions": versions, "rows": rows}))


if __name__ == "__main__":
    main()
