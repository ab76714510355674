"""LangChain's `langchain-openai`, unchanged."""

import asyncio
from typing import Literal

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

from expected import (
    ASK_WEATHER,
    CALL_OSLO,
    CALL_ROME,
    CAPITAL,
    CAPITAL_ANSWER,
    OSLO,
    ROME,
    City,
    Name,
    made_to_write,
)


@tool
def weather(city: Name, unit: Literal["celsius", "fahrenheit"]) -> str:
    """The weather of a city, now."""
    return f"sunny in {city}, in {unit}"


def chat_of(server, **options) -> ChatOpenAI:
    options = {"temperature": 0, "max_retries": 0, **options}
    return ChatOpenAI(base_url=server.v1, api_key="any", model=server.model, **options)


@pytest.fixture(scope="module")
def chat(server):
    return chat_of(server)


def test_invoke(chat):
    answer = chat.invoke("What is the capital of France?")
    assert answer.content == CAPITAL_ANSWER
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata["output_tokens"] == 7


def test_messages_of_every_kind(chat, server):
    messages = [
        SystemMessage("Be brief."),
        HumanMessage("Hi"),
        AIMessage("Hello!"),
        HumanMessage([{"type": "text", "text": "Count to three."}]),
    ]
    plain = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Count to three."},
    ]
    body = {"messages": plain, "temperature": 0, "max_tokens": 20}
    expected = server.post("/chat/completions", body)["choices"][0]["message"]["content"]
    assert chat.invoke(messages, max_tokens=20).content == expected


def test_stream(chat):
    chunks = list(chat.stream(CAPITAL, stream_usage=True))
    assert "".join(chunk.content for chunk in chunks) == CAPITAL_ANSWER
    assert sum(bool(chunk.content) for chunk in chunks) > 1
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.usage_metadata["output_tokens"] == 7
    assert whole.response_metadata["finish_reason"] == "stop"


def test_async(chat):
    async def ask():
        one = await chat.ainvoke(CAPITAL)
        streamed = [chunk.content async for chunk in chat.astream(CAPITAL)]
        return one.content, "".join(streamed)

    assert asyncio.run(ask()) == (CAPITAL_ANSWER, CAPITAL_ANSWER)


def test_batch(chat, server):
    questions = ["What is the capital of Italy?", "Say hi.", "What is 2 + 2?"]
    answers = chat.batch(questions, max_tokens=16)
    for question, answer in zip(questions, answers):
        messages = [{"role": "user", "content": question}]
        body = {"messages": messages, "temperature": 0, "max_tokens": 16}
        alone = server.post("/chat/completions", body)["choices"][0]["message"]["content"]
        assert answer.content == alone


def test_logprobs(chat):
    answer = chat.bind(logprobs=True, top_logprobs=2).invoke(CAPITAL)
    entries = answer.response_metadata["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == CAPITAL_ANSWER
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_completions(server):
    body = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 4}
    expected = server.post("/completions", body)["choices"][0]["text"]
    model = OpenAI(
        base_url=server.v1, api_key="any", model=server.model, temperature=0, max_tokens=4
    )
    assert model.invoke(body["prompt"]) == expected
    assert "".join(model.stream(body["prompt"])) == expected
    assert model.batch([body["prompt"]] * 3) == [expected] * 3


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(server, tools_server, method):
    of = tools_server if method == "function_calling" else server
    structured = chat_of(of, max_tokens=300).with_structured_output(City, method=method)
    assert isinstance(structured.invoke("Tell me about Lisbon."), City)


def test_structured_output_by_json_mode(server):
    chat = chat_of(server, extra_body=made_to_write('{"a": 1}', "no JSON", "[1]"))
    structured = chat.with_structured_output(None, method="json_mode")
    assert structured.invoke("Something, please.") == {"a": 1}


def test_bound_tools(tools_server):
    chat = chat_of(tools_server, extra_body=made_to_write(f"{CALL_ROME}\n{CALL_OSLO}"))
    bound = chat.bind_tools([weather])
    answer = bound.invoke(ASK_WEATHER)
    assert [call["args"] for call in answer.tool_calls] == [ROME, OSLO]
    assert answer.response_metadata["finish_reason"] == "tool_calls"

    chunks = list(bound.stream(ASK_WEATHER))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert [call["args"] for call in whole.tool_calls] == [ROME, OSLO]
    assert [call["name"] for call in whole.tool_calls] == ["weather"] * 2

    # The loop of an agent: call, result, answer.
    results = [weather.invoke(call) for call in answer.tool_calls]
    assert all(isinstance(result, ToolMessage) for result in results)
    after = chat_of(tools_server, extra_body=made_to_write("Sunny in both."))
    question = HumanMessage(ASK_WEATHER[0]["content"])
    final = after.bind_tools([weather]).invoke([question, answer, *results])
    assert (final.content, final.tool_calls) == ("Sunny in both.", [])


@pytest.mark.parametrize("choice", ["any", "weather"])
def test_tools_that_must_be_called(tools_server, choice):
    chat = chat_of(tools_server, max_tokens=300)
    bound = chat.bind_tools([weather], tool_choice=choice)
    (call,) = bound.invoke(ASK_WEATHER).tool_calls
    assert call["name"] == "weather"
    assert set(call["args"]) == {"city", "unit"}
    assert weather.invoke(call).content.startswith("sunny in")
