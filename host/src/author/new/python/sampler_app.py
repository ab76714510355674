"""What the plugin says of itself. Its work is in sampler.py."""

import json

from wit_world import exports
from wit_world.exports.plugin import Description

# An exported resource lives in a module named after its interface.
import sampler  # noqa: F401

SCHEMA = {
    "type": "object",
    "properties": {
        "k": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 1},
    },
    "additionalProperties": False,
}


class Plugin(exports.Plugin):
    def describe(self):
        return Description(
            name="{{name}}",
            version="0.1.0",
            summary="Draws among the best tokens.",
            params_schema=json.dumps(SCHEMA),
        )

    def prepare(self):
        pass


class Sampler(exports.Sampler):
    pass
