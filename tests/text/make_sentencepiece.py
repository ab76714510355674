"""Writes sentencepiece.json: a small vocabulary of SentencePiece's, made as
Gemma's is, and what SentencePiece itself reads with it.

    python3 -m pip install sentencepiece==0.2.3 tokenizers==0.23.3
    python3 make_sentencepiece.py

The vocabulary is given as GGUF files have it and as a `tokenizer.json`, whose
merges are written out here as Hugging Face's converters do.
"""

import io
import json
import pathlib

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

OUT = pathlib.Path(__file__).parent / "sentencepiece.json"
SPACE = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
USER = ["\n", "\n\n", "\n\n\n", SPACE * 2, SPACE * 3, SPACE * 4, "<b>", "</b>"]
TURNS = ["<start_of_turn>", "<end_of_turn>"]
TEXTS = [
    "",
    "a",
    " ",
    "the river and the sea",
    " the river",
    "the  river   flows    down     here",
    "one\ntwo\n\nthree\n\n\nfour\n\n\n\nfive",
    "tab\there",
    "1234567 and 3.14",
    "naïve café, Ünïcödé",
    "日本語 and 한국어",
    "emoji \U0001f600 and \U0001f469\u200d\U0001f467",
    "<b>bold</b> <i>not</i>",
    "<0x0A> is text, not a byte",
    "<bos> and <eos> are text here",
    "the the the river river flows flows",
    "def f(x):\n    return x  # two spaces\n",
    "ends with spaces   ",
    "\u00a0no-break\u2003em",
]


def corpus() -> list[str]:
    words = "the river flows down to the sea and the sea is wide one two three here there"
    lines = [words, "rivers flowed and flow", "return def x f", "text and texts in the text"]
    lines += ["1 2 3 4 5 6 7 8 9 0", "café naïve", ". , ( ) : # - < > /"]
    return lines * 20


def kind(model, id: int) -> int:
    if model.is_unknown(id):
        return UNKNOWN
    if model.is_control(id):
        return CONTROL
    if model.is_byte(id):
        return BYTE
    return USER_DEFINED if model.id_to_piece(id) in USER else NORMAL


def merges(pieces: dict[str, float]) -> list[tuple[str, str]]:
    found = []
    for piece, score in pieces.items():
        for at in range(1, len(piece)):
            left, right = piece[:at], piece[at:]
            if left in pieces and right in pieces:
                found.append((score, len(left), len(right), left, right))
    found.sort(key=lambda merge: merge[:3], reverse=True)
    return [merge[3:] for merge in found]


def tokenizer_json(tokens: list[str], scores: list[float], types: list[int]) -> str:
    pieces = {t: s for t, s, k in zip(tokens, scores, types) if k in (NORMAL, USER_DEFINED)}
    vocabulary = {token: id for id, token in enumerate(tokens)}
    bpe = models.BPE(vocabulary, merges(pieces), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    added = [(t, k) for t, k in zip(tokens, types) if k in (UNKNOWN, CONTROL, USER_DEFINED)]
    tokenizer.add_tokens(
        [AddedToken(t, special=k != USER_DEFINED, normalized=False) for t, k in added]
    )
    return json.loads(tokenizer.to_str())


def main() -> None:
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()),
        model_writer=trained,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        user_defined_symbols=USER,
        control_symbols=TURNS,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    ids = range(model.get_piece_size())
    tokens = [model.id_to_piece(id) for id in ids]
    scores = [model.get_score(id) for id in ids]
    types = [kind(model, id) for id in ids]
    # convert_hf_to_gguf.py writes the spaces of user-defined tokens as such.
    written = [t.replace(SPACE, " ") if k == USER_DEFINED else t for t, k in zip(tokens, types)]
    cases = [{"text": text, "ids": model.encode(text)} for text in TEXTS]
    fixture = {
        "gguf": {"tokens": written, "scores": scores, "token_types": types},
        "json": tokenizer_json(tokens, scores, types),
        "cases": cases,
        "turn": {
            "text": "<start_of_turn>user\nthe river<end_of_turn>\n",
            "ids": [model.piece_to_id(TURNS[0]), *model.encode("user\nthe river"), model.piece_to_id(TURNS[1]), *model.encode("\n")],
        },
    }
    OUT.write_text(json.dumps(fixture, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{len(tokens)} tokens, wrote {OUT}, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
