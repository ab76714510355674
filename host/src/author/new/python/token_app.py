"""What the plugin says of itself. Its work is in token_processor.py."""

import json

from wit_world import exports
from wit_world.exports.plugin import Description

# An exported resource lives in a module named after its interface.
import token_processor  # noqa: F401

SCHEMA = {
    "type": "object",
    "properties": {
        "penalty": {"type": "number", "minimum": -100, "maximum": 100, "default": 0},
    },
    "additionalProperties": False,
}


class Plugin(exports.Plugin):
    def describe(self):
        return Description(
            name="{{name}}",
            version="0.1.0",
            summary="Lowers tokens by how often they were generated.",
            params_schema=json.dumps(SCHEMA),
        )

    def prepare(self):
        pass


class TokenProcessor(exports.TokenProcessor):
    pass
