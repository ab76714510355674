"""Sluice beside mlx-lm and llama.cpp on this machine, as Markdown.

    cargo build --release && cargo build --release -p sluice --example native_chain
    python3 bench/compare.py --mlx-python VENV/bin/python --openblas LIBRARY \\
        --f32-model FOLDER --llama-python VENV/bin/python

What is not named is left out, and the table says so:

--mlx-python    an environment with the packages of tests/parity/requirements.txt
--openblas      a libopenblas.so.0 to preload, such as Debian's of the package
                libopenblas0-pthread: mlx-lm's wheel brings a reference BLAS, so
                this is the fair opponent on a CPU. Libraries that it needs have
                to be found, by LD_LIBRARY_PATH if need be
--f32-model     the folder that bench/f32_folder.py writes: Sluice with its weights
                in f32, and `mlx_lm.server`
--llama-python  an environment with the package llama-cpp-python
--as-installed  also mlx-lm with the BLAS of its wheel, some ten times as slow

The arms run in turn, round after round; ratios are taken within a round where
both arms ran in it. Figures are medians. Run it on a quiet machine: a quarter of
an hour on two processors, less with fewer rounds.
"""

import argparse
import datetime
import json
import os
import platform
import sys
import time
from pathlib import Path

import measures
import rows
from measures import BATCHES, CLIENTS, Figures
from programs import REPOSITORY, Programs


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    release = REPOSITORY / "target" / "release"
    parser.add_argument("--sluice", type=existing, default=release / "sluice")
    parser.add_argument("--native", type=Path, default=release / "examples" / "native_chain")
    parser.add_argument("--mlx-python", type=existing)
    parser.add_argument("--openblas", type=existing)
    parser.add_argument("--llama-python", type=existing)
    parser.add_argument("--f32-model", type=existing)
    parser.add_argument("--gguf", type=existing, default=default_gguf(), help="the default model")
    parser.add_argument("--as-installed", action="store_true")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24, help="steps of each case")
    parser.add_argument("--out", type=Path, help="file to write; standard output otherwise")
    parser.add_argument("--json", type=Path, help="file for all figures of all rounds")
    return parser.parse_args()


def existing(path: str) -> Path:
    """Not resolved: an environment's Python is a link whose own place counts."""
    absolute = Path(path).absolute()
    if not absolute.exists():
        raise argparse.ArgumentTypeError(f"there is no {path}")
    return absolute


def default_gguf() -> Path | None:
    """The default model where `sluice` keeps it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return next((cache / "sluice" / "models").glob("*.gguf"), None)


def beside_others(programs: Programs, figures: Figures, options: argparse.Namespace) -> None:
    """Decode steps and a long prompt, the arms in turn."""
    for n in range(options.rounds):
        print(f"round {n + 1} of {options.rounds}", file=sys.stderr, flush=True)
        measures.decode(programs, figures, options.tokens, options.as_installed)
        measures.llama(programs, figures, options.gguf)
        measures.prefill(programs, figures)


# What `--parts` names, in the order in which it runs.
PARTS = {
    "others": beside_others,
    "chains": lambda p, f, o: measures.chains(p, f, o.rounds, o.tokens),
    "history": lambda p, f, o: measures.history(p, f, min(o.rounds, 3), o.tokens),
    "memory": lambda p, f, o: measures.memory(p, f, o.rounds, o.gguf),
    "instances": lambda p, f, o: measures.instances(p, f),
    "http": lambda p, f, o: measures.http(p, f, o.rounds),
}


def left_out(programs: Programs) -> list[str]:
    """What is not in the comparison, and why."""
    named = {
        "mlx-lm": (programs.mlx_python, "--mlx-python is not given"),
        "OpenBLAS for mlx-lm": (programs.openblas, "--openblas is not given"),
        "llama.cpp": (programs.llama_python, "--llama-python is not given"),
        "weights in f32 and `mlx_lm.server`": (programs.f32_model, "--f32-model is not given"),
        "the native chain": (programs.native, "the example `native_chain` is not built"),
    }
    missing = [f"{what} ({why})" for what, (path, why) in named.items() if path is None]
    return [f"Left out: {'; '.join(missing)}.", ""] if missing else []


def steps(figures: Figures) -> list[str]:
    """Milliseconds per step of all arms of the rounds."""
    arms = {
        "plain": "mlx-lm as installed, f32",
        "mlx": "mlx-lm with OpenBLAS, f32",
        "f32": "Sluice, weights in f32",
        "sluice": "Sluice, weights as in the file",
    }
    lines = [
        "| ms per step; in brackets the part in which the engine waited for chains | "
        + " | ".join(f"B = {batch}" for batch in BATCHES) + " |",
        "|---|" + "---|" * len(BATCHES),
    ]
    for arm, name in arms.items():
        for chain in ("none", "greedy", "default"):
            if figures.median(f"{arm} {chain} 1") is None:
                continue
            cells = []
            for batch in BATCHES:
                step = figures.median(f"{arm} {chain} {batch}")
                share = figures.median(f"{arm} {chain} {batch} share")
                cells.append(f"{step:.1f}" + ("" if share is None else f" ({100 * share:.2f} %)"))
            lines.append(f"| {name}: {chain} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def other_figures(figures: Figures) -> list[str]:
    """Figures behind the ratios."""
    def shown(name: str, digits: int = 2) -> str:
        value = figures.median(name)
        return "–" if value is None else f"{value:.{digits}f}"

    lines = [
        "| clients | Sluice: tokens/s | first token, ms | next token, ms | `mlx_lm.server`: tokens/s |",
        "|---|---|---|---|---|",
    ]
    for n in CLIENTS:
        own = [shown(f"sluice clients {n}{end}", 0) for end in ("", " first ms", " next ms")]
        lines.append(f"| {n} | " + " | ".join([*own, shown(f"mlx clients {n}", 0)]) + " |")
    parts = [
        f"The chain in a step at B = 1, 8, 16: "
        + ", ".join(shown(f"default by none {batch} µs", 0) for batch in BATCHES)
        + " µs; after 200 and 6,000 tokens: "
        + ", ".join(shown(f"chain_us {n}", 0) for n in measures.HISTORIES)
        + " µs.",
        f"A plain read of memory gives {shown('read GB/s', 1)} GB/s; steps of one row read "
        f"{shown('f32 GB/s', 1)} GB/s of weights in f32, {shown('sluice GB/s', 1)} of those in the "
        "file, whose numbers have to be unpacked.",
        f"Prompt of {measures.LONG_PROMPT:,}: {shown('mlx prompt s', 1)} s with mlx-lm. Second turn of a "
        f"chat: {shown('turn s')} s, without the cache {shown('turn s, no cache')} s. Copied text: "
        f"{shown('copy', 0)} tokens/s, without drafts {shown('copy, no drafts', 0)}. llama.cpp: "
        f"{shown('llama greedy 1', 1)} ms per step.",
    ]
    return [*lines, "", *parts, ""]


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def heading(options: argparse.Namespace, figures: Figures, elapsed_s: float) -> list[str]:
    """What was measured: date, machine and versions."""
    versions = [f"sluice {measures.commit()}"]
    versions += [f"{name} {version}" for name, version in sorted(figures.versions.items())]
    if options.openblas:
        versions.append(options.openblas.resolve().name)
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return [
        f"## Beside mlx-lm, {datetime.date.today()}",
        "",
        f"{processor()}, {os.cpu_count()} processors, {platform.system()} {platform.release()}; "
        f"{', '.join(versions)}; SmolLM2-135M-Instruct; {options.rounds} rounds, medians; "
        f"{elapsed_s / 60:.0f} minutes, load at the end {load}.",
        "",
    ]


def report(options, programs: Programs, figures: Figures, elapsed_s: float) -> str:
    lines = heading(options, figures, elapsed_s) + left_out(programs)
    lines += ["| # | ratio | figure | must | aim | reached |", "|---|---|---|---|---|---|"]
    lines += [row.line(figures) for row in rows.table()]
    lines += ["", *steps(figures), *other_figures(figures), "Commands:", ""]
    lines += [f"    {command}" for command in programs.commands]
    return "\n".join(lines) + "\n"


def main() -> None:
    chosen = options()
    programs = Programs(
        sluice=chosen.sluice,
        native=chosen.native if chosen.native.exists() else None,
        mlx_python=chosen.mlx_python,
        openblas=chosen.openblas,
        llama_python=chosen.llama_python,
        f32_model=chosen.f32_model,
    )
    start = time.monotonic()
    figures = Figures()
    for part in chosen.parts:
        PARTS[part](programs, figures, chosen)
    text = report(chosen, programs, figures, time.monotonic() - start)
    if chosen.json:
        chosen.json.write_text(json.dumps(figures.values, indent=1))
    if chosen.out:
        chosen.out.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
