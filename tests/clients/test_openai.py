"""The `openai` package, unchanged."""

import asyncio
import json
import math

import openai
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


def client_of(server, **options) -> openai.OpenAI:
    options = {"api_key": "any", "max_retries": 0, "timeout": 120, **options}
    return openai.OpenAI(base_url=server.v1, **options)


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


@pytest.fixture(scope="module")
def tools_client(tools_server):
    return client_of(tools_server)


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def test_models(client, model):
    found = client.models.retrieve(model)
    assert (found.id, found.object) == (model, "model")
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("another")
    assert error.value.code == "model_not_found"


def test_chat(client, server, model):
    answer = client.chat.completions.create(model=model, messages=CAPITAL, temperature=0)
    plain = server.post("/chat/completions", {"messages": CAPITAL, "temperature": 0})
    choice = answer.choices[0]
    assert choice.message.content == plain["choices"][0]["message"]["content"] == CAPITAL_ANSWER
    assert (choice.message.role, choice.finish_reason) == ("assistant", "stop")
    assert answer.usage.completion_tokens == plain["usage"]["completion_tokens"] == 7
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 7
    assert answer.model == model and answer._request_id


def test_answers_go_back_as_they_came(client, model):
    first = client.chat.completions.create(model=model, messages=CAPITAL, temperature=0)
    turn = {"role": "user", "content": "And of Italy?"}
    object_sent_back = [*CAPITAL, first.choices[0].message, turn]
    by_hand = [*CAPITAL, {"role": "assistant", "content": CAPITAL_ANSWER}, turn]
    texts = {
        client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=20)
        .choices[0]
        .message.content
        for messages in (object_sent_back, by_hand)
    }
    assert len(texts) == 1, texts


def test_stream(client, model):
    chunks = list(
        client.chat.completions.create(
            model=model,
            messages=CAPITAL,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    *content, last = chunks
    assert last.choices == [] and last.usage.completion_tokens == 7
    assert all(chunk.usage is None for chunk in content)
    assert content[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in content)
    assert text == CAPITAL_ANSWER
    reasons = [chunk.choices[0].finish_reason for chunk in content]
    assert reasons[-1] == "stop" and set(reasons[:-1]) == {None}


def test_stream_helper(client, model):
    with client.chat.completions.stream(model=model, messages=CAPITAL, temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        completion = stream.get_final_completion()
    assert "".join(deltas) == completion.choices[0].message.content == CAPITAL_ANSWER
    assert len(deltas) > 1


def test_async(server, model):
    async def ask():
        async with openai.AsyncOpenAI(base_url=server.v1, api_key="any", max_retries=0) as client:
            answers = [
                client.completions.create(model=model, prompt=f"{n} and", max_tokens=5, temperature=0)
                for n in range(6)
            ]
            stream = await client.chat.completions.create(
                model=model, messages=CAPITAL, temperature=0, stream=True
            )
            streamed = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return await asyncio.gather(*answers), "".join(streamed)

    answers, streamed = asyncio.run(ask())
    assert streamed == CAPITAL_ANSWER
    for n, answer in enumerate(answers):
        body = {"prompt": f"{n} and", "max_tokens": 5, "temperature": 0}
        assert answer.choices[0].text == server.post("/completions", body)["choices"][0]["text"]


def test_logprobs(client, server, model):
    asked = {"messages": CAPITAL, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    found = client.chat.completions.create(model=model, **asked).choices[0].logprobs.content
    plain = server.post("/chat/completions", asked)["choices"][0]["logprobs"]["content"]
    assert [entry.token for entry in found] == [entry["token"] for entry in plain]
    assert [entry.logprob for entry in found] == [entry["logprob"] for entry in plain]
    assert b"".join(bytes(entry.bytes) for entry in found).decode() == CAPITAL_ANSWER
    for entry in found:
        # The greedy choice is the likeliest.
        top = [other.logprob for other in entry.top_logprobs]
        assert len(top) == 3 and top == sorted(top, reverse=True)
        assert entry.top_logprobs[0].token == entry.token
        assert entry.top_logprobs[0].logprob == entry.logprob
        assert sum(map(math.exp, top)) <= 1 + 1e-5

    chunks = client.chat.completions.create(model=model, stream=True, **asked)
    entries = [
        entry
        for chunk in chunks
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert [entry.logprob for entry in entries] == [entry.logprob for entry in found]


def test_completions_of_id_lists(client, server, model):
    prompts = [[504, 3575, 282], [6693, 355, 253, 655]]
    answer = client.completions.create(
        model=model, prompt=prompts, max_tokens=3, temperature=0, logprobs=2, echo=True
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.prompt_tokens == 7 and answer.usage.completion_tokens == 6
    for prompt, choice in zip(prompts, answer.choices):
        body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "echo": True, "logprobs": 2}
        (alone,) = server.post("/completions", body)["choices"]
        assert choice.text == alone["text"]
        logprobs = choice.logprobs
        assert logprobs.token_logprobs == alone["logprobs"]["token_logprobs"]
        assert len(logprobs.tokens) == len(prompt) + 3
        assert logprobs.token_logprobs[0] is None
        assert all(value < 0 for value in logprobs.token_logprobs[1:])
        assert "".join(logprobs.tokens) == choice.text
        assert [len(choice.text[: at].encode()) for at in logprobs.text_offset][0] == 0


def test_choices_and_seeds(client, model):
    def texts():
        answer = client.chat.completions.create(
            model=model, messages=CAPITAL, n=3, seed=7, temperature=1.2, max_completion_tokens=12
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.message.content for choice in answer.choices]

    first = texts()
    assert len(set(first)) > 1
    assert texts() == first


def test_response_format_of_pydantic(client, model):
    question = [{"role": "user", "content": "Tell me about Lisbon as JSON."}]
    answer = client.chat.completions.parse(
        model=model, messages=question, response_format=City, temperature=0, max_tokens=200
    )
    message = answer.choices[0].message
    assert isinstance(message.parsed, City)
    # On one line, members in the model's order: its own JSON but for spaces.
    assert json.loads(message.content) == message.parsed.model_dump()
    assert list(json.loads(message.content)) == ["name", "population", "is_capital"]
    old = client.beta.chat.completions.parse(
        model=model, messages=question, response_format=City, temperature=0, max_tokens=200
    )
    assert old.choices[0].message.parsed == message.parsed
    with client.chat.completions.stream(
        model=model, messages=question, response_format=City, temperature=0, max_tokens=200
    ) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == message.parsed
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=model, messages=question, response_format=City, temperature=0, max_tokens=3
        )


def test_json_object(client, model):
    answer = client.chat.completions.create(
        model=model,
        messages=CAPITAL,
        response_format={"type": "json_object"},
        # One of them is a JSON object.
        extra_body=made_to_write('{"a": 1}', "Paris.", '["Paris"]', '{"a": 1'),
    )
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ('{"a": 1}', "stop")


def test_a_schema_decides_between_texts(client, model):
    fits = '{"name": "Lisbon", "population": 545796, "is_capital": true}'
    others = ['{"name": "Lisbon"}', fits.replace("545796", '"many"'), fits[:-1] + ', "a": 1}']
    answer = client.chat.completions.parse(
        model=model,
        messages=CAPITAL,
        response_format=City,
        extra_body=made_to_write(*others, fits),
    )
    city = answer.choices[0].message.parsed
    assert city == City(name="Lisbon", population=545796, is_capital=True)


def test_tools(tools_client):
    answer = tools_client.chat.completions.create(
        model="tools",
        messages=ASK_WEATHER,
        tools=[WEATHER],
        parallel_tool_calls=True,
        extra_body=made_to_write(f"One moment.\n{CALL_ROME}\n{CALL_OSLO}"),
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "One moment."
    calls = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["weather", "weather"]
    assert [json.loads(call.function.arguments) for call in calls] == [ROME, OSLO]
    assert len({call.id for call in calls}) == 2
    # The conversation goes on with the answer object itself.
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in calls]
    answer = tools_client.chat.completions.create(
        model="tools",
        messages=[*ASK_WEATHER, choice.message, *results],
        tools=[WEATHER],
        extra_body=made_to_write("Sunny in both."),
    )
    assert answer.choices[0].message.content == "Sunny in both."
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"


def test_streamed_tools(tools_client):
    with tools_client.chat.completions.stream(
        model="tools",
        messages=ASK_WEATHER,
        tools=[WEATHER],
        extra_body=made_to_write(f"{CALL_ROME}\n{CALL_OSLO}"),
    ) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        completion = stream.get_final_completion()
    assert [json.loads(event.arguments) for event in done] == [ROME, OSLO]
    calls = completion.choices[0].message.tool_calls
    assert [json.loads(call.function.arguments) for call in calls] == [ROME, OSLO]
    assert completion.choices[0].finish_reason == "tool_calls"


NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_calls_that_the_client_forces(tools_client, choice, temperature):
    asked = {
        "model": "tools",
        "messages": ASK_WEATHER,
        "tools": [WEATHER],
        "tool_choice": choice,
        "temperature": temperature,
        "max_tokens": 400,
        "seed": 3,
    }
    answer = tools_client.chat.completions.create(**asked).choices[0]
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None
    (call,) = answer.message.tool_calls
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("celsius", "fahrenheit")
    with tools_client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments
    assert streamed.finish_reason == "tool_calls"


def test_tools_of_pydantic(tools_client):
    tool = openai.pydantic_function_tool(City, name="save")
    answer = tools_client.chat.completions.parse(
        model="tools",
        messages=[{"role": "user", "content": "Save Lisbon."}],
        tools=[tool],
        tool_choice="required",
        temperature=0,
        max_tokens=300,
    )
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, City)


def test_tools_of_a_model_without_them(client, model):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=model, messages=ASK_WEATHER, tools=[WEATHER])
    assert (error.value.code, error.value.param) == ("unsupported_field", "tools")


def test_errors_have_their_types(client, model):
    def refused(kind, code, param, **fields):
        fields = {"model": model, "messages": CAPITAL, "max_tokens": 1, **fields}
        with pytest.raises(kind) as error:
            client.chat.completions.create(**fields)
        assert (error.value.code, error.value.param) == (code, param)
        assert error.value.type == "invalid_request_error"
        assert error.value.request_id

    refused(openai.BadRequestError, "invalid_value", "temperature", temperature=-1)
    refused(openai.BadRequestError, "invalid_value", "messages", messages=[])
    refused(openai.BadRequestError, "unknown_field", "temprature", extra_body={"temprature": 1})
    refused(openai.BadRequestError, "invalid_value", "n", n=0, stream=True)
    refused(openai.NotFoundError, "model_not_found", "model", model="another")
    long = [{"role": "user", "content": "a b " * 9000}]
    refused(openai.BadRequestError, "context_length_exceeded", None, messages=long)
    refused(
        openai.NotFoundError,
        "plugin_not_found",
        "processors[0].plugin",
        extra_body={"processors": [{"plugin": "absent"}]},
    )


def test_a_fault_in_a_stream_is_an_error(client, model):
    """All tokens are banned at the first position."""
    body = {"allowed_token_ids": [5], "logit_bias": {"5": -100}, "bad_words": [[5]]}
    asked = {"model": model, "messages": CAPITAL, "max_tokens": 3, "extra_body": body}
    with pytest.raises(openai.UnprocessableEntityError) as error:
        client.chat.completions.create(**asked)
    assert error.value.code == "plugin_error"
    with pytest.raises(openai.APIError) as error:
        list(client.chat.completions.create(stream=True, **asked))
    assert "rules" in error.value.message


def test_other_clients_keys(tmp_path_factory):
    """A server that wants a token says so by the package's own types."""
    from conftest import started

    scratch = tmp_path_factory.mktemp("tokens-server")
    tokens = scratch / "tokens"
    tokens.write_text("ann generate a-secret-of-at-least-16-bytes\n")
    tokens.chmod(0o600)
    servers = started(scratch, "--tokens", str(tokens))
    server = next(servers)
    with pytest.raises(openai.AuthenticationError):
        client_of(server, api_key="wrong").models.list()
    right = client_of(server, api_key="a-secret-of-at-least-16-bytes")
    assert right.models.list().data
    with pytest.raises(openai.PermissionDeniedError) as error:
        right.delete("/plugins/rules", cast_to=object)
    assert error.value.code == "forbidden"
    assert next(servers, None) is None
