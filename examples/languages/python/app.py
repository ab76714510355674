"""Bans a token once it has been generated so many times."""

from wit_world import exports
from wit_world.exports.plugin import Description

# An exported resource lives in a module named after its interface.
import token_processor  # noqa: F401

SCHEMA = """{
  "type": "object",
  "properties": {"times": {"type": "integer", "minimum": 1, "maximum": 1000000}},
  "required": ["times"],
  "additionalProperties": false
}"""


class Plugin(exports.Plugin):
    def describe(self):
        return Description(
            name="at-most-python",
            version="0.1.0",
            summary="Bans a token once it has been generated so many times.",
            params_schema=SCHEMA,
        )

    def prepare(self):
        pass


class TokenProcessor(exports.TokenProcessor):
    pass
