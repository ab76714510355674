"""Makes families.json: what mlx-lm computes with small models of each family.

To run it again (seconds; for the environment see make_fixture.py):

    VENV/bin/python tests/parity/make_families.py

No weights are stored. Both sides make them from the tensors' names, see
`weight`, and the tokens from `prompt`: integers only, so that they are the same
to the bit. The widths are those at which a mistake shows: heads wider than
their share of `hidden_size`, windows that slide many times within a prompt,
original lengths of rope far below a prompt's.

A case is a configuration as a folder has it, and for each of its prompts the
logits of every position at `probe_ids`, from one forward pass. Decoding token
by token with mlx-lm's own cache must agree, or nothing is written.
"""

import importlib
import json
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

OUT = Path(__file__).parent / "families.json"
PROBE_IDS = [0, 17, 31, 64, 95]
# Prompts by seed and length; the first has prompts of 1 to 300 tokens in it.
PROMPTS = [[1, 300], [2, 40], [3, 1]]
LARGEST_DIFFERENCE = 1e-4

BASE = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "eos_token_id": 5,
}
LLAMA = BASE | {"model_type": "llama", "head_dim": 16}
QWEN2 = BASE | {"model_type": "qwen2", "hidden_size": 64, "use_sliding_window": False}
QWEN3 = BASE | {"model_type": "qwen3", "head_dim": 24, "rope_theta": 1000000.0}
GEMMA3 = BASE | {
    "model_type": "gemma3_text",
    "head_dim": 32,
    "num_hidden_layers": 7,
    "num_key_value_heads": 1,
    "hidden_act": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 24,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "sliding_window": 16,
    "sliding_window_pattern": 3,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
CASES = {
    "llama": LLAMA,
    "llama, tied, rope of Llama 3": LLAMA | {"tie_word_embeddings": True, "rope_scaling": LLAMA3_ROPE},
    "qwen2": QWEN2,
    "qwen2, tied, yarn": QWEN2 | {"tie_word_embeddings": True, "rope_scaling": YARN},
    "qwen3": QWEN3,
    "qwen3, tied, one head of keys, linear rope": QWEN3
    | {"tie_word_embeddings": True, "num_key_value_heads": 1, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "gemma3_text": GEMMA3 | {"tie_word_embeddings": True},
    "gemma3_text, untied, the usual pattern, linear rope": GEMMA3
    | {"sliding_window_pattern": None, "sliding_window": 100, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
}


def mixed(state: np.ndarray) -> np.ndarray:
    """SplitMix64's output for each state."""
    with np.errstate(over="ignore"):
        z = state + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Multiples of 2^-12 in [-1/4, 1/4), by name (FNV-1a) and place. Norms that
    multiply by what is stored are around 1."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        states = np.uint64(seed) + np.arange(count, dtype=np.uint64)
    values = (mixed(states) >> np.uint64(53)).astype(np.float32) / 4096 - 0.25
    return values.reshape(shape)


def prompt(seed: int, length: int) -> list[int]:
    states = np.uint64(seed * 1000) + np.arange(length, dtype=np.uint64)
    return (mixed(states) % np.uint64(BASE["vocab_size"])).astype(int).tolist()


def model_of(config: dict):
    family = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    given = {key: value for key, value in config.items() if value is not None}
    model = family.Model(family.ModelArgs.from_dict(given))
    names = {name: tuple(value.shape) for name, value in tree_flatten(model.parameters())}
    if config["tie_word_embeddings"]:
        names.pop("lm_head.weight", None)
    plain_norms = config["model_type"] != "gemma3_text"
    weights = {}
    for name, shape in names.items():
        offset = 1.0 if plain_norms and "norm" in name else 0.0
        weights[name] = mx.array(weight(name, shape) + np.float32(offset))
    model.load_weights(list(model.sanitize(weights).items()), strict=True)
    mx.eval(model.parameters())
    return model, names


def logits_of(model, tokens: list[int]) -> np.ndarray:
    """The logits of every position, `[length, vocabulary]`."""
    whole = np.array(model(mx.array([tokens]))[0])
    cache = make_prompt_cache(model)
    for position, token in enumerate(tokens):
        row = np.array(model(mx.array([[token]]), cache=cache)[0, 0])
        difference = np.abs(row - whole[position]).max()
        if not difference < LARGEST_DIFFERENCE / 2:
            raise SystemExit(f"decoding and prefill differ by {difference} at {position}")
    return whole


def main() -> None:
    cases = []
    for name, config in CASES.items():
        model, tensors = model_of(config)
        rows = [logits_of(model, prompt(*which)) for which in PROMPTS]
        largest = max(np.abs(logits).max() for logits in rows)
        deviation = rows[0].std()
        print(f"{name}: logits up to {largest:.1f}, deviation {deviation:.2f}", flush=True)
        probes = [np.round(logits[:, PROBE_IDS].astype(np.float64), 6).tolist() for logits in rows]
        cases.append({"name": name, "config": config, "tensors": tensors, "logits": probes})
    made_with = {name: version(name) for name in ("mlx", "mlx-lm")}
    fixture = {"made_with": made_with, "probe_ids": PROBE_IDS, "prompts": PROMPTS, "cases": cases}
    OUT.write_text(json.dumps(fixture, separators=(",", ":")) + "\n")
    print(f"wrote {OUT}, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
