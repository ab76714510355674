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
import json
import os
import sys
import time
from pathlib import Path

import measures
import report
from measures import Figures
from programs import REPOSITORY, Failed, Programs


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
        try:
            PARTS[part](programs, figures, chosen)
        except (Failed, OSError) as error:
            print(f"{part}: {error}", file=sys.stderr)
            figures.failed[part] = str(error)
    text = report.text(chosen, programs, figures, time.monotonic() - start)
    if chosen.json:
        chosen.json.write_text(json.dumps(figures.values, indent=1))
    if chosen.out:
        chosen.out.write_text(text)
    else:
        print(text, end="")
    if figures.failed:
        raise SystemExit(f"not all parts were measured: {', '.join(figures.failed)}")


if __name__ == "__main__":
    main()
