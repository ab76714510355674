"""EleutherAI's `lm-eval` with `local-completions`, unchanged: each kind of
request it makes, and its perplexity beside `sluice perplexity` and mlx-lm's."""

import json
import math
import os
import subprocess

# Data and tokenizer are local files.
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
# An async event loop in another thread takes it for a fork's danger.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import yaml
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from conftest import PROGRAM, ROOT

TEXTS = ROOT / "tests" / "perplexity"
# Windows of 128 scored tokens and one before them: lm-eval takes one from
# `max_length` for the token that it makes servers generate, and one more.
MAX_LENGTH = 130
POLICY = ["--window", "129", "--stride", "128", "--prefix-token", "0"]
# The bound of all comparisons of losses, in nats per token.
TOLERANCE = 1e-3

TURN = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
# Each continuation, and whether it is what the model would say. After the last
# two comes the end token, in whose place nothing may be scored.
CONTINUATIONS = [
    ("The capital of France is", " Paris", False),
    ("The cat sat on the", " mat because it was warm", False),
    (TURN + "The capital of France is", " Paris.", True),
    (TURN + "The capital of France is Paris", ".", True),
]
CHOICES = {
    "question": TURN + "The capital of France is",
    "choices": [" Rome.", " Paris.", " Berlin."],
    "answer": 1,
}
QUESTIONS = [
    {"question": TURN, "answer": "The capital of France is Paris."},
    {"question": "Count: 1, 2, 3, 4,", "answer": ""},
]


@pytest.fixture(scope="module")
def evaluate(server, gguf, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm-eval")
    gguf.save_tokenizer(folder / "tokenizer")
    model_args = {
        "model": server.model,
        "base_url": server.v1 + "/completions",
        "tokenizer": str(folder / "tokenizer"),
        "max_length": MAX_LENGTH,
        "max_retries": 1,
    }

    def run(kind: str, lines: list[dict], batch_size: int, **task) -> dict:
        """Results and samples of a task over these lines."""
        name = f"{kind}_{batch_size}"
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(line) + "\n" for line in lines))
        own = folder / name
        own.mkdir()
        description = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "output_type": kind,
            "test_split": "test",
            **task,
        }
        (own / f"{name}.yaml").write_text(yaml.safe_dump(description))
        found = simple_evaluate(
            model="local-completions",
            model_args=dict(model_args),
            tasks=[name],
            batch_size=batch_size,
            task_manager=TaskManager(include_path=str(own), include_defaults=False),
            bootstrap_iters=0,
        )
        samples = sorted(found["samples"][name], key=lambda sample: sample["doc_id"])
        return {"results": found["results"][name], "samples": samples}

    return run


def logprob(server, context: str, continuation: str) -> float:
    """Of the continuation, from the plain answer about the whole text."""
    body = {"prompt": context + continuation, "echo": True, "max_tokens": 0, "logprobs": 1}
    logprobs = server.post("/completions", body)["choices"][0]["logprobs"]
    entries = zip(logprobs["text_offset"], logprobs["token_logprobs"])
    found = [value for offset, value in entries if offset >= len(context)]
    assert found
    return math.fsum(found)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_loglikelihood(evaluate, server, batch_size):
    lines = [{"context": c, "continuation": t} for c, t, _ in CONTINUATIONS]
    found = evaluate(
        "loglikelihood",
        lines,
        batch_size,
        doc_to_text="{{context}}",
        doc_to_target="{{continuation}}",
        target_delimiter="",
        metric_list=[{"metric": "perplexity"}, {"metric": "acc"}],
    )
    for (context, continuation, is_greedy), sample in zip(CONTINUATIONS, found["samples"]):
        ((value, greedy),) = sample["filtered_resps"]
        assert value == pytest.approx(logprob(server, context, continuation), abs=1e-4)
        assert value < -1e-4, "nothing was scored"
        if is_greedy:
            assert greedy is True
    expected = [logprob(server, context, text) for context, text, _ in CONTINUATIONS]
    perplexity = math.exp(-math.fsum(expected) / len(expected))
    assert found["results"]["perplexity,none"] == pytest.approx(perplexity, rel=1e-4)


def test_multiple_choice(evaluate, server):
    found = evaluate(
        "multiple_choice",
        [CHOICES],
        2,
        doc_to_text="{{question}}",
        doc_to_choice="{{choices}}",
        doc_to_target="{{answer}}",
        target_delimiter="",
        metric_list=[{"metric": "acc"}],
    )
    values = [value for value, _ in found["samples"][0]["filtered_resps"]]
    expected = [logprob(server, CHOICES["question"], text) for text in CHOICES["choices"]]
    assert values == pytest.approx(expected, abs=1e-4)
    assert found["results"]["acc,none"] == 1.0


@pytest.mark.parametrize("batch_size", [1, 8])
def test_rolling_perplexity(evaluate, batch_size):
    text = (TEXTS / "harbour.txt").read_text(encoding="utf-8")
    found = evaluate(
        "loglikelihood_rolling",
        [{"text": text}],
        batch_size,
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "byte_perplexity"}, {"metric": "bits_per_byte"}],
    )
    command = [PROGRAM, "perplexity", *POLICY, "--json", str(TEXTS / "harbour.txt")]
    ours = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["result"]
    cases = json.loads((TEXTS / "expected.json").read_text())["cases"]
    (mlx_lm,) = [case for case in cases if case["arguments"] == POLICY]

    ((total,),) = found["samples"][0]["resps"]
    theirs = -total / ours["n_tokens_scored"]
    assert ours["n_tokens_scored"] == mlx_lm["n_tokens_scored"]
    assert theirs == pytest.approx(ours["mean_negative_logprob"], abs=TOLERANCE)
    assert theirs == pytest.approx(mlx_lm["mean_negative_logprob"], abs=TOLERANCE)
    assert math.exp(theirs) == pytest.approx(ours["perplexity"], rel=TOLERANCE)
    bits = found["results"]["bits_per_byte,none"]
    assert bits == pytest.approx(ours["bits_per_byte"], abs=TOLERANCE)
    print(f"\nlosses: lm-eval {theirs:.7f}, sluice {ours['mean_negative_logprob']:.7f}, "
          f"mlx-lm {mlx_lm['mean_negative_logprob']:.7f}")


@pytest.mark.parametrize("batch_size", [1, 2])
def test_generate_until(evaluate, server, batch_size):
    found = evaluate(
        "generate_until",
        QUESTIONS,
        batch_size,
        doc_to_text="{{question}}",
        doc_to_target="{{answer}}",
        generation_kwargs={"until": ["\n", " 9"], "max_gen_toks": 24, "do_sample": False},
        metric_list=[{"metric": "exact_match"}],
    )
    for question, sample in zip(QUESTIONS, found["samples"]):
        body = {
            "prompt": question["question"],
            "temperature": 0,
            "max_tokens": 24,
            "stop": ["\n", " 9"],
        }
        expected = server.post("/completions", body)["choices"][0]["text"]
        assert sample["resps"] == [[expected]]
        assert "\n" not in expected and " 9" not in expected
    assert found["samples"][0]["exact_match"] == 1.0
