"""What is measured: each function asks programs and keeps figures by name."""

import statistics
import subprocess
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import clients
from programs import BENCH, REPOSITORY, Failed, Programs

BATCHES = (1, 8, 16)
# Of the decode rounds with mlx-lm, which reads prompts slowly.
SHORT_PROMPT = 16
LONG_PROMPT = 1500
HISTORIES = (200, 6000)
PARTS = ("default", "dry", "mirostat", "xtc", "min-p", "typical", "no-repeat", "bad-words")
CLIENTS = (1, 8, 16, 64)
# Tokens of each request of the clients: as many as make little of its prompt, which
# takes as long as six steps where sixteen come at once.
CLIENT_TOKENS = 512
CLIENT_WORDS = 8
UPLOADED = ("adaptive-p", REPOSITORY / "plugins" / "dist" / "adaptive-p.wasm")


@dataclass
class Figures:
    """Figures by name, one value a round."""

    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    versions: dict[str, str] = field(default_factory=dict)
    # Why parts have no figures.
    failed: dict[str, str] = field(default_factory=dict)

    def median(self, name: str) -> float | None:
        values = self.values.get(name)
        return statistics.median(values) if values else None

    def ratio(self, above: str, below: str) -> float | None:
        """The median over the rounds of one figure by another of the same round."""
        pairs = zip(self.values.get(above, ()), self.values.get(below, ()))
        ratios = [a / b for a, b in pairs]
        return statistics.median(ratios) if ratios else None


def decode(programs: Programs, figures: Figures, tokens: int, as_installed: bool) -> None:
    """One round of decode steps of mlx-lm and of Sluice."""
    sizes = ["--batch", ",".join(map(str, BATCHES)), "--prompt-tokens", SHORT_PROMPT]
    mlx = [*sizes, "--chain", "greedy,default"]
    if programs.mlx_python and programs.openblas:
        # Its first steps are left out.
        keep(figures, "mlx", programs.mlx("mlxlm_decode.py", *mlx, "--tokens", 12, blas=True))
    if programs.mlx_python and as_installed:
        keep(figures, "plain", programs.mlx("mlxlm_decode.py", *mlx, "--tokens", 6, blas=False))
    sluice = [*sizes, "--rounds", 1, "--tokens", tokens]
    keep(figures, "sluice", programs.bench(*sluice))
    if programs.f32_model:
        model = ["--model", programs.f32_model]
        keep(figures, "f32", programs.bench(*sluice, "--chain", "greedy,default", *model))


def keep(figures: Figures, arm: str, answer: dict) -> None:
    figures.versions |= answer.get("versions", {})
    for row in answer["rows"]:
        name = f"{arm} {row['chain']} {row['batch']}"
        figures.values[name].append(row["step_ms_median"])
        if "chain_share" in row:
            figures.values[f"{name} share"].append(row["chain_share"])


def prefill(programs: Programs, figures: Figures) -> None:
    """One round of a long prompt with mlx-lm and with Sluice."""
    if programs.mlx_python and programs.openblas:
        answer = programs.mlx("mlxlm_prefill.py", "--prompt-tokens", LONG_PROMPT, blas=True)
        figures.values["mlx prompt s"] += answer["first_token_s"]
    arguments = ["--prefill", LONG_PROMPT, "--rounds", 1, "--chain", "greedy"]
    for arm, model in of_models(programs):
        row = programs.bench(*arguments, *model)["rows"][0]
        figures.values[f"{arm} prompt s"].append(row["first_token_s"]["median"])


def of_models(programs: Programs) -> list[tuple[str, list]]:
    """Sluice with the weights as they are in the file and, if there, in f32."""
    f32 = [("f32", ["--model", programs.f32_model])] if programs.f32_model else []
    return [("sluice", []), *f32]


def chains(programs: Programs, figures: Figures, rounds: int, tokens: int) -> None:
    """What the chain adds to a step; ratios are of steps in the same round. They
    are of a few percent, which this machine may change from second to second: so
    the rounds are short and many."""
    sizes = ["--rounds", rounds * 6, "--tokens", max(tokens // 2, 1)]
    sizes += ["--prompt-tokens", SHORT_PROMPT]
    answer = programs.bench(*sizes, "--chain", "none,tokens,greedy,default")
    keep_waits(figures, "none", answer)
    for row in answer["rows"]:
        if row["by_none"]:
            name = f"{row['chain']} by none {row['batch']}"
            figures.values[name] = [row["by_none"]["median"]]
            figures.values[f"{name} share"] = [row["chain_share"]]
            figures.values[f"{name} µs"] = [row["chain_us"]]
    arms = ",".join(["mixed", *PARTS, "grammar"])
    keep_ratios(figures, programs.bench(*sizes, "--batch", 8, "--chain", arms))
    if programs.native:
        arguments = [*sizes, "--chain", "default"]
        answer = programs.bench(*arguments, program=programs.native)
        keep_waits(figures, "native", answer)
        keep_ratios(figures, answer)


def keep_waits(figures: Figures, below: str, answer: dict) -> None:
    """By how much more of a step the engine waits for a chain than for `below`, of a
    step of that. Unlike steps, waits hardly change with the machine; what chains take
    of the forward pass, beside which they plan, is not in them."""
    rows = {(row["chain"], row["batch"]): row for row in answer["rows"]}
    for (chain, batch), row in rows.items():
        base = rows[below, batch]
        added = (row["chain_us"] - base["chain_us"]) / (1e3 * base["step_ms_median"])
        figures.values[f"{chain} waits over {below} {batch}"] = [added]


def keep_ratios(figures: Figures, answer: dict) -> None:
    for ratio in answer["ratios"]:
        figures.values[f"{ratio['chain']} by others {ratio['batch']}"] = [ratio["median"]]


def history(programs: Programs, figures: Figures, rounds: int, tokens: int) -> None:
    """The chain after short and long prompts."""
    prompts = ",".join(map(str, HISTORIES))
    sizes = ["--batch", 1, "--prompt-tokens", prompts, "--rounds", rounds, "--tokens", tokens]
    for row in programs.bench(*sizes, "--chain", "default")["rows"]:
        for figure in ("chain_share", "chain_us"):
            figures.values[f"{figure} {row['prompt_tokens']}"] = [row[figure]]


def memory(programs: Programs, figures: Figures, rounds: int, gguf: Path | None) -> None:
    """Weights read in a step of one row by what a plain read of as much gives."""
    files = {"sluice": gguf, "f32": programs.f32_model and programs.f32_model / "model.safetensors"}
    for arm, model in of_models(programs):
        if not files[arm]:
            continue
        n_bytes = files[arm].stat().st_size
        sizes = ["--batch", 1, "--chain", "none", "--rounds", rounds, "--tokens", 24]
        answer = programs.bench(*sizes, "--read-mib", n_bytes >> 20, *model)
        read = answer["read_gb_per_second"]["median"]
        weights = n_bytes / 1e6 / answer["rows"][0]["step_ms_median"]
        figures.values[f"{arm} GB/s"] = [weights]
        figures.values["read GB/s"] = [read]
        figures.values[f"{arm} of read"] = [weights / read]


def http(programs: Programs, figures: Figures, rounds: int) -> None:
    """Servers under the same clients, and what Sluice's own features give."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def serving(name: str, *arguments: object) -> str:
            return stack.enter_context(programs.serving(*arguments, data=folder / name))

        default = serving("default")
        turns(figures, default, serving("no-cache", "--prefix-cache-mib", 0), rounds)
        no_drafts = serving("no-drafts", "--draft-rows", 0)
        copies(figures, default, no_drafts, rounds)
        uploads(figures, default, rounds)
        alone = ["--batch", 16, "--chain", "greedy", "--tokens", CLIENT_TOKENS, "--rounds", 1]
        for _ in range(rounds):
            row = programs.bench(*alone, "--prompt-tokens", SHORT_PROMPT)["rows"][0]
            figures.values["bench tokens/s 16"].append(row["tokens_per_second"])
            keep_load(figures, "sluice", load(programs, no_drafts, (16,)))
        others = tuple(n for n in CLIENTS if n != 16)
        keep_load(figures, "sluice", load(programs, no_drafts, others))
    if programs.mlx_python and programs.openblas and programs.f32_model:
        with programs.mlx_serving() as url:
            keep_load(figures, "mlx", load(programs, url, (1, 16)))


def load(programs: Programs, url: str, concurrency: tuple[int, ...]) -> dict:
    sizes = ["--concurrency", ",".join(map(str, concurrency)), "--rounds", 1]
    sizes += ["--prompt-tokens", CLIENT_WORDS, "--tokens", CLIENT_TOKENS]
    return programs.bench("--serve", url, *sizes, "--chain", "greedy")


def keep_load(figures: Figures, arm: str, answer: dict) -> None:
    for row in answer["rows"]:
        name = f"{arm} clients {row['concurrency']}"
        figures.values[name].append(row["tokens_per_second"])
        figures.values[f"{name} first ms"].append(row["first_token_ms"]["p50"])
        figures.values[f"{name} next ms"].append(row["next_token_ms"]["p50"])


def turns(figures: Figures, cached: str, uncached: str, rounds: int) -> None:
    for number in range(rounds):
        figures.values["turn s"].append(clients.second_turn_s(cached, number))
        figures.values["turn s, no cache"].append(clients.second_turn_s(uncached, number))


def copies(figures: Figures, drafts: str, none: str, rounds: int) -> None:
    texts = {clients.copying(url)[1] for url in (drafts, none)}
    if len(texts) != 1:
        raise Failed(f"drafts change the text: {texts}")
    for _ in range(rounds):
        figures.values["copy"].append(clients.copying(drafts)[0])
        figures.values["copy, no drafts"].append(clients.copying(none)[0])


def uploads(figures: Figures, url: str, rounds: int) -> None:
    name, path = UPLOADED
    for number in range(rounds):
        component = clients.unseen(path.read_bytes(), name.encode(), number)
        figures.values["first use s"].append(clients.first_use_s(url, component))


def instances(programs: Programs, figures: Figures) -> None:
    answer = programs.bench("--open", 2000, "--chain", "sampler,default")
    for row in answer["rows"]:
        figures.values[f"instance {row['chain']} µs"] = [row["instance_us_p99"]]


def llama(programs: Programs, figures: Figures, gguf: Path | None) -> None:
    """One round of llama.cpp."""
    if programs.llama_python and gguf:
        script = BENCH / "llamacpp_decode.py"
        answer = programs.run([programs.llama_python, script, gguf, "--threads", 2])
        figures.versions |= answer["versions"]
        figures.values["llama greedy 1"].append(answer["step_ms_median"])


def commit() -> str:
    git = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    return subprocess.run(git, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
