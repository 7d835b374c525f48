"""A server as a process: start, signals, exit codes, and ten thousand idle connections."""

from __future__ import annotations

import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.server.harness import TINY

ROOT = Path(__file__).parents[2]
COMPLETIONS = "/v1/completions"
LONG = {"prompt": "x", "max_tokens": 300, "ignore_eos": True}


class ServerProcess:
    """Collects stderr; knows its URL once it listens."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "tests.server.serve_process", str(TINY), *options]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._listening = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"at (http://\S+:\d+)", line)
            if found:
                self.url = found[1]
                self._listening.set()

    def wait_until_up(self) -> None:
        assert self._listening.wait(30), self.log
        assert httpx.get(f"{self.url}/health", timeout=10).status_code == 200

    def wait(self, seconds: float = 15) -> int:
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    @property
    def log(self) -> str:
        return "".join(self.lines)


@contextmanager
def serving(*options: str) -> Iterator[ServerProcess]:
    server = ServerProcess("port=0", *options)
    try:
        server.wait_until_up()
        yield server
    finally:
        server.process.kill()
        server.process.wait()


class Client(threading.Thread):
    """One request in the background."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._url, self._body = url, body
        self.response: httpx.Response | None = None
        self.failure: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.response = httpx.post(f"{self._url}{COMPLETIONS}", json=self._body, timeout=30)
        except httpx.HTTPError as error:
            self.failure = error


def wait_for_running(server: ServerProcess) -> None:
    deadline = time.monotonic() + 10
    while httpx.get(f"{server.url}/health").json()["running"] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_and_exits_0(number: signal.Signals) -> None:
    with serving("step_seconds=0.005", "drain_seconds=20", "served_model_name=big") as server:
        client = Client(server.url, LONG)
        wait_for_running(server)
        server.process.send_signal(number)
        deadline = time.monotonic() + 15
        while httpx.get(f"{server.url}/health").json()["status"] != "draining":
            assert time.monotonic() < deadline
        refused = httpx.post(f"{server.url}{COMPLETIONS}", json=LONG)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        assert refused.headers["retry-after"] == "20"
        client.join(20)
        assert client.response is not None and client.response.status_code == 200
        assert client.response.json()["model"] == "big"
        assert client.response.json()["usage"]["completion_tokens"] == LONG["max_tokens"]
        assert server.wait() == 0, server.log
    assert "Traceback" not in server.log


def test_drain_ends_after_its_time() -> None:
    with serving("step_seconds=0.02", "drain_seconds=0.5") as server:
        clients = [Client(server.url, {**LONG, "stream": stream}) for stream in (True, False)]
        wait_for_running(server)
        server.process.terminate()
        assert server.wait() == 0, server.log
        for client in clients:
            client.join(10)
            assert client.response is not None, client.failure
            assert "shutting down" in client.response.text
            assert "[DONE]" not in client.response.text
        assert clients[1].response is not None and clients[1].response.status_code == 503
    assert "Traceback" not in server.log


def test_drain_does_not_wait_for_a_client_that_does_not_read() -> None:
    with serving("drain_seconds=0.2") as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect((host, int(port)))
            fields = {"prompt": ["a", "b"], "max_tokens": 4000, "stream": True, "logprobs": 20}
            body = orjson.dumps({**fields, "ignore_eos": True})
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            sock.sendall(head.encode() + body)
            wait_for_running(server)
            server.process.terminate()
            assert server.wait() == 0, server.log
    assert "Traceback" not in server.log


def test_second_signal_ends_at_once() -> None:
    with serving("step_seconds=0.05", "drain_seconds=60") as server:
        client = Client(server.url, LONG)
        wait_for_running(server)
        server.process.terminate()
        time.sleep(0.3)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)
        assert server.wait(10) == 128 + signal.SIGINT
        client.join(5)
        assert client.failure is not None


def test_port_in_use_is_said_clearly() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = ServerProcess(f"port={port}")
        assert server.wait(30) == 2
    assert f"port: got {port}; expected a port that can be listened on" in server.log
    assert "Address already in use" in server.log
    assert "Traceback" not in server.log


def test_unknown_host_is_said_clearly() -> None:
    server = ServerProcess("port=0", "host=no.such.host.invalid")
    assert server.wait(30) == 2
    assert "host: got 'no.such.host.invalid'" in server.log


def test_tokenizer_larger_than_the_vocabulary_is_refused() -> None:
    server = ServerProcess("port=0", "vocab_size=500")
    assert server.wait(30) == 2
    assert "tokenizer.json has 512 ids, but the model's vocab_size is 500" in server.log


IDLE_CLIENT = """
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
held = []
for number in range(count):
    sock = socket.create_connection((host, port), timeout=20)
    if number % 2:
        sock.sendall(b"POST /v1/completions HTTP/1.1\\r\\nhost: x\\r\\ncontent-le")
    held.append(sock)
print("connected", flush=True)
sys.stdin.read()
"""


def test_10000_idle_connections_hold_nobody_up() -> None:
    count = 10_000
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < count + 200:
        pytest.skip(f"this machine's hard limit of open files is below {count + 200}")
    with serving("request_seconds=300") as server:
        host, port = server.url.removeprefix("http://").split(":")
        command = [sys.executable, "-c", IDLE_CLIENT, host, port, str(count)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as idle:
            assert idle.stdout is not None
            assert idle.stdout.readline() == "connected\n"
            started = time.monotonic()
            response = httpx.post(
                f"{server.url}{COMPLETIONS}", json={"prompt": "x", "max_tokens": 5}, timeout=10
            )
            assert response.status_code == 200
            assert time.monotonic() - started < 10
            descriptors = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
            assert descriptors >= count
            idle.communicate("")
        server.process.terminate()
        assert server.wait() == 0, server.log
