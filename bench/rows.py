"""What must be seen: the rows of the table, each with what it must reach."""

from collections.abc import Callable
from dataclasses import dataclass

from measures import BATCHES, HISTORIES, PARTS, Figures

Value = float | None


@dataclass(frozen=True)
class Row:
    number: str
    what: str
    figures: Callable[[Figures], list[Value]]
    must: tuple[float, ...]
    aim: tuple[float, ...]
    # Whether more is better, for each figure.
    more: tuple[bool, ...]
    digits: int = 2

    def line(self, figures: Figures) -> str:
        found = self.figures(figures)
        cells = [self.number, self.what, self.shown(found)]
        cells += [self.limits(self.must), self.limits(self.aim), self.verdict(found)]
        return "| " + " | ".join(cells) + " |"

    def shown(self, values: list[Value]) -> str:
        return ", ".join("–" if v is None else f"{v:.{self.digits}f}" for v in values)

    def limits(self, limits: tuple[float, ...]) -> str:
        signs = ("≥" if more else "≤" for more in self.more)
        return ", ".join(f"{sign} {limit:g}" for sign, limit in zip(signs, limits))

    def verdict(self, values: list[Value]) -> str:
        if None in values:
            return "not measured"
        if self.reaches(values, self.aim):
            return "aim"
        return "must" if self.reaches(values, self.must) else "**no**"

    def reaches(self, values: list[float], limits: tuple[float, ...]) -> bool:
        triples = zip(values, limits, self.more, strict=True)
        return all(v >= limit if more else v <= limit for v, limit, more in triples)


def each(figure: Callable[[Figures, int], Value]) -> Callable[[Figures], list[Value]]:
    """A figure at each batch size."""
    return lambda figures: [figure(figures, batch) for batch in BATCHES]


def faster(arm: str, chain: str) -> Callable[[Figures], list[Value]]:
    """Tokens per second by those of mlx-lm with OpenBLAS."""
    return each(lambda f, b: f.ratio(f"mlx {chain} {b}", f"{arm} {chain} {b}"))


def quotient(above: Value, below: Value) -> Value:
    return None if above is None or below is None else above / below


def of_clients(figures: Figures) -> list[Value]:
    ours = "sluice clients 16"
    by_mlx = quotient(figures.median(ours), figures.median("mlx clients 16"))
    return [figures.ratio(ours, "bench tokens/s 16"), by_mlx]


def prompts(arm: str) -> Callable[[Figures], list[Value]]:
    return lambda f: [
        f.ratio("mlx prompt s", f"{arm} prompt s"),
        f.median(f"{arm} prompt s"),
    ]


def longer_history(figures: Figures) -> list[Value]:
    short, long = (figures.median(f"chain_share {n}") for n in HISTORIES)
    return [quotient(long, short)]


def one(name: str) -> Callable[[Figures], list[Value]]:
    return lambda figures: [figures.median(name)]


def waits(
    number: str, what: str, chain: str, below: str, must: tuple[float, ...], aim: tuple[float, ...]
) -> Row:
    """What a chain adds to a step, by how long the engine waits for it."""
    base = {"none": "without chain", "native": "for the same logic native"}[below]
    return Row(
        number,
        f"the same by waits: of a step, how much longer for {what} than {base}, {SIZES}",
        each(lambda f, b: f.median(f"{chain} waits over {below} {b}")),
        must, aim, (DOWN,) * 3, 4,
    )


UP, DOWN = True, False
A1 = "mlx-lm with OpenBLAS"
SIZES = "B = 1, 8, 16"


def table() -> list[Row]:
    rows = []
    for arm, weights in (("f32", "weights in f32"), ("sluice", "weights as in the file")):
        rows += [
            Row("1", f"tokens/s greedy ÷ {A1}, {SIZES}; {weights}", faster(arm, "greedy"),
                (2.9, 2.8, 2.5), (3.5, 3.5, 3.2), (UP,) * 3),
            Row("2", f"tokens/s with the default chain ÷ {A1}, {SIZES}; {weights}",
                faster(arm, "default"), (3.0, 4.0, 4.5), (4.0, 5.0, 5.5), (UP,) * 3),
        ]
    rows += [
        Row("3", f"step with token processors only ÷ without chain, {SIZES}",
            each(lambda f, b: f.median(f"tokens by none {b}")),
            (1.01,) * 3, (1.003,) * 3, (DOWN,) * 3, 3),
        waits("3", "token processors only", "tokens", "none", (0.01,) * 3, (0.003,) * 3),
        Row("4", f"step with the whole default chain ÷ without chain, {SIZES}",
            each(lambda f, b: f.median(f"default by none {b}")),
            (1.02,) * 3, (1.01,) * 3, (DOWN,) * 3, 3),
        waits("4", "the whole default chain", "default", "none", (0.02,) * 3, (0.01,) * 3),
        Row("5", f"{len(PARTS)} different chains in a batch of 8 ÷ the mean of each alone",
            one("mixed by others 8"), (1.03,), (1.01,), (DOWN,), 3),
        Row("6", f"default chain as Wasm ÷ the same logic native, {SIZES}",
            each(lambda f, b: f.median(f"default by others {b}")),
            (1.02,) * 3, (1.005,) * 3, (DOWN,) * 3, 3),
        waits("6", "the default chain", "default", "native", (0.02,) * 3, (0.005,) * 3),
        Row("7", "chain's share of a step at {1:,} tokens of history ÷ at {0:,}".format(*HISTORIES),
            longer_history, (1.1,), (1.0,), (DOWN,)),
        Row("8", "step with a JSON Schema on all rows ÷ without, B = 8",
            one("grammar by others 8"), (1.05,), (1.02,), (DOWN,), 3),
        Row("9", "weights read per second at B = 1 ÷ a plain read; f32",
            one("f32 of read"), (0.6,), (0.85,), (UP,)),
        Row("10", f"prompt of 1,500: tokens/s ÷ {A1}; s to the first token; weights in f32",
            prompts("f32"), (1.2, 2.5), (2.0, 1.2), (UP, DOWN)),
        Row("10", f"prompt of 1,500: tokens/s ÷ {A1}; s to the first token; weights as in the file",
            prompts("sluice"), (1.2, 2.5), (2.0, 1.2), (UP, DOWN)),
        Row("11", "HTTP, 16 clients: tokens/s ÷ `sluice bench`; ÷ `mlx_lm.server` with OpenBLAS",
            of_clients, (0.95, 4.0), (0.99, 6.0), (UP, UP)),
        Row("12", "second turn of a chat of 2,000 tokens: TTFT with prefix cache ÷ without",
            lambda f: [f.ratio("turn s", "turn s, no cache")], (0.15,), (0.05,), (DOWN,), 3),
        Row("13", "copied text: tokens/s with drafts ÷ without",
            lambda f: [f.ratio("copy", "copy, no drafts")], (1.5,), (2.5,), (UP,)),
        Row("14", "weights as in the file, B = 1: tokens/s ÷ llama.cpp",
            lambda f: [f.ratio("llama greedy 1", "sluice greedy 1")], (0.6,), (1.0,), (UP,)),
        Row("", "upload of 200 kB to first use, s", one("first use s"), (0.5,), (0.5,), (DOWN,)),
        Row("", "new instance, 99th percentile, µs", one("instance sampler µs"),
            (100,), (100,), (DOWN,), 0),
    ]
    return rows
