"""Requests to a running server, timed where a client is."""

import json
import time
import urllib.request

from programs import Failed

# Of a story of some 30 tokens; all different words would be another text.
SENTENCE = (
    "The keeper of the harbour wrote about ships, weather, salt, letters, lamps, ropes, gulls, "
    "tides, storms and bells in a ledger that nobody read. "
)
PARAGRAPH = (
    "The keeper of the harbour wrote in his ledger that on the third of May the ship Aurora had "
    "brought forty barrels of salted herring, twelve crates of oranges and a letter for the widow "
    "Brandt. He counted the barrels twice, signed the page, and rang the bell. "
)


def post(url: str, path: str, body: dict):
    data = json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    return urllib.request.urlopen(request)


def first_token_s(url: str, messages: list[dict]) -> float:
    """Time to the first text of an answer."""
    body = {"messages": messages, "temperature": 0, "max_tokens": 8, "stream": True}
    start = time.perf_counter()
    with post(url, "/v1/chat/completions", body) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            choices = json.loads(line[6:])["choices"]
            if choices and choices[0]["delta"].get("content"):
                return time.perf_counter() - start
    raise Failed(f"{url} answers without text")


def second_turn_s(url: str, number: int, n_sentences: int = 70) -> float:
    """Time to the first token of the second turn of a chat of some 2,000 tokens
    that no other number has."""
    story = f"Story {number}. {SENTENCE * n_sentences}Sum it up."
    messages = [{"role": "user", "content": story}]
    first_token_s(url, messages)
    messages += [
        {"role": "assistant", "content": "It is about a keeper."},
        {"role": "user", "content": "And who read it?"},
    ]
    return first_token_s(url, messages)


def copying(url: str) -> tuple[float, str]:
    """Tokens per second, and the text, of an answer that repeats a text. The
    prompt is in the cache from the second time on."""
    content = f"Repeat this text exactly, word for word:\n\n{PARAGRAPH * 3}"
    message = {"role": "user", "content": content}
    body = {"messages": [message], "temperature": 0, "max_tokens": 180}
    start = time.perf_counter()
    with post(url, "/v1/chat/completions", body) as answer:
        answer = json.load(answer)
    elapsed = time.perf_counter() - start
    text = answer["choices"][0]["message"]["content"]
    return answer["usage"]["completion_tokens"] / elapsed, text


def first_use_s(url: str, component: bytes) -> float:
    """Time from the upload of a sampler to the answer of a request that uses it;
    it is removed afterwards."""
    start = time.perf_counter()
    upload = urllib.request.Request(f"{url}/v1/plugins", component, method="PUT")
    with urllib.request.urlopen(upload) as answer:
        digest = json.load(answer)["digest"]
    body = {"prompt": "The", "max_tokens": 1, "chain": [{"plugin": digest}]}
    post(url, "/v1/completions", body).read()
    elapsed = time.perf_counter() - start
    removal = urllib.request.Request(f"{url}/v1/plugins/{digest}", method="DELETE")
    urllib.request.urlopen(removal).close()
    return elapsed


def unseen(component: bytes, name: bytes, number: int) -> bytes:
    """A component under another name of the same length, for a version is never
    other bytes, and with a custom section more, so that no cache knows it."""
    payload = b"\x05bench" + str(time.time_ns()).encode()
    renamed = component.replace(name, name[:-2] + f"{number % 100:02}".encode())
    return renamed + bytes([0, len(payload)]) + payload
