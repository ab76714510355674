"""Records what llama.cpp's samplers make of the rows.

    python3 -m venv VENV
    CMAKE_ARGS=-DGGML_NATIVE=OFF VENV/bin/pip install llama-cpp-python==0.3.36 numpy
    VENV/bin/python tests/side_by_side/record_llama_cpp.py

No model is loaded; only dry's sequence breakers need token texts, which come
from a vocabulary made here. Banned tokens are not among the candidates, as in
libllama after a grammar or a backend sampler: `typical` makes NaN of them, and
dynamic temperature counts them. See README.md.
"""

import ctypes
import struct
import tempfile
from importlib.metadata import version
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np

import differences
import exact
import rows
from fixture import Fixture

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
BREAKERS = ["\n", ":", '"', "*"]
SEED = 7
# Kept here: libllama calls it for as long as it lives.
SILENT = llama.llama_log_callback(lambda *_: None)


class Candidates:
    """The tokens of a row, those that are banned among them or not."""

    def __init__(self, logits: np.ndarray, banned=False):
        ids = np.flatnonzero(np.isfinite(logits) | banned)
        self.width = len(logits)
        self.buffer = np.zeros(len(ids), CANDIDATE)
        self.buffer["id"], self.buffer["logit"] = ids, logits[ids]
        data = self.buffer.ctypes.data_as(llama.llama_token_data_p)
        self.array = llama.llama_token_data_array(data, len(ids), -1, False)

    def left(self) -> np.ndarray:
        size = self.array.size * CANDIDATE.itemsize
        memory = ctypes.string_at(ctypes.cast(self.array.data, ctypes.c_void_p), size)
        return np.frombuffer(memory, CANDIDATE)

    def logits(self) -> np.ndarray:
        row = np.full(self.width, -np.inf, np.float32)
        left = self.left()
        row[left["id"]] = left["logit"]
        return row

    def without_underflow(self) -> "Candidates":
        """Without those whose probability is 0 in f32."""
        row = self.logits()
        return Candidates(np.where(np.exp(row - row.max(), dtype=np.float32) > 0, row, -np.inf))

    def apply(self, sampler) -> "Candidates":
        llama.llama_sampler_apply(sampler, ctypes.byref(self.array))
        return self


def applied(candidates: Candidates, sampler) -> Candidates:
    """Applies a sampler and frees it."""
    candidates.apply(sampler)
    llama.llama_sampler_free(sampler)
    return candidates


def tokens(row, width):
    prompt, generated = rows.history(row, width)
    return prompt + generated


def accepting(sampler, history):
    for token in history:
        llama.llama_sampler_accept(sampler, token)
    return sampler


def f64(row, width):
    return rows.logits(row, width).astype(np.float64)


def truncation(fixture, name, width, params, make, margins, prepare=lambda c: c):
    """`make(params)`: a sampler; `margins(logits, params)`: by `exact`."""

    def run(row, p):
        given = rows.logits(row, width)
        left = applied(prepare(Candidates(given)), make(p)).logits()
        finite = np.isfinite(left)
        assert (left[finite] == given[finite]).all(), "a kept logit changed"
        return left

    def check(row, p):
        margin = margins(f64(row, width), p)
        return exact.cut(f64(row, width), margin, p.get("min_keep", 1)), margin

    fixture.op(name, width, params, False, run, check)


def changes(fixture, name, width, params, make, change):
    """`make(params, history)`: a sampler; `change(logits, params, history)`."""

    def run(row, p):
        return applied(Candidates(rows.logits(row, width)), make(p, tokens(row, width))).logits()

    def check(row, p):
        return change(f64(row, width), p, tokens(row, width)), np.full(width, np.inf)

    fixture.op(name, width, params, True, run, check)


def bias_sampler(pairs, width):
    array = (llama.llama_logit_bias * len(pairs))(*pairs)
    return llama.llama_sampler_init_logit_bias(width, len(pairs), array)


def penalties_sampler(p, history, width):
    sampler = llama.llama_sampler_init_penalties(
        width, p["last_n"], p["repetition_penalty"], p["frequency_penalty"], p["presence_penalty"]
    )
    return accepting(sampler, history)


def exact_penalties(row, p, history):
    seen = exact.window(history, p["last_n"])
    return exact.penalties(
        row, seen, p["repetition_penalty"], seen, p["presence_penalty"], p["frequency_penalty"]
    )


class Dry:
    """Samplers over a vocabulary in which each 16th token is a breaker."""

    def __init__(self, width):
        self.vocabulary = vocabulary(width)
        self.base = {}

    def sampler(self, p, history):
        names = ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_range")
        values = tuple(p[name] for name in names)
        if values not in self.base:
            breakers = (ctypes.c_char_p * 4)(*(b.encode() for b in BREAKERS))
            self.base[values] = llama.llama_sampler_init_dry(self.vocabulary, *values, breakers, 4)
        return accepting(llama.llama_sampler_clone(self.base[values]), history)


def breaks(token: int) -> bool:
    return token % 16 == 3


def exact_dry(row, p, history):
    return exact.dry(
        row, exact.window(history, p["dry_range"]), p["dry_multiplier"], p["dry_base"],
        p["dry_allowed_length"], breaks,
    )  # fmt: skip


def vocabulary(width):
    """A llama_vocab of texts `t0`, `t1`, `t2`, `t3` and a breaker, …"""
    texts = [f"t{i}" + (BREAKERS[i // 16 % 4] if breaks(i) else "") for i in range(width)]

    def string(text):
        return struct.pack("<Q", len(text.encode())) + text.encode()

    def array(kind, packed):
        return struct.pack("<IIQ", 9, kind, width) + packed

    fields = {
        "general.architecture": struct.pack("<I", 8) + string("llama"),
        "tokenizer.ggml.model": struct.pack("<I", 8) + string("llama"),
        "tokenizer.ggml.tokens": array(8, b"".join(map(string, texts))),
        "tokenizer.ggml.scores": array(6, struct.pack(f"<{width}f", *[0.0] * width)),
        "tokenizer.ggml.token_type": array(5, struct.pack(f"<{width}i", *[1] * width)),
    }
    packed = b"".join(string(name) + value for name, value in fields.items())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields)) + packed)
        params = llama.llama_model_default_params()
        params.vocab_only = True
        model = llama.llama_model_load_from_file(str(path).encode(), params)
    assert model, "the vocabulary was refused"
    return llama.llama_model_get_vocab(model)


def mirostat(fixture, width, params):
    """The second of two steps on the same row."""

    def run(row, p):
        sampler = llama.llama_sampler_init_mirostat_v2(SEED, p["mirostat_tau"], p["mirostat_eta"])
        first = Candidates(rows.logits(row, width)).apply(sampler)
        token = int(first.left()["id"][first.array.selected])
        return applied(Candidates(rows.logits(row, width)), sampler).logits(), token

    def check(row, p, token):
        logits, tau = f64(row, width), p["mirostat_tau"]
        left = exact.cut(logits, 2 * tau - exact.surprise(logits))
        mu = 2 * tau - p["mirostat_eta"] * (exact.surprise(left)[token] - tau)
        margin = mu - exact.surprise(logits)
        return exact.cut(logits, margin), margin

    fixture.op("mirostat", width, params, False, run, check, drawn=True)


def adaptive_p(fixture, width, params):
    """The second of two steps on the same row: what is drawn from."""

    def run(row, p):
        sampler = llama.llama_sampler_init_adaptive_p(
            p["adaptive_target"], p["adaptive_decay"], SEED
        )
        first = Candidates(rows.logits(row, width)).apply(sampler)
        token = int(first.left()["id"][first.array.selected])
        llama.llama_sampler_accept(sampler, token)
        return applied(Candidates(rows.logits(row, width)), sampler).logits(), token

    def check(row, p, token):
        target, decay = p["adaptive_target"], p["adaptive_decay"]
        probability = exact.softmax(f64(row, width))
        s = probability[token] + decay * target / (1 - decay)
        w = 1 + decay / (1 - decay)
        d = np.abs(probability - np.clip(2 * target - s / w, 0, 1)) / 0.3
        changed = 5 - 10 * d * d / (1 + d)
        return np.where(np.isfinite(f64(row, width)), changed, -np.inf), np.full(width, np.inf)

    fixture.op("adaptive_p", width, params, True, run, check, drawn=True)


def whole_chain(fixture, width, dry, params):
    """llama.cpp's default order."""

    def run(row, p):
        history = tokens(row, width)
        best = rows.ids_by_rank(row, width)
        left = Candidates(rows.logits(row, width))
        applied(left, bias_sampler([(int(best[rank]), b) for rank, b in p["bias"]], width))
        applied(left, penalties_sampler(p, history, width))
        applied(left, dry.sampler(p, history))
        applied(left, llama.llama_sampler_init_top_n_sigma(p["top_n_sigma"]))
        applied(left, llama.llama_sampler_init_top_k(p["top_k"]))
        left = left.without_underflow()
        applied(left, llama.llama_sampler_init_typical(p["typical_p"], 1))
        applied(left, llama.llama_sampler_init_top_p(p["top_p"], 1))
        applied(left, llama.llama_sampler_init_min_p(p["min_p"], 1))
        applied(left, llama.llama_sampler_init_xtc(1.0, p["xtc_threshold"], 1, SEED))
        return applied(left, llama.llama_sampler_init_temp(p["temperature"])).logits()

    def check(row, p):
        left, history = f64(row, width), tokens(row, width)
        for rank, b in p["bias"]:
            left[rows.ids_by_rank(row, width)[rank]] += b
        left = exact_dry(exact_penalties(left, p, history), p, history)
        nearest = np.full(width, np.inf)
        for stage, field in (
            (exact.top_n_sigma, "top_n_sigma"), (exact.top_k, "top_k"), (exact.typical, "typical_p"),
            (exact.top_p, "top_p"), (exact.min_p, "min_p"), (exact.xtc, "xtc_threshold"),
        ):  # fmt: skip
            margin = stage(left, p[field])
            left = exact.cut(left, margin)
            nearest = np.minimum(nearest, np.abs(margin))
        return left / p["temperature"], nearest

    fixture.op("chain", width, params, True, run, check)


def dicts(names, *choices):
    return [dict(zip(names.split(), values)) for values in choices]


def record_width(fixture, width):
    truncation(
        fixture, "top_k", width, dicts("top_k", (1,), (5,), (40,), (97,), (200,)),
        lambda p: llama.llama_sampler_init_top_k(p["top_k"]),
        lambda l, p: exact.top_k(l, p["top_k"]),
    )  # fmt: skip
    truncation(
        fixture, "top_p", width,
        dicts("top_p min_keep", (0.1, 1), (0.5, 1), (0.9, 4), (0.95, 1), (0.999, 1)),
        lambda p: llama.llama_sampler_init_top_p(p["top_p"], p["min_keep"]),
        lambda l, p: exact.top_p(l, p["top_p"]),
    )  # fmt: skip
    truncation(
        fixture, "min_p", width,
        dicts("min_p min_keep", (0.02, 1), (0.05, 1), (0.5, 4), (0.001, 1), (1.0, 1)),
        lambda p: llama.llama_sampler_init_min_p(p["min_p"], p["min_keep"]),
        lambda l, p: exact.min_p(l, p["min_p"]),
    )  # fmt: skip
    truncation(
        fixture, "typical", width, dicts("typical_p", (0.2,), (0.5,), (0.9,), (0.95,)),
        lambda p: llama.llama_sampler_init_typical(p["typical_p"], 1),
        lambda l, p: exact.typical(l, p["typical_p"]),
        Candidates.without_underflow,
    )  # fmt: skip
    truncation(
        fixture, "top_n_sigma", width, dicts("top_n_sigma", (1.0,), (0.3,), (2.0,), (3.5,)),
        lambda p: llama.llama_sampler_init_top_n_sigma(p["top_n_sigma"]),
        lambda l, p: exact.top_n_sigma(l, p["top_n_sigma"]),
    )  # fmt: skip
    truncation(
        fixture, "xtc", width, dicts("xtc_threshold", (0.1,), (0.01,), (0.05,), (0.2,), (0.5,)),
        lambda p: llama.llama_sampler_init_xtc(1.0, p["xtc_threshold"], 1, SEED),
        lambda l, p: exact.xtc(l, p["xtc_threshold"]),
    )  # fmt: skip
    changes(
        fixture, "temperature", width, dicts("temperature", (0.1,), (0.7,), (1.3,), (5.0,)),
        lambda p, _: llama.llama_sampler_init_temp(p["temperature"]),
        lambda l, p, _: l / p["temperature"],
    )  # fmt: skip
    changes(
        fixture, "dynamic_temperature", width,
        dicts("temperature dynatemp_range dynatemp_exponent", (1.0, 0.5, 1.0), (0.8, 0.5, 0.3), (1.5, 1.0, 2.0)),
        lambda p, _: llama.llama_sampler_init_temp_ext(*p.values()),
        lambda l, p, _: exact.dynamic_temperature(l, *p.values()),
    )  # fmt: skip
    changes(
        fixture, "penalties", width,
        dicts("last_n repetition_penalty frequency_penalty presence_penalty",
              (64, 1.1, 0.0, 0.0), (64, 1.0, 0.3, 0.7), (9, 1.3, 1.2, -0.4), (1000, 0.8, -0.6, 1.1)),
        lambda p, history: penalties_sampler(p, history, width),
        exact_penalties,
    )  # fmt: skip
    dry = Dry(width)
    names = "dry_multiplier dry_base dry_allowed_length dry_range"
    changes(
        fixture, "dry", width,
        dicts(names, (0.8, 1.75, 2, 1000), (0.5, 1.2, 1, 64), (1.1, 2.5, 4, 1000), (2.0, 1.0, 3, 30), (0.1, 10.0, 2, 1000)),
        dry.sampler,
        exact_dry,
    )  # fmt: skip
    mirostat(fixture, width, dicts("mirostat_tau mirostat_eta", (5.0, 0.1), (2.0, 0.4), (0.5, 1.0)))
    adaptive_p(fixture, width, dicts("adaptive_target adaptive_decay", (0.5, 0.9), (0.2, 0.0), (0.8, 0.99)))
    whole = (
        f"bias last_n repetition_penalty frequency_penalty presence_penalty {names} "
        "top_n_sigma top_k typical_p top_p min_p xtc_threshold temperature"
    )
    bias = [[0, -3.25], [4, 2.5], [30, 1.0]]
    whole_chain(
        fixture, width, dry,
        dicts(whole,
              (bias, 64, 1.1, 0.3, 0.7, 0.8, 1.75, 2, 1000, 2.0, 40, 0.97, 0.95, 0.05, 0.1, 0.8),
              ([], 20, 1.0, 1.1, 0.0, 0.5, 1.3, 1, 64, 5.0, 90, 0.8, 0.9, 0.001, 0.02, 1.3),
              (bias, 64, 1.3, 0.0, 0.0, 1.1, 2.5, 3, 1000, 0.9, 7, 0.99, 0.99, 0.01, 0.3, 0.5)),
    )  # fmt: skip


def record_differences():
    def sampler(make):
        return lambda entry, logits: applied(Candidates(logits, True), make(entry)).logits()

    context = lambda entry: entry.get("prompt", []) + entry.get("generated", [])
    dry = Dry(6)
    differences.record(
        "llama.cpp",
        {
            "top_k": sampler(lambda e: llama.llama_sampler_init_top_k(e["params"]["top_k"])),
            "xtc": sampler(
                lambda e: llama.llama_sampler_init_xtc(1.0, e["params"]["xtc_threshold"], 1, SEED)
            ),
            "temperature": sampler(lambda e: llama.llama_sampler_init_temp(e["params"]["temperature"])),
            "typical": sampler(lambda e: llama.llama_sampler_init_typical(e["params"]["typical_p"], 1)),
            "dynamic_temperature": sampler(lambda e: llama.llama_sampler_init_temp_ext(1.0, 0.5, 1.0)),
            "penalties": sampler(lambda e: penalties_sampler(e["params"], context(e), len(e["logits"]))),
            "dry": sampler(lambda e: dry.sampler(e["params"], context(e))),
        },
    )  # fmt: skip


def main():
    llama.llama_log_set(SILENT, None)
    record_differences()
    fixture = Fixture("llama.cpp", {"llama-cpp-python": version("llama-cpp-python")})
    for width in rows.WIDTHS:
        record_width(fixture, width)
    fixture.write()


if __name__ == "__main__":
    main()
