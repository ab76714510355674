"""From figures to Markdown: what was measured, what it must reach, and the rest."""

import argparse
import datetime
import os
import platform
from pathlib import Path

import measures
import rows
from measures import BATCHES, CLIENTS, Figures
from programs import Programs


def left_out(programs: Programs, figures: Figures) -> list[str]:
    """What is not in the comparison, and why."""
    named = {
        "mlx-lm": (programs.mlx_python, "--mlx-python is not given"),
        "OpenBLAS for mlx-lm": (programs.openblas, "--openblas is not given"),
        "llama.cpp": (programs.llama_python, "--llama-python is not given"),
        "weights in f32 and `mlx_lm.server`": (programs.f32_model, "--f32-model is not given"),
        "the native chain": (programs.native, "the example `native_chain` is not built"),
    }
    missing = [f"{what} ({why})" for what, (path, why) in named.items() if path is None]
    missing += [f"part `{part}`, which failed ({why})" for part, why in figures.failed.items()]
    return [f"Left out: {'; '.join(missing)}.", ""] if missing else []


def steps(figures: Figures, parts: list[str]) -> list[str]:
    """Milliseconds per step of all arms, if that was measured."""
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
    return [*lines, ""] if "others" in parts else []


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
    sentences = [
        "The chain in a step at B = 1, 8, 16: "
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
    return [*lines, "", *sentences, ""]


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


def text(
    options: argparse.Namespace, programs: Programs, figures: Figures, elapsed_s: float
) -> str:
    """All of it."""
    lines = heading(options, figures, elapsed_s) + left_out(programs, figures)
    lines += ["| # | ratio | figure | must | aim | reached |", "|---|---|---|---|---|---|"]
    lines += [row.line(figures) for row in rows.table()]
    lines += ["", *steps(figures, options.parts), *other_figures(figures), "Commands:", ""]
    lines += [f"    {command}" for command in programs.commands]
    return "\n".join(lines) + "\n"
