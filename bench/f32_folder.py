"""Writes SmolLM2-135M-Instruct in f32 as a Hugging Face folder.

    VENV/bin/python bench/f32_folder.py FOLDER

Needs the packages of tests/parity/requirements.txt and 540 MB. The weights are
those of the GGUF that `sluice` serves by default, dequantised. Both `sluice
--model FOLDER` and `mlx_lm.server --model FOLDER` read it.
"""

import json
import sys
from pathlib import Path

import mlx.core as mx

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "parity"))
import smollm2  # noqa: E402

# The tokens that begin and end a sequence, as the GGUF's metadata has them.
BOS, EOS = "<|im_start|>", "<|im_end|>"


def halves(weight: mx.array, n_heads: int) -> mx.array:
    """Each head's rows as Hugging Face turns them: all first parts of the pairs,
    then all second ones. GGUF has the pairs side by side."""
    width = weight.shape[-1]
    pairs = weight.reshape(n_heads, -1, 2, width)
    return pairs.transpose(0, 2, 1, 3).reshape(-1, width)


def config(args) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": args.hidden_size,
        "intermediate_size": args.intermediate_size,
        "num_hidden_layers": args.num_hidden_layers,
        "num_attention_heads": args.num_attention_heads,
        "num_key_value_heads": args.num_key_value_heads,
        "rms_norm_eps": args.rms_norm_eps,
        "rope_theta": args.rope_theta,
        "max_position_embeddings": args.max_position_embeddings,
        "vocab_size": args.vocab_size,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": smollm2.END_ID,
    }


def write(folder: Path) -> None:
    gguf = str(smollm2.fetch_gguf())
    tensors, metadata = mx.load(gguf, return_metadata=True)
    args = smollm2.model_args(metadata)
    weights = smollm2.f32_weights(tensors)
    heads = {"q_proj": args.num_attention_heads, "k_proj": args.num_key_value_heads}
    for name in weights:
        projection = name.split(".")[-2]
        if projection in heads:
            weights[name] = halves(weights[name], heads[projection])
    folder.mkdir(parents=True, exist_ok=True)
    smollm2.tokenizer(metadata).save(str(folder / "tokenizer.json"))
    template = metadata["tokenizer.chat_template"]
    files = {
        "config.json": config(args),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "chat_template": template,
            "clean_up_tokenization_spaces": False,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(Path(sys.argv[1]))
