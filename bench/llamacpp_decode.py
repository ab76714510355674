"""Time of a decode step of llama.cpp, batch 1, as JSON on the last line.

    python bench/llamacpp_decode.py GGUF [--threads 2] [--tokens 64]

Needs the package `llama-cpp-python`. The prompt has as many tokens as those of
mlxlm_decode.py; the best token is taken.
"""

import argparse
import json
import statistics
import time
from importlib.metadata import version

from llama_cpp import Llama

PROMPT = [1000 + i for i in range(64)]
N_WARM_UP = 4


def main() -> None:
    arguments = argparse.ArgumentParser(description="Times decode steps of llama.cpp.")
    arguments.add_argument("gguf")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--tokens", type=int, default=64)
    arguments = arguments.parse_args()
    threads = {"n_threads": arguments.threads, "n_threads_batch": arguments.threads}
    model = Llama(arguments.gguf, n_ctx=1024, verbose=False, **threads)
    times, last = [], time.perf_counter()
    for _ in model.generate(PROMPT, temp=0.0, repeat_penalty=1.0):
        now = time.perf_counter()
        times.append(1000 * (now - last))
        last = now
        if len(times) == arguments.tokens + N_WARM_UP:
            break
    median = statistics.median(times[N_WARM_UP:])
    versions = {"llama-cpp-python": version("llama-cpp-python")}
    print(json.dumps({"versions": versions, "step_ms_median": median}))


if __name__ == "__main__":
    main()
