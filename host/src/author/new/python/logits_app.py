"""What the plugin says of itself. Its work is in logits_processor.py."""

import json

from wit_world import exports
from wit_world.exports.plugin import Description

# An exported resource lives in a module named after its interface.
import logits_processor  # noqa: F401

SCHEMA = {
    "type": "object",
    "properties": {
        "distance": {"type": "number", "minimum": 0, "maximum": 1000},
    },
    "additionalProperties": False,
}


class Plugin(exports.Plugin):
    def describe(self):
        return Description(
            name="{{name}}",
            version="0.1.0",
            summary="Bans tokens far below the best one.",
            params_schema=json.dumps(SCHEMA),
        )

    def prepare(self):
        pass


class LogitsProcessor(exports.LogitsProcessor):
    pass
