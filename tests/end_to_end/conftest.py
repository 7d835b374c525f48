"""The real command line with a real (nano) model: processes, sockets, files."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from flashpoint.models.deepseek_v41.init import init_checkpoint

START_SECONDS = 90
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def flashpoint(*arguments, timeout=120):
    """Run a command to its end."""
    command = [sys.executable, "-m", "flashpoint", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=ENVIRONMENT, check=False
    )


@dataclass
class Server:
    """A `flashpoint serve` process."""

    url: str
    process: subprocess.Popen
    log: Path

    def post(self, path, body, **kwargs):
        return httpx.post(f"{self.url}{path}", json=body, timeout=60, **kwargs)

    def metric(self, name):
        """The value of a metric without labels."""
        for line in httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[-1])
        raise KeyError(name)


@contextlib.contextmanager
def serving(checkpoint, folder, *options):
    """A server on a free port, healthy when the block begins, gone when it ends."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    log = folder / f"server-{port}.log"
    command = [sys.executable, "-m", "flashpoint", "serve", str(checkpoint), "--port", str(port), *options]
    with log.open("w") as stream:
        process = subprocess.Popen(command, stderr=stream, stdout=stream, env=ENVIRONMENT)
    server = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        _wait_until_healthy(server)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)


def _wait_until_healthy(server):
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{server.url}/health", timeout=5).status_code == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the server did not start:\n{server.log.read_text()}")


@pytest.fixture(scope="session")
def nano(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints") / "nano"
    init_checkpoint(preset="nano", out=folder)
    return folder


@pytest.fixture(scope="session")
def server(nano, tmp_path_factory):
    with serving(nano, tmp_path_factory.mktemp("server"), "--cache-tokens", "32768") as running:
        yield running
