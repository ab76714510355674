"""The servers that the clients talk to, and the plain answers beside theirs.

`SLUICE` names the program, by default the one that cargo builds for release.
`SLUICE_URL` names a server of the default model that runs already."""

import json
import os
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from model_file import TOOLS_TEMPLATE, Gguf

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("SLUICE", str(ROOT / "target" / "release" / "sluice"))


@dataclass
class Server:
    """A server, asked without any client library."""

    url: str

    @property
    def v1(self) -> str:
        return self.url + "/v1"

    def get(self, path: str) -> dict:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict) -> dict:
        """What the same request gives as plain HTTP."""
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.v1 + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    @property
    def model(self) -> str:
        return self.get("/v1/models")["data"][0]["id"]


def started(scratch: Path, *arguments: str):
    """A server on a free port, until the tests have ended."""
    command = [PROGRAM, "serve", "--port", "0", "--data", str(scratch / "data"), *arguments]
    with (scratch / "log").open("w") as log:
        program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    line = next((line for line in program.stdout if line.startswith("listening on ")), None)
    assert line, f"{PROGRAM} did not start:\n{(scratch / 'log').read_text()}"
    yield Server(line.split()[-1])
    program.terminate()
    assert program.wait(timeout=60) == 0, "it ended otherwise than told"


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The default model, which knows no tools."""
    if url := os.environ.get("SLUICE_URL"):
        yield Server(url.rstrip("/"))
    else:
        yield from started(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="session")
def gguf(server) -> Gguf:
    """The default model's file, which a server has fetched by now."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    models = Path(os.environ.get("SLUICE_CACHE") or cache / "sluice") / "models"
    return Gguf(models / "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def tools_server(tmp_path_factory, gguf):
    """The same model with a chat template that shows tools."""
    scratch = tmp_path_factory.mktemp("tools-server")
    path = scratch / "tools.gguf"
    path.write_bytes(gguf.with_template(TOOLS_TEMPLATE))
    yield from started(scratch, "--model", str(path), "--model-name", "tools")
