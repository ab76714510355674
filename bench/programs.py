"""The programs that are compared: how each is started, and what it prints."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

BENCH = Path(__file__).parent
REPOSITORY = BENCH.parent
# These pin a kernel and a cache size that may be wrong for this machine.
OPENBLAS_TUNING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
# No busy moment of the machine ends a request.
BUSY = ("--plugin-call-ms", 5000)
# A server that is not there by then does not come.
START_S = 120


class Failed(Exception):
    """A program that does not do what it is asked."""


@dataclass
class Programs:
    """Paths of what is there; None is left out of the comparison."""

    sluice: Path
    native: Path | None
    mlx_python: Path | None
    openblas: Path | None
    llama_python: Path | None
    f32_model: Path | None
    # Every command that was run, for the reader.
    commands: list[str] = field(default_factory=list)

    def run(self, command: list, environment: dict[str, str] | None = None) -> dict:
        """The JSON on the last line of what a command prints."""
        command = [str(part) for part in command]
        shown = " ".join(self.shown(part) for part in command)
        if shown not in self.commands:
            self.commands.append(shown)
        print(f"  {shown}", file=sys.stderr, flush=True)
        done = subprocess.run(command, env=environment or plain(), stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise Failed(f"exit code {done.returncode}: {shown}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def shown(self, part: str) -> str:
        """A part of a command as somebody else would type it."""
        if part.startswith("http://"):
            return "URL"
        names = {
            str(self.sluice): "sluice",
            str(self.native): "native_chain",
            str(self.mlx_python): "python",
            str(self.llama_python): "python",
            str(self.f32_model): "F32_FOLDER",
        }
        path = Path(part)
        if path.is_absolute() and path.is_relative_to(REPOSITORY):
            names.setdefault(part, str(path.relative_to(REPOSITORY)))
        elif path.suffix == ".gguf":
            names[part] = path.name
        return names.get(part, part)

    def bench(self, *arguments: object, program: Path | None = None) -> dict:
        """`sluice bench`, or another program that has the same command."""
        return self.run([program or self.sluice, "bench", "--json", *arguments])

    def mlx(self, script: str, *arguments: object, blas: bool) -> dict:
        """A script of this folder with mlx-lm, with OpenBLAS or as installed."""
        command = [self.mlx_python, BENCH / script, *arguments]
        return self.run(command, self.openblas_environment() if blas else plain())

    def openblas_environment(self) -> dict[str, str]:
        environment = {k: v for k, v in plain().items() if k not in OPENBLAS_TUNING}
        if self.openblas:
            environment["LD_PRELOAD"] = str(self.openblas)
        return environment

    @contextmanager
    def serving(self, *arguments: object, data: Path):
        """The address of a running `sluice serve`."""
        command = [self.sluice, "serve", "--port", 0, "--data", data, *BUSY, *arguments]
        with process([str(part) for part in command], plain(), stdout=subprocess.PIPE) as running:
            for line in running.stdout:
                if line.startswith("listening on "):
                    yield line.split()[-1]
                    return
            raise Failed(f"sluice serve does not start: {arguments}")

    @contextmanager
    def mlx_serving(self):
        """The address of a running `mlx_lm.server` with OpenBLAS."""
        port = free_port()
        command = [self.mlx_python, "-m", "mlx_lm", "server", "--model", self.f32_model]
        command += ["--host", "127.0.0.1", "--port", port, "--log-level", "ERROR"]
        command = [str(part) for part in command]
        url = f"http://127.0.0.1:{port}"
        with process(command, self.openblas_environment(), stdout=subprocess.DEVNULL) as running:
            await_answer(f"{url}/health", running)
            yield url


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def plain() -> dict[str, str]:
    """The environment without what would change what is measured."""
    return {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("SLUICE_")}


@contextmanager
def process(command: list[str], environment: dict[str, str], stdout: int):
    """A program that runs until the end of the block."""
    running = subprocess.Popen(
        command, env=environment, stdout=stdout, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def await_answer(url: str, running: subprocess.Popen) -> None:
    for _ in range(START_S * 5):
        if running.poll() is not None:
            raise Failed(f"the server of {url} ended with exit code {running.returncode}")
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.2)
    raise Failed(f"nothing answers at {url}")
