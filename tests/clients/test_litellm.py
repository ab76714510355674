"""LiteLLM with `openai/` models, unchanged."""

import asyncio
import json
import os

# Its table of prices is fetched from the network otherwise.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import pytest

from expected import (
    ASK_WEATHER,
    CALL_OSLO,
    CALL_ROME,
    CAPITAL,
    CAPITAL_ANSWER,
    OSLO,
    ROME,
    WEATHER,
    City,
    made_to_write,
)


def options(server, **more) -> dict:
    return {
        "model": f"openai/{server.model}",
        "api_base": server.v1,
        "api_key": "any",
        "messages": CAPITAL,
        "temperature": 0,
        "max_retries": 0,
        **more,
    }


def test_completion(server):
    answer = litellm.completion(**options(server))
    assert answer.choices[0].message.content == CAPITAL_ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 7


def test_stream(server):
    chunks = list(
        litellm.completion(**options(server), stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == CAPITAL_ANSWER
    whole = litellm.stream_chunk_builder(chunks, messages=CAPITAL)
    assert whole.choices[0].message.content == CAPITAL_ANSWER
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens == 7


def test_async(server):
    answer = asyncio.run(litellm.acompletion(**options(server)))
    assert answer.choices[0].message.content == CAPITAL_ANSWER


def test_text_completion(server):
    body = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 4}
    expected = server.post("/completions", body)["choices"][0]["text"]
    asked = options(server)
    del asked["messages"]
    asked["model"] = f"text-completion-openai/{server.model}"
    answer = litellm.text_completion(**asked, prompt=body["prompt"], max_tokens=4)
    assert answer.choices[0].text == expected


def test_response_format(server):
    answer = litellm.completion(
        **options(server), response_format=City, max_tokens=200
    )
    City.model_validate_json(answer.choices[0].message.content)


def test_tools(tools_server):
    asked = options(tools_server, messages=ASK_WEATHER, tools=[WEATHER])
    made = made_to_write(f"{CALL_ROME}\n{CALL_OSLO}")
    answer = litellm.completion(**asked, extra_body=made)
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls
    assert [json.loads(call.function.arguments) for call in calls] == [ROME, OSLO]
    chunks = list(litellm.completion(**asked, extra_body=made, stream=True))
    whole = litellm.stream_chunk_builder(chunks).choices[0]
    arguments = [json.loads(call.function.arguments) for call in whole.message.tool_calls]
    assert arguments == [ROME, OSLO]
    assert whole.finish_reason == "tool_calls"


def test_a_tool_that_must_be_called(tools_server):
    asked = options(tools_server, messages=ASK_WEATHER, tools=[WEATHER], tool_choice="required")
    answer = litellm.completion(**asked, max_tokens=300)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert set(json.loads(call.function.arguments)) == {"city", "unit"}


def test_errors(server):
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**options(server, temperature=-1))
    with pytest.raises(litellm.ContextWindowExceededError):
        long = [{"role": "user", "content": "a b " * 9000}]
        litellm.completion(**options(server, messages=long))
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**options(server, model="openai/another"))
