"""Makes gguf_blocks.json: blocks of GGUF's encodings, and their values.

To run it again: pip install gguf==0.19.0, then python make_gguf_blocks.py.

The bytes are random but for the half floats that scale a block, which are kept
between 2^-7 and 1 or so: any of them is a block.
"""

import json
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

OUT = Path(__file__).parent / "gguf_blocks.json"
# Where the blocks of each encoding have half floats.
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
FLOATS = {"F32": np.float32, "F16": np.float16, "BF16": np.float32}


def main() -> None:
    random = np.random.default_rng(7)
    cases = {}
    for name, halves in HALVES.items():
        kind = GGMLQuantizationType[name]
        n_bytes = GGML_QUANT_SIZES[kind][1]
        blocks = random.integers(0, 256, (2, n_bytes), dtype=np.uint8)
        for at in halves:
            scales = random.uniform(2**-7, 1, (2, 1)).astype(np.float16) * random.choice([-1, 1])
            blocks[:, at : at + 2] = scales.astype(np.float16).view(np.uint8)
        values = dequantize(blocks, kind).reshape(-1)
        cases[name] = {"blocks": blocks.reshape(-1).tolist(), "values": values.tolist()}
    for name, kind in FLOATS.items():
        values = random.normal(size=8).astype(kind)
        blocks = values.view(np.uint8)
        if name == "BF16":
            blocks = blocks.reshape(-1, 4)[:, 2:].reshape(-1)
            values = dequantize(blocks, GGMLQuantizationType.BF16)
        cases[name] = {"blocks": blocks.tolist(), "values": values.astype(np.float32).tolist()}
    OUT.write_text(json.dumps(cases, separators=(",", ":")) + "\n")
    print(f"wrote {OUT}, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
