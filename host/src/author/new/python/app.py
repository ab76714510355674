"""What the plugin says of itself. Its work is in {{module}}.py."""

import json

from wit_world import exports
from wit_world.exports.plugin import Description

# An exported resource lives in a module named after its interface.
import {{module}}  # noqa: F401

SCHEMA = {
    "type": "object",
    "properties": {
        {{property}},
    },
    "additionalProperties": False,
}


class Plugin(exports.Plugin):
    def describe(self):
        return Description(
            name="{{name}}",
            version="0.1.0",
            summary="{{summary}}",
            params_schema=json.dumps(SCHEMA),
        )

    def prepare(self):
        pass


class {{resource}}(exports.{{resource}}):
    pass
