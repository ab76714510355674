"""The command `llm` with an OpenAI-compatible endpoint, unchanged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from expected import CAPITAL_ANSWER

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def llm(server, tools_server, tmp_path_factory):
    """Runs the command with its files in a folder of their own."""
    folder = tmp_path_factory.mktemp("llm")
    models = [("local", server), ("local-tools", tools_server)]
    entries = [
        f"- model_id: {name}\n  model_name: {of.model}\n  api_base: {of.v1}\n"
        "  supports_schema: true\n"
        for name, of in models
    ]
    entries[1] += "  supports_tools: true\n"
    completion = f"- model_id: local-completion\n  model_name: {server.model}\n"
    entries.append(completion + f"  api_base: {server.v1}\n  completion: true\n")
    (folder / "extra-openai-models.yaml").write_text("".join(entries))

    def run(*arguments: str) -> str:
        environment = {**os.environ, "LLM_USER_PATH": str(folder), "OPENAI_API_KEY": "any"}
        command = [str(Path(sys.executable).parent / "llm"), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def test_prompt(llm):
    assert llm("-m", "local", "-o", "temperature", "0", QUESTION) == CAPITAL_ANSWER


def test_prompt_without_streaming(llm):
    assert llm("-m", "local", "--no-stream", "-o", "temperature", "0", QUESTION) == CAPITAL_ANSWER


def test_usage_is_logged(llm):
    llm("-m", "local", "-o", "temperature", "0", QUESTION)
    (logged,) = json.loads(llm("logs", "-n", "1", "--json"))
    assert logged["response"] == CAPITAL_ANSWER
    assert logged["output_tokens"] == 7


def test_conversation(llm, server):
    llm("-m", "local", "-o", "temperature", "0", QUESTION)
    found = llm("-c", "-o", "temperature", "0", "-o", "max_tokens", "16", "And of Italy?")
    turns = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": CAPITAL_ANSWER},
        {"role": "user", "content": "And of Italy?"},
    ]
    body = {"messages": turns, "temperature": 0, "max_tokens": 16}
    expected = server.post("/chat/completions", body)["choices"][0]["message"]["content"]
    assert found == expected.strip()


def test_schema(llm):
    """What the schema does not forbid may follow: `llm` leaves objects open."""
    schema = "name, population int, is_capital bool"
    options = ["-o", "temperature", "0", "-o", "frequency_penalty", "0.5"]
    city = json.loads(llm("-m", "local", "--schema", schema, *options, "Lisbon"))
    assert list(city)[:3] == ["name", "population", "is_capital"]
    kinds = [type(city[key]) for key in ("name", "population", "is_capital")]
    assert kinds == [str, int, bool]


def test_completion(llm, server):
    body = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 4}
    expected = server.post("/completions", body)["choices"][0]["text"]
    options = ["-o", "temperature", "0", "-o", "max_tokens", "4"]
    assert llm("-m", "local-completion", *options, body["prompt"]) == expected.strip()


def test_tools(llm):
    """Tools reach the model, which is too small to use them by itself."""
    options = ["-o", "temperature", "0", "-o", "max_tokens", "20"]
    assert llm("-m", "local-tools", "-T", "llm_version", *options, "Which version of llm is this?")
