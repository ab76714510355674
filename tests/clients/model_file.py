"""The default model's GGUF, and what of it the tests need: the same model with
another chat template, and its tokenizer as a Hugging Face folder."""

import struct
from pathlib import Path

# Shows tools, and asks for calls, as Hermes' and Qwen's templates do.
TOOLS_TEMPLATE = """\
{%- if tools %}<|im_start|>system
You can call functions:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
Call one by writing <tool_call>{"name": ..., "arguments": {...}}</tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
CONTROL_TOKEN = 3
ALIGNMENT = 32


class Gguf:
    """The header of a GGUF of version 3: its metadata, and where each stands."""

    def __init__(self, path: Path):
        self.bytes = path.read_bytes()
        assert self.bytes[:4] == b"GGUF" and self.bytes[4:8] == struct.pack("<I", 3), path
        self.at = 8
        n_tensors, n_entries = self.scalar("Q"), self.scalar("Q")
        self.values, self.spans = {}, {}
        for _ in range(n_entries):
            name, kind, start = self.string(), self.scalar("I"), self.at
            self.values[name] = self.value(kind)
            self.spans[name] = (start, self.at)
        for _ in range(n_tensors):
            self.string()
            n_dimensions = self.scalar("I")
            self.at += 8 * n_dimensions + 4 + 8  # shape, type, offset
        self.header_end = self.at

    def scalar(self, code: str):
        (value,) = struct.unpack_from("<" + code, self.bytes, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        self.at += length
        return self.bytes[self.at - length : self.at].decode()

    def value(self, kind: int):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            of, length = self.scalar("I"), self.scalar("Q")
            return [self.value(of) for _ in range(length)]
        return self.scalar(SCALARS[kind])

    def with_template(self, template: str) -> bytes:
        """The whole file with another chat template."""
        start, end = self.spans["tokenizer.chat_template"]
        text = template.encode()
        text = struct.pack("<Q", len(text)) + text
        header = self.bytes[:start] + text + self.bytes[end : self.header_end]
        data = self.bytes[aligned(self.header_end) :]
        return header.ljust(aligned(len(header)), b"\0") + data

    def save_tokenizer(self, folder: Path) -> None:
        """Writes `tokenizer.json` and its config. The id before a text is 0."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        tokens = self.values["tokenizer.ggml.tokens"]
        kinds = self.values["tokenizer.ggml.token_type"]
        merges = [tuple(merge.split(" ")) for merge in self.values["tokenizer.ggml.merges"]]
        vocabulary = {token: index for index, token in enumerate(tokens)}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
        tokenizer.decoder = decoders.ByteLevel()
        control = [token for token, kind in zip(tokens, kinds) if kind == CONTROL_TOKEN]
        tokenizer.add_special_tokens(
            [AddedToken(token, special=True, normalized=False) for token in control]
        )
        eos = tokens[self.values["tokenizer.ggml.eos_token_id"]]
        fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, bos_token=tokens[0], eos_token=eos, pad_token=eos
        )
        fast.save_pretrained(folder)


def aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT
