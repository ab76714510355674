#!/usr/bin/env python3
"""Writes the first kept inputs of each check: small, and each of another kind.

    python3 fuzz/make_inputs.py

Findings are kept beside them, by hand, in files whose names say what was wrong.
"""

import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).parent
INPUTS = ROOT / "inputs"


def keep(check, name, content):
    folder = INPUTS / check
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


# --- model files: one layer, eight wide, eight tokens


def tensors(layer, embedding, norm):
    """Names and shapes, outermost first."""
    yield embedding, [8, 8]
    yield norm, [8]
    for name in layer[:2]:
        yield name, [8]
    for name in layer[2:]:
        yield name, [8, 8]


HUGGING_FACE = tensors(
    [f"model.layers.0.{part}.weight" for part in (
        "input_layernorm", "post_attention_layernorm",
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    )],
    "model.embed_tokens.weight", "model.norm.weight",
)
GGUF = tensors(
    [f"blk.0.{part}.weight" for part in (
        "attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "attn_output",
        "ffn_gate", "ffn_up", "ffn_down",
    )],
    "token_embd.weight", "output_norm.weight",
)


def count(shape):
    n = 1
    for length in shape:
        n *= length
    return n


def safetensors(shapes, dtype="F32", width=4):
    header, end = {"__metadata__": {"format": "mlx"}}, 0
    for name, shape in shapes:
        n_bytes = count(shape) * width
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + n_bytes]}
        end += n_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    data = b"\0\x3c" * (end // 2)
    return struct.pack("<Q", len(text)) + text + data


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


class Array(list):
    """A list with the type of its elements."""

    def __init__(self, kind, items):
        super().__init__(items)
        self.kind = kind


FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}


def value(kind, content):
    if kind == 8:
        return text(content)
    if kind == 9:
        items = b"".join(value(content.kind, item) for item in content)
        return struct.pack("<IQ", content.kind, len(content)) + items
    return struct.pack(FORMATS[kind], content)


def gguf(metadata, shapes, encoding=0, block=(1, 4), version=3):
    """`block`: elements and bytes."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(shapes), len(metadata))
    for key, (kind, content) in metadata.items():
        out += text(key) + struct.pack("<I", kind) + value(kind, content)
    data = b""
    for name, shape in shapes:
        own = (0, (1, 4)) if len(shape) == 1 else (encoding, block)
        out += text(name) + struct.pack("<I", len(shape))
        out += b"".join(struct.pack("<Q", length) for length in reversed(shape))
        out += struct.pack("<IQ", own[0], len(data))
        n_bytes = count(shape) // own[1][0] * own[1][1]
        data += b"\x11\x3c" * (n_bytes // 2)
        data += b"\0" * (-len(data) % 32)
    return out + b"\0" * (-len(out) % 32) + data


TOKENS = ["<s>", "</s>", "a", "b", "\u0120", "ab", "c", "d"]


def llama(**more):
    metadata = {
        "general.architecture": (8, "llama"),
        "general.alignment": (4, 32),
        "llama.block_count": (4, 1),
        "llama.context_length": (4, 64),
        "llama.embedding_length": (4, 8),
        "llama.feed_forward_length": (4, 8),
        "llama.attention.head_count": (4, 1),
        "llama.attention.head_count_kv": (4, 1),
        "llama.attention.layer_norm_rms_epsilon": (6, 1e-5),
        "llama.rope.freq_base": (6, 10000.0),
        "llama.rope.dimension_count": (4, 8),
        "tokenizer.ggml.model": (8, "gpt2"),
        "tokenizer.ggml.pre": (8, "llama-bpe"),
        "tokenizer.ggml.tokens": (9, Array(8, TOKENS)),
        "tokenizer.ggml.token_type": (9, Array(5, [3, 3, 1, 1, 1, 1, 1, 1])),
        "tokenizer.ggml.merges": (9, Array(8, ["a b"])),
        "tokenizer.ggml.bos_token_id": (4, 0),
        "tokenizer.ggml.eos_token_id": (4, 1),
        "tokenizer.chat_template": (8, "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"),
    }
    metadata.update(more)
    return metadata


def model_files():
    shapes = list(HUGGING_FACE)
    keep("safetensors", "f32", safetensors(shapes))
    keep("safetensors", "f16", safetensors(shapes, "F16", 2))
    keep("safetensors", "empty", safetensors([]))
    keep("safetensors", "scalar", safetensors([("a", []), ("b", [0, 3])]))
    shapes = list(GGUF)
    keep("gguf", "f32", gguf(llama(), shapes))
    keep("gguf", "version_2", gguf(llama(), shapes, version=2))
    keep("gguf", "f16", gguf(llama(), shapes, 1, (1, 2)))
    wide = [(name, [shape[0], 32] if len(shape) == 2 else shape) for name, shape in shapes]
    keep("gguf", "q8_0", gguf(llama(), wide, 8, (32, 34)))
    kinds = {
        f"kind.{kind}": (kind, content)
        for kind, content in enumerate([1, -1, 2, -2, 3, -3, 0.5, 1, "x", Array(12, [1.0]), 4, -4, 0.25])
    }
    keep("gguf", "all_types", gguf(kinds, []))
    spelled = ["<unk>", "<s>", "</s>", "<0x0A>", "\u2581", "a", "\u2581a", "b"]
    keep("gguf", "sentencepiece", gguf(llama(**{
        "tokenizer.ggml.model": (8, "llama"),
        "tokenizer.ggml.tokens": (9, Array(8, spelled)),
        "tokenizer.ggml.scores": (9, Array(6, [0, 0, 0, 0, -1, -2, -1.5, -3])),
        "tokenizer.ggml.token_type": (9, Array(5, [2, 3, 3, 6, 1, 1, 1, 1])),
        "tokenizer.ggml.unknown_token_id": (4, 0),
        "tokenizer.ggml.add_space_prefix": (7, 0),
    }), shapes))


# --- what clients send


TOOL = {"type": "function", "function": {
    "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}

COMPLETIONS = [
    {"prompt": "ab", "max_tokens": 4},
    {"prompt": [0, 20, 21], "max_tokens": 3, "temperature": 0, "logprobs": 2, "echo": True},
    {"prompt": ["a", "b"], "n": 1, "max_tokens": 3, "stop": ["a", "bc"], "seed": -1},
    {"prompt": "a", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 5},
    {"prompt": "a", "max_tokens": 6, "temperature": 0.7, "top_p": 0.9, "top_k": 8, "min_p": 0.01,
     "typical_p": 0.9, "top_n_sigma": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.1},
    {"prompt": "abab", "max_tokens": 6, "repetition_penalty": 1.2, "presence_penalty": 0.5,
     "frequency_penalty": -0.5, "repetition_context_size": 4, "no_repeat_ngram_size": 2},
    {"prompt": "abcabc", "max_tokens": 6, "dry_multiplier": 0.8, "dry_base": 1.75,
     "dry_allowed_length": 2, "dry_range": 10, "dry_sequence_breakers": ["a", "\n"]},
    {"prompt": "a", "max_tokens": 6, "mirostat": 2, "mirostat_tau": 5, "mirostat_eta": 0.1},
    {"prompt": "a", "max_tokens": 6, "adaptive_target": 0.5, "adaptive_decay": 0.9},
    {"prompt": "a", "max_tokens": 6, "dynatemp_range": 0.5, "dynatemp_exponent": 1,
     "epsilon_cutoff": 0.01, "eta_cutoff": 0.01, "top_a": 0.1, "smoothing_factor": 0.3,
     "smoothing_curve": 1, "min_keep": 2, "order": ["top_k", "temperature"]},
    {"prompt": "a", "max_tokens": 6, "min_tokens": 2, "stop_token_ids": [30], "ignore_eos": True,
     "logit_bias": {"20": 5, "21": -100}, "bad_words": ["a b"], "allowed_token_ids": [20, 21, 22]},
    {"prompt": "a", "guided_regex": "[ab]{1,5}", "max_tokens": 8},
    {"prompt": "a", "guided_choice": ["yes", "no"]},
    {"prompt": "a", "guided_grammar": "start: \"a\" start \"b\" | \"c\"", "max_tokens": 8},
    {"prompt": "a", "guided_json": {"type": "object", "properties": {"a": {"type": "integer"}},
                                    "required": ["a"]}, "max_tokens": 24},
    {"prompt": "a", "processors": [{"plugin": "penalties", "params": {"presence_penalty": 1},
                                    "on_fault": "skip"}], "explain": True, "max_tokens": 2},
    {"prompt": "a", "chain": [{"plugin": "rules", "params": {}}, {"plugin": "sampler@0.1.0",
                                                                  "params": {"top_k": 1}}]},
    {"prompt": "a", "dialect": "vllm", "logprobs_mode": "processed", "logprobs": 1, "max_tokens": 2},
    {"prompt": "a", "dialect": "llama.cpp", "n_predict": 2, "repeat_penalty": 1.1, "samplers": ["top_k"]},
    {"prompt": "a", "user": "u", "metadata": {"a": 1}, "best_of": 1, "suffix": None, "n": 2},
]
CHATS = [
    {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3},
    {"messages": [{"role": "developer", "content": [{"type": "text", "text": "b"}]},
                  {"role": "user", "content": "\u00e9\U0001f600"}], "max_completion_tokens": 3,
     "logprobs": True, "top_logprobs": 2, "stream": True},
    {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL], "tool_choice": "auto",
     "parallel_tool_calls": False, "max_tokens": 12},
    {"messages": [{"role": "user", "content": "a"},
                  {"role": "assistant", "content": None, "tool_calls": [
                      {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
                  {"role": "tool", "tool_call_id": "1", "content": "2"}], "max_tokens": 2},
    {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_schema",
        "json_schema": {"name": "n", "strict": True, "schema": {"type": "array", "items": {
            "type": "boolean"}}}}, "max_tokens": 12},
    {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"suffix": "x"},
     "model": "scripted", "modalities": ["text"], "max_tokens": 2},
]


def requests():
    for endpoint, bodies in ((b"\0", COMPLETIONS), (b"\1", CHATS)):
        for index, body in enumerate(bodies):
            name = ("completion", "chat")[endpoint[0]]
            keep("request", f"{name}_{index:02}", endpoint + json.dumps(body).encode())


def chats():
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": [1, 2.5, None]}}}]
    messages = [
        {"role": "system", "content": " be \n"},
        {"role": "user", "content": "<b> & \u00e9 \U0001f600"},
        {"role": "assistant", "content": "<think>x</think>\n\ny"},
        {"role": "user", "content": "z", "name": "n"},
    ]
    called = [messages[1], {"role": "assistant", "content": "", "tool_calls": calls},
              {"role": "tool", "content": "1"}]
    keep("chat_template", "messages", json.dumps(messages))
    keep("chat_template", "calls", json.dumps(
        {"messages": called, "tools": [TOOL], "extra": {"enable_thinking": False, "date_format": "%Y"}}))
    for name, source in {
        "filters": "{{ messages | length }}{{ (messages | first).content | trim | upper | replace('a', 'b') }}"
                   "{{ messages | map(attribute='role') | join(', ') }}{{ 'x' | tojson(indent=4) }}"
                   "{{ messages | tojson(separators=(',', ':'), sort_keys=true) }}",
        "loops": "{% for m in messages recursive %}{{ loop.index }}{{ loop.cycle('a', 'b') }}"
                 "{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}",
        "blocks": "{% macro f(x, y=1) -%}{{ x }}{{ y }}{%- endmacro %}{{ f('a') }}{% generation %}"
                  "{% set x %}text{% endset %}{{ x }}{% endgeneration %}{% raw %}{{ }}{% endraw %}",
        "methods": "{% set s = messages[0].content %}{{ s.strip() }}{{ s.split(' ')[-1] }}{{ s[::-1] }}"
                   "{{ s.startswith('a') }}{{ messages[0].items() | list }}{{ messages[0].get('x', 1) }}"
                   "{{ '%s %d' | format(s, 1) }}{{ s.title() }}{{ s * 2 }}{{ 7 // 2 ** 2 }}",
        "raise": "{% if not messages %}{{ raise_exception('none') }}{% endif %}{{ strftime_now('%d %b %Y') }}",
        "long": "{% for i in range(60) %}{% for j in range(60) %}{{ i }}{% endfor %}{% endfor %}",
    }.items():
        keep("chat_template", name, source + "\0" + json.dumps(messages))


# --- grammars and schemas


def grammars():
    path = bytes(range(1, 40, 3))
    schemas = {
        "object": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", 1, None]}},
                   "required": ["a"], "additionalProperties": False},
        "array": {"type": "array", "items": {"type": "number", "minimum": -1, "maximum": 3.5},
                  "minItems": 1, "maxItems": 3},
        "string": {"type": "string", "pattern": "^[a-c]+$", "minLength": 1, "maxLength": 9},
        "format": {"anyOf": [{"type": "string", "format": "date"}, {"const": {"a": [1]}}]},
        "reference": {"$defs": {"t": {"type": "object", "properties": {"n": {"$ref": "#/$defs/t"}}}},
                      "$ref": "#/$defs/t"},
        "choice": {"oneOf": [{"type": "boolean"}, {"type": "integer", "multipleOf": 3}],
                   "title": "t", "$schema": "https://json-schema.org/draft/2020-12/schema"},
        "patterns": {"type": "object", "patternProperties": {"^x": {"type": "null"}}, "minProperties": 1,
                     "additionalProperties": {"type": "string"}},
        "all": {"allOf": [{"type": "object", "properties": {"a": True}}, {"required": ["a"]}]},
        "tuple": {"prefixItems": [{"type": "string"}, {"type": "null"}], "items": False},
    }
    for name, schema in schemas.items():
        keep("grammar", f"json_{name}", b"\0" + json.dumps(schema).encode() + b"\0" + path)
    for name, regex in {
        "classes": r"[a-z\d]{2,5}(\.\w+)?", "alternatives": "^(a|ab|abc)*$", "unicode": r"\p{L}+\u00e9?",
        "repeat": "(ab{3,}c?){1,40}", "case": "(?i)yes|no", "complement": "[^a-z\"]+",
    }.items():
        keep("grammar", f"regex_{name}", b"\1" + regex.encode() + b"\0" + path)
    keep("grammar", "choice", b"\2" + "yes\nno\nn\u00e9e\n(a)*".encode() + b"\0" + path)
    for name, lark in {
        "nested": 'start: "a" start "b" | "c"',
        "terminals": 'start: item ("," item)*\nitem: NAME | NUMBER\nNAME: /[a-z]+/\nNUMBER: /[0-9]+/ | "-" NUMBER',
        "options": 'start: a? b* c+ d~2..4\na: "a"i\nb: "b"\nc: /c/\nd: "d" | "e"\n%ignore / +/',
        "left": 'start: start "+" start | "1" | "(" start ")"',
    }.items():
        keep("grammar", f"lark_{name}", b"\3" + lark.encode() + b"\0" + path)


def params():
    for name, (schema, value) in {
        "types": ({"type": "object", "properties": {"a": {"type": "number", "minimum": 0}},
                   "additionalProperties": False}, {"a": -1}),
        "references": ({"properties": {"w": {"items": {"$ref": "#/$defs/w"}}},
                        "$defs": {"w": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}}},
                       {"w": ["a", "B"]}),
        "choices": ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "not": {"required": ["c"]},
                     "if": {"required": ["a"]}, "then": {"minProperties": 2}}, {"a": 1, "b": 2}),
        "arrays": ({"properties": {"l": {"prefixItems": [{"const": 1}], "contains": {"enum": [2, None]},
                                         "uniqueItems": True, "unevaluatedItems": False}}}, {"l": [1, 2, 2]}),
        "names": ({"propertyNames": {"pattern": "^x"}, "patternProperties": {"^x~/": {"multipleOf": 0.1}},
                   "dependentRequired": {"xa": ["xb"]}}, {"x~/": 0.25, "xa": 1}),
    }.items():
        keep("params_schema", name, json.dumps(schema) + "\0" + json.dumps(value))


def texts():
    keep("detokenizer", "stops", bytes([2, 2]) + b"ab" + bytes([1]) + b"c" + bytes([0, 3, 2]) + b"xa"
         + bytes([1]) + b"b" + bytes([2]) + b"\xf0\x9f" + bytes([2]) + b"\x98\x80" + bytes([0, 1, 2, 3, 0, 0, 4]))
    keep("detokenizer", "broken", bytes([0, 2, 4, 3]) + b"\xe3\x81\x82" + bytes([1]) + b"\xe3" + bytes([2])
         + b"\x81\xf0" + bytes([1]) + b"a" + bytes([0]) + bytes(range(12)))
    keep("detokenizer", "replacement", bytes([1, 3]) + b"\xef\xbf\xbd" + bytes([2, 1, 1]) + b"\xff"
         + bytes([1]) + b"\xc3" + bytes([1, 0, 0, 1, 0]))
    calls = '<tool_call>\n{"name": "f", "arguments": {"a": "}</tool_call>"}}\n</tool_call>'
    llama_calls = '{"name": "f", "parameters": {"a": [1, "\\"}"]}}; {"name": "g", "parameters": {}}'
    for parallel in range(2):
        keep("tool_calls", f"hermes_{parallel}", bytes([0, parallel, 0]) + f"so: {calls} {calls}".encode())
        keep("tool_calls", f"llama_{parallel}", bytes([1, parallel, 2]) + llama_calls.encode())
    keep("tool_calls", "cut", bytes([0, 1, 6]) + b'\n<tool_call>{"name": "f", "arguments": {"a": 1')
    # Each of them could end the call: looking at all of them again and again takes for ever.
    keep("tool_calls", "many_ends", bytes([0, 1, 0]) + b'<tool_call>{"name": "' + b"</tool_call>" * 200)
    keep("tool_calls", "no_call", bytes([0, 1, 1]) + b"a <tool_call> b </tool_call> <tool_c")


def leb128(n):
    out = b""
    while True:
        out += bytes([n & 0x7F | (0x80 if n > 0x7F else 0)])
        n >>= 7
        if not n:
            return out


def read_leb128(binary, at):
    n, shift = 0, 0
    while True:
        byte = binary[at]
        n |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return n, at


def sections(binary):
    at = 8
    while at < len(binary):
        kind = binary[at]
        size, start = read_leb128(binary, at + 1)
        at = start + size
        yield kind, binary[start:at]


def written(header, parts):
    return header + b"".join(bytes([kind]) + leb128(len(content)) + content for kind, content in parts)


CUSTOM, CODE, DATA_COUNT, DATA = 0, 10, 12, 11
CORE_MODULE = 1
MODULE, COMPONENT = b"\0asm\x01\0\0\0", b"\0asm\x0d\0\x01\0"


def without_code(component):
    """The same interfaces, and functions that all do nothing but trap."""
    def empty(module):
        for kind, content in sections(module):
            if kind == CODE:
                n, _ = read_leb128(content, 0)
                yield kind, leb128(n) + b"\x03\0\0\x0b" * n
            elif kind not in (CUSTOM, DATA, DATA_COUNT):
                yield kind, content

    def parts():
        for kind, content in sections(component):
            if kind == CORE_MODULE:
                yield kind, written(content[:8], empty(content))
            elif kind != CUSTOM:
                yield kind, content

    return written(COMPONENT, parts())


def components():
    keep("component", "module", MODULE)
    keep("component", "component", COMPONENT)
    keep("component", "text", "(component)")
    keep("component", "custom_section", written(COMPONENT, [(CUSTOM, leb128(4) + b"name" + b"\0\x02\x01x")]))
    for name in ("force-sampler", "boost", "recorder", "wasi"):
        whole = (ROOT / f"../tests/guests/dist/{name}.wasm").read_bytes()
        keep("component", name, without_code(whole))
    keep("component", "truncated", whole[:600])


if __name__ == "__main__":
    for write in (model_files, requests, chats, grammars, params, texts, components):
        write()
