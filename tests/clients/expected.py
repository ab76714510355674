"""Requests that the clients share, and what is right about their answers."""

from pydantic import BaseModel

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
CAPITAL_ANSWER = "The capital of France is Paris."


class City(BaseModel):
    """A city that somebody asks about."""

    name: str
    population: int
    is_capital: bool


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city, now.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
ASK_WEATHER = [{"role": "user", "content": "What is the weather in Rome, in celsius?"}]

# What a larger model would write; the tests' model is made to.
CALL_ROME = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "unit": "celsius"}}\n</tool_call>'
CALL_OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "unit": "celsius"}}\n</tool_call>'
ROME = {"city": "Rome", "unit": "celsius"}
OSLO = {"city": "Oslo", "unit": "celsius"}


def made_to_write(text: str) -> dict:
    """Fields by which the model's text is this one, whatever it would say."""
    return {"processors": [{"plugin": "grammar", "params": {"choice": [text]}}]}
