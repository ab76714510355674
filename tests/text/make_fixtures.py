"""Writes the fixtures of the text tests.

    python3 -m pip install gguf==0.19.0 jinja2==3.1.6 regex
    python3 make_fixtures.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf

Every expected value comes from here, not from the server: token ids from a
byte-level BPE written out below over the `regex` package, chat texts from
Jinja2 set up as `transformers` does it.

- cuts.json: a small vocabulary and the ids of each pre-tokenizer
- smollm2.json: ids and chats of the default model's own vocabulary
- templates.json: small templates and what Jinja2 makes of them
"""

import hashlib
import json
import pathlib
import struct
import sys
import unicodedata
from collections import Counter

import gguf
import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import regex

HERE = pathlib.Path(__file__).parent
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5

# --- byte-level BPE ---------------------------------------------------------

PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
ALPHABET = {byte: chr(byte) for byte in PRINTABLE}
for byte in range(256):
    if byte not in ALPHABET:
        ALPHABET[byte] = chr(0x100 + len(ALPHABET) - len(PRINTABLE))
BYTES = {character: byte for byte, character in ALPHABET.items()}

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
MODERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Applied one after the other, each to the pieces the one before left.
CUTS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2.removesuffix(r"|\s+"), r"\p{N}+", r"[0-9][0-9][0-9]"],
    "llama-bpe": [MODERN % r"\p{N}{1,3}"],
    "qwen2": [MODERN % r"\p{N}"],
}


def cut(text, patterns):
    pieces = [text]
    for pattern in patterns:
        finer = []
        for piece in pieces:
            at = 0
            for match in regex.finditer(pattern, piece):
                finer += [piece[at : match.start()], match.group()]
                at = match.end()
            finer.append(piece[at:])
        pieces = [piece for piece in finer if piece]
    return pieces


def spell(text):
    return "".join(ALPHABET[byte] for byte in text.encode())


class Bpe:
    def __init__(self, tokens, merges, types, pre):
        self.ids = {token: id for id, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.pre = pre
        self.added = [t for t, kind in zip(tokens, types) if kind in (CONTROL, USER_DEFINED)]

    def word(self, word):
        if self.pre == "llama-bpe" and word in self.ids:
            return [self.ids[word]]
        parts = list(word)
        while len(parts) > 1:
            pairs = [self.ranks.get(pair, len(self.ranks)) for pair in zip(parts, parts[1:])]
            best = min(pairs)
            if best == len(self.ranks):
                break
            at = pairs.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self.ids[part] for part in parts]

    def encode(self, text):
        if self.pre == "qwen2":
            text = unicodedata.normalize("NFC", text)
        return [id for piece in cut(text, CUTS[self.pre]) for id in self.word(spell(piece))]

    def encode_special(self, text):
        if not self.added:
            return self.encode(text)
        names = sorted(self.added, key=len, reverse=True)
        parts = regex.split("(" + "|".join(map(regex.escape, names)) + ")", text)
        ids = []
        for part in parts:
            ids += [self.ids[part]] if part in self.added else self.encode(part)
        return ids


TEXTS = [
    "",
    "a",
    " ",
    "hi",
    "Hello, world!",
    "The capital of France is Paris.",
    "  two leading spaces",
    "trailing spaces   ",
    "many     inner      spaces",
    "\n",
    "\n\n\nthree newlines before",
    "line one\nline two\r\nline three\r",
    "\ttabs\t\tand\tmore\t",
    "mixed \n \t whitespace \n\n end",
    "no\u00a0break \u3000ideographic\u2003em \u200bzero",
    "I'm, you're, it's, we'd, they'll, I've, DON'T, IT'S, can't",
    "'s 't quoted 'word' ''",
    "1234567890",
    "3.14159, 1,000,000 and 0x1F; 1st 2nd ½ ² ٣ 四",
    "year2024month05",
    "fn main() {\n    println!(\"{}\", 1 + 2);\n}\n",
    "def f(x):\n\treturn x**2  # square\n",
    "if (a<=b && c!=d) { e = f->g; } // ok",
    "https://example.org/path?query=1&x=%20#frag",
    "{\"key\": [1, 2.5, null], \"s\": \"\\u00e9\\n\"}",
    "<p class=\"x\">a &amp; b</p>",
    "$100 + 50% = ~150 ^ 2 | x",
    "snake_case camelCase PascalCase kebab-case SCREAMING_CASE",
    "!!! ... --- ??? ***",
    "café naïve Zürich smörgåsbord",
    "cafe\u0301 decomposed, A\u030a, \u1112\u1161\u11ab",
    "日本語のテキストと漢字。",
    "こんにちは、世界！",
    "안녕하세요 세계",
    "Привет, мир! Как дела?",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "😀 emoji 👩‍👩‍👧 family 🇫🇷 flag 👍🏽",
    "math: ∑ᵢ xᵢ² ≤ ∞, α → β",
    "zero\u0000byte and \u001b escape \u007f",
    "\ufeffbyte order mark, \ufffd replacement",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_start|><|im_start|> <|im_end|>",
    "before<|endoftext|>after",
    "almost <|im_start| > and <|im_en",
    "<think>hm</think> unmergeable unmergeableness",
]


def cases(bpe):
    return [{"text": t, "plain": bpe.encode(t), "special": bpe.encode_special(t)} for t in TEXTS]


def train(text, n_merges):
    """The most frequent pair first; of equal ones the first in order."""
    words = Counter(spell(word) for word in cut(text, [GPT2]))
    parts = {word: list(word) for word in words}
    merges = []
    for _ in range(n_merges):
        pairs = Counter()
        for word, count in words.items():
            for pair in zip(parts[word], parts[word][1:]):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for word, own in parts.items():
            at = 0
            while at + 1 < len(own):
                if (own[at], own[at + 1]) == best:
                    own[at : at + 2] = [own[at] + own[at + 1]]
                at += 1
    return [" ".join(merge) for merge in merges]


def make_cuts():
    merges = train(" ".join(TEXTS) * 2, 200)
    merged = [merge.replace(" ", "") for merge in merges]
    # Words that no merge leads to: only a vocabulary that is asked for whole
    # words first gives them.
    words = ["Ġunmergeable", "1234567890", "Ġworld"]
    tokens = [ALPHABET[byte] for byte in range(256)] + merged
    tokens += [word for word in words if word not in tokens]
    types = [1] * len(tokens)
    for name, kind in [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL),
                       ("<|endoftext|>", CONTROL), ("<think>", USER_DEFINED)]:
        tokens.append(name)
        types.append(kind)
    cuts = {pre: cases(Bpe(tokens, merges, types, pre)) for pre in CUTS}
    for pre, ids in cuts.items():
        for case in ids:
            text = unicodedata.normalize("NFC", case["text"]) if pre == "qwen2" else case["text"]
            joined = "".join(tokens[id] for id in case["plain"])
            assert bytes(BYTES[c] for c in joined) == text.encode(), (pre, text)
    return {"tokens": tokens, "merges": merges, "token_types": types, "cases": cuts}


# --- chat templates ---------------------------------------------------------


class Generation(jinja2.ext.Extension):
    """The tag that marks what a model is trained on; it changes no text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("own"), [], [], body).set_lineno(line)

    def own(self, caller):
        return caller()


class Refused(Exception):
    pass


def raise_exception(message):
    raise Refused(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent,
                      separators=separators, sort_keys=sort_keys)


def render(source, messages, tools, add_generation_prompt, extra, bos_token, eos_token):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    values = {"bos_token": bos_token, "eos_token": eos_token, **extra}
    try:
        text = environment.from_string(source).render(
            messages=messages, tools=tools, documents=None,
            add_generation_prompt=add_generation_prompt, **values)
        return {"text": text}
    except Refused as refused:
        return {"refused": str(refused)}


TEMPLATES = {
    "turns": """
{%- for message in messages %}
    {%- if loop.first and messages[0]['role'] != 'system' %}
        {{- '<|s|>system\\nBe helpful.<|e|>\\n' }}
    {%- endif %}
    {{- '<|s|>' + message['role'] + '\\n' + message['content'] | trim + '<|e|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|s|>assistant\\n' }}
{%- endif %}
""",
    "lines": """{{ bos_token }}
{% for message in messages %}
    {% if message.role == 'user' %}
[user] {{ message.content }}
    {% elif message.role == 'assistant' %}
[assistant] {{ message.content }}{{ eos_token }}
    {%+ else +%}
[other] {{ message.role | upper }}: {{ message.content | length }}
    {% endif %}
{% endfor %}
{# a comment #}
end
""",
    "alternating": """
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate: message ' ~ loop.index ~ ' is ' ~ message['role']) }}
    {%- endif %}
    {%- if loop.last and system is defined %}
        {{- '[' ~ system ~ ']' }}
    {%- endif %}
    {{- ' ' + message['content'] }}
{%- endfor %}""",
    "tools": """
{%- if tools %}
{{- 'Tools:\\n' }}
{%- for tool in tools %}
{{- tool | tojson }}
{{- '\\n' }}
{{- tool | tojson(indent=4) }}
{{- '\\n' ~ tool.function.name ~ '(' ~ tool.function.parameters.properties.keys() | join(', ') ~ ')\\n' }}
{%- for name, about in tool.function.parameters.properties.items() %}
{{- name }}: {{ about.type }}{{ ' required' if name in tool.function.parameters.required else '' }};
{%- endfor %}
{%- endfor %}
{%- endif %}
{%- for message in messages %}
{%- if message.tool_calls is defined and message.tool_calls %}
{%- for call in message.tool_calls %}
{{- '<call>' ~ {"name": call.function.name, "arguments": call.function.arguments} | tojson ~ '</call>' }}
{%- endfor %}
{%- elif message.role == 'tool' %}
{{- '<result>' + message.content + '</result>' }}
{%- else %}
{{- message.content if message.content is string else message.content | tojson }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}""",
    "thinking": """
{%- set ns = namespace(last=-1, n=0) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if message.role == 'user' and ns.last < 0 and not message.content.startswith('<result>') %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- if loop.index0 > ns.last %}
            {%- set content = '<think>' ~ thought ~ '</think>' ~ content %}
        {%- endif %}
    {%- endif %}
    {%- set ns.n = ns.n + content | length %}
    {{- message.role ~ ': ' ~ content.strip() ~ '\\n' }}
{%- endfor %}
{{- ns.last ~ ' ' ~ ns.n }}
{%- if enable_thinking is defined and enable_thinking is false %} no thinking{% endif %}""",
    "values": """{{ true }} {{ false }} {{ none }} {{ 1 }} {{ 2.0 }} {{ 10 / 4 }} {{ 7 // 2 }} {{ 7 % 3 }}
{{ [1, 'a', none, true, "it's", 'say "x"'] }} {{ {'k': 'v', 'n': 1.5} }} {{ missing }}|{{ missing | default('gone') }}
{{ messages | map(attribute='role') | join('/') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ 'a-b-c'.replace('-', '+') }} {{ 'Title case'.title() }} {{ 'x,y,,z'.split(',') }} {{ ' a  b '.split() }}
{{ 'abc'[1] }}{{ 'abcdef'[1:4] }}{{ 'abcdef'[::-1] }}{{ 'abc' * 2 }} {{ [1, 2] + [3] }} {{ 'b' in 'abc' }} {{ 3 not in [1, 2] }}
{{ 'é日😀' | length }} {{ 'ABC' | lower }} {{ 'a\\nb' | replace('\\n', ' ') }} {{ [3, 1, 2] | sort }} {{ [1, 2, 3] | last }} {{ 'x' | string }}
{{ messages[0].content is string }} {{ messages is iterable }} {{ messages[0] is mapping }} {{ 1 is number }} {{ messages[-1]['role'] }}
{{ messages[0].get('name', 'nobody') }} {{ messages[0].get('missing') }} {{ 'yes' if messages[0].missing is not defined else 'no' }}
{{ '%s has %d' | format('a', 3) }} {{ 'n' ~ 1 ~ none }} {{ [[1, 2], [3]] | tojson }} {{ '<&>' | tojson }} {{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true, ensure_ascii=true) }}
""",
    "control": """
{%- macro turn(role, text='') -%}
<{{ role }}>{{ text }}</{{ role }}>
{%- endmacro -%}
{%- for message in messages -%}
    {%- if message.role == 'skip' -%}{%- continue -%}{%- endif -%}
    {%- if message.role == 'stop' -%}{%- break -%}{%- endif -%}
    {%- set block -%}
        {{ message.content }}!
    {%- endset -%}
    {{ turn(message.role, block) }}{{ ',' if not loop.last }}
{%- else -%}
nothing
{%- endfor -%}
{%- for a, b in [['x', 1], ['y', 2]] if b > 1 %} {{ a }}{{ loop.length }}{{ loop.revindex }}{{ loop.cycle('p', 'q') }}{% endfor -%}
{%- with inner = 'w' %} {{ inner }}{% endwith %} {{ inner is defined }}{{ turn('empty') }}""",
    "training": """
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {% generation %}
{{ message.content }}{{ eos_token }}
        {% endgeneration %}
    {%- else %}
{{ message.content }}
{% generation -%} inside {%- endgeneration %}
    {%- endif %}
{%- endfor %}
""",
}

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city, <fast> & \"exact\" – 天気",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}

CHATS = [
    {"messages": [{"role": "user", "content": "What is the capital of France?"}]},
    {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": False},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  spaces  \n"}]},
    {
        "messages": [
            {"role": "user", "content": "Count: <1> & 'two'"},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nThree."},
            {"role": "user", "content": "日本語 😀"},
        ],
        "extra": {"enable_thinking": False},
    },
    {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
    {"messages": [{"role": "system", "content": "alone"}]},
    {
        "messages": [
            {"role": "user", "content": "Weather in Zürich?", "name": "Ann"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "1", "type": "function", "function": {
                    "name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "exact": 1.0}}}]},
            {"role": "tool", "content": "{\"t\": 21.5}"},
        ],
        "tools": [TOOL],
    },
    {
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "skip", "content": "two"},
            {"role": "assistant", "content": "three"},
            {"role": "stop", "content": "four"},
        ]
    },
]


def chats(source, bos_token, eos_token):
    for chat in CHATS:
        chat = {"tools": None, "add_generation_prompt": True, "extra": {}, **chat}
        yield {**chat, **render(source, bos_token=bos_token, eos_token=eos_token, **chat)}


def make_templates():
    return [
        {"name": name, "source": source, "chats": list(chats(source, "<bos>", "<eos>"))}
        for name, source in TEMPLATES.items()
    ]


# --- the default model ------------------------------------------------------


def make_smollm2(path):
    reader = gguf.GGUFReader(path)
    field = lambda name: reader.fields["tokenizer." + name].contents()
    tokens, types = field("ggml.tokens"), field("ggml.token_type")
    assert field("ggml.model") == "gpt2" and field("ggml.pre") == "smollm"
    bpe = Bpe(tokens, field("ggml.merges"), types, "smollm")
    ids = cases(bpe)
    digest = hashlib.sha256()
    for token, kind in zip(tokens, types):
        own = b"" if kind == CONTROL else bytes(BYTES[character] for character in token)
        digest.update(struct.pack("<I", len(own)) + own)
    bos, eos = (tokens[field(f"ggml.{name}_token_id")] for name in ("bos", "eos"))
    template = field("chat_template")
    rendered = [
        {**chat, "ids": bpe.encode_special(chat["text"])}
        for chat in chats(template, bos, eos)
        if "text" in chat
    ]
    return {
        "size": len(tokens),
        "bos_token": bos,
        "eos_token": eos,
        "n_special": sum(kind == CONTROL for kind in types),
        "token_bytes_sha256": digest.hexdigest(),
        "cases": ids,
        "chats": rendered,
    }


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (HERE / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write("cuts.json", make_cuts())
    write("templates.json", make_templates())
    write("smollm2.json", make_smollm2(sys.argv[1]))
