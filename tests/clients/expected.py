"""Requests that the clients share, and what is right about their answers."""

from typing import Annotated

from pydantic import BaseModel, Field

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
CAPITAL_ANSWER = "The capital of France is Paris."


# Bounded, since a small model may never end a text or a number by itself.
Name = Annotated[str, Field(max_length=24)]


class City(BaseModel):
    """A city that somebody asks about."""

    name: Name
    population: int = Field(ge=0, le=99_999_999)
    is_capital: bool


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city, now.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 24},
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


def made_to_write(*texts: str) -> dict:
    """Fields by which the model's text is one of these, whatever it would say."""
    return {"processors": [{"plugin": "grammar", "params": {"choice": list(texts)}}]}
