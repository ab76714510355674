"""For schemathesis: bodies of the type application/wasm are any bytes.

The command is in docs/security.md.
"""

import schemathesis


@schemathesis.serializer("application/wasm")
def any_bytes(_context, value):
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    text = value if isinstance(value, str) else repr(value)
    return text.encode("utf-8", "surrogatepass")
