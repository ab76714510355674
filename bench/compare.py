"""Step times of sluice and of mlx-lm on this machine, as a Markdown table.

    cargo build --release
    VENV/bin/python bench/compare.py --openblas /path/to/libopenblas.so.0

VENV is the environment that tests/parity/make_fixture.py describes. Debian has
OpenBLAS as `libopenblas0-pthread`; it is the fair opponent on a CPU, since
mlx-lm's wheel brings a reference BLAS. Without --openblas that arm is left out.

The arms run in turn, round after round, so that a busy minute hurts them all.
Each figure is the median over the rounds of the medians over the steps. Run it
on a quiet machine.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
OPENBLAS_ARM = "mlx-lm, OpenBLAS"
# Sluice's chains, and those of mlx-lm that do the same.
SAME_CHAIN = {"none": "greedy", "greedy": "greedy", "default": "default"}
# These pin a kernel and a cache size that may be wrong for this machine.
OPENBLAS_TUNING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


@dataclass
class Arm:
    name: str
    command: list[str]
    environment: dict[str, str]


def arms(options: argparse.Namespace) -> list[Arm]:
    plain = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    sizes = ["--batch", options.batch, "--tokens", str(options.tokens)]
    mlxlm = [sys.executable, str(REPOSITORY / "bench" / "mlxlm_decode.py"), *sizes]
    result = [Arm("mlx-lm", mlxlm, plain)]
    if options.openblas:
        tuned = {key: value for key, value in plain.items() if key not in OPENBLAS_TUNING}
        preload = {"LD_PRELOAD": str(options.openblas.resolve(strict=True))}
        result.append(Arm(OPENBLAS_ARM, mlxlm, tuned | preload))
    sluice = [str(options.sluice.resolve(strict=True)), "bench", "--json", "--rounds", "1", *sizes]
    result.append(Arm("sluice", sluice, plain))
    return result


def run(arm: Arm) -> list[dict]:
    """The rows that one run of an arm prints on its last line."""
    done = subprocess.run(arm.command, env=arm.environment, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{arm.name}: exit code {done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])["rows"]


def measure(arms: list[Arm], n_rounds: int) -> dict[tuple[str, str, int], dict[str, float]]:
    """Medians over the rounds by arm, chain and batch size."""
    figures = defaultdict(lambda: defaultdict(list))
    for n in range(n_rounds):
        for arm in arms:
            print(f"round {n + 1} of {n_rounds}: {arm.name}", file=sys.stderr, flush=True)
            for row in run(arm):
                key = (arm.name, row["chain"], row["batch"])
                for figure in ("step_ms_median", "chain_share"):
                    if row.get(figure) is not None:
                        figures[key][figure].append(row[figure])
    return {
        key: {figure: statistics.median(values) for figure, values in of.items()}
        for key, of in figures.items()
    }


def table(medians: dict, openblas: bool) -> list[str]:
    """One line per arm and chain, one column per batch size. Sluice's lines
    carry their ratio to the same chain of mlx-lm's fastest arm that was run."""
    opponent = OPENBLAS_ARM if openblas else "mlx-lm"
    batches = sorted({batch for _, _, batch in medians})
    lines = [
        "| ms per step | " + " | ".join(f"B = {batch}" for batch in batches) + " |",
        "|---|" + "---|" * len(batches),
    ]
    for arm, chain in dict.fromkeys((arm, chain) for arm, chain, _ in medians):
        cells = []
        for batch in batches:
            figures = medians[arm, chain, batch]
            cell = f"{figures['step_ms_median']:.1f}"
            if arm == "sluice":
                theirs = medians[opponent, SAME_CHAIN[chain], batch]["step_ms_median"]
                cell += f" ({figures['step_ms_median'] / theirs:.2f})"
            if "chain_share" in figures:
                cell += f", chain {100 * figures['chain_share']:.2f} %"
            cells.append(cell)
        lines.append(f"| {arm}: {chain} | " + " | ".join(cells) + " |")
    return [*lines, "", f"In brackets: the ratio to \"{opponent}\" with the same chain."]


def processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def heading(options: argparse.Namespace) -> list[str]:
    """What was measured: date, machine and versions."""
    git = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    blas = f", {options.openblas.resolve().name}" if options.openblas else ""
    return [
        f"{datetime.date.today()}, {processor_name()}, {os.cpu_count()} processors, "
        f"{platform.system()} {platform.release()}; sluice {commit}, "
        f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')}{blas}; SmolLM2-135M-Instruct in f32; "
        f"medians of {options.rounds} rounds of {options.tokens} tokens.",
        "",
    ]


def main() -> None:
    options = argparse.ArgumentParser(description="Compares sluice with mlx-lm.")
    options.add_argument("--sluice", type=Path, default=REPOSITORY / "target" / "release" / "sluice")
    options.add_argument("--openblas", type=Path, help="a libopenblas.so.0 to preload")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--batch", default="1,8,16", help="batch sizes, comma-separated")
    options.add_argument("--tokens", type=int, default=64, help="steps of each case")
    options.add_argument("--out", type=Path, help="file to write; standard output otherwise")
    options = options.parse_args()

    medians = measure(arms(options), options.rounds)
    text = "\n".join(heading(options) + table(medians, options.openblas is not None)) + "\n"
    if options.out:
        options.out.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
