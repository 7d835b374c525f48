"""The real command line with a real (nano) model: processes, sockets, files."""

import contextlib
import itertools
import os
import re
import subprocess
import sys
import threading

import httpx
import pytest

START_SECONDS = 90
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command_line(*arguments):
    return [sys.executable, "-m", "flashpoint", *map(str, arguments)]


def flashpoint(*arguments, timeout=120):
    """Run a command to its end."""
    return subprocess.run(
        command_line(*arguments),
        capture_output=True,
        text=True,
        timeout=timeout,
        env=ENVIRONMENT,
        check=False,
    )


class Server:
    """A `flashpoint serve` process on a free port; its stderr goes to the file `log`."""

    def __init__(self, checkpoint, log, options):
        self.log = log
        self.url = None
        self.process = subprocess.Popen(
            command_line("serve", checkpoint, "--port", 0, *options),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        self._listens_or_ended = threading.Event()
        self._copying = threading.Thread(target=self._copy_log, daemon=True)
        self._copying.start()

    def _copy_log(self):
        with self.log.open("w") as file:
            for line in self.process.stderr:
                file.write(line)
                file.flush()
                found = re.search(r"at (http://\S+:\d+)", line)
                if found and self.url is None:
                    self.url = found[1]
                    self._listens_or_ended.set()
        self._listens_or_ended.set()

    def wait_until_healthy(self):
        self._listens_or_ended.wait(START_SECONDS)
        if self.url is None:
            raise RuntimeError(f"the server did not start:\n{self.log.read_text()}")
        # One client for all: each costs a TLS context, which takes longer than a token here.
        self.client = httpx.Client(base_url=self.url, timeout=60)
        assert self.client.get("/health").status_code == 200

    def end(self):
        if self.url is not None:
            self.client.close()
        self.process.kill()
        self.process.wait(30)
        self._copying.join(30)

    def post(self, path, body):
        return self.client.post(path, json=body)

    @contextlib.contextmanager
    def stream(self, body):
        """The lines of a completion's stream, the first of them already there; leaving the block hangs up."""
        with self.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            lines = (line for line in response.iter_lines() if line)
            # The iterator is handed out whole: httpx closes a stream whose iterator is dropped.
            yield itertools.chain([next(lines)], lines)

    def metric(self, name):
        """The value of a metric; `name` includes its labels, and one never counted is 0."""
        lines = self.client.get("/metrics").text.splitlines()
        values = [float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")]
        if not values and "{" not in name:
            raise KeyError(name)
        return values[0] if values else 0.0


@contextlib.contextmanager
def serving(checkpoint, folder, *options):
    """A server, healthy when the block begins, gone when it ends. pytest shows its log where a test fails."""
    server = Server(checkpoint, folder / "server.log", options)
    try:
        server.wait_until_healthy()
        yield server
    finally:
        server.end()
        print(server.log.read_text())


@pytest.fixture(scope="session")
def nano(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints") / "nano"
    made = flashpoint("checkpoint", "init", "--preset", "nano", folder)
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="session")
def shared_server(nano, tmp_path_factory):
    with serving(nano, tmp_path_factory.mktemp("server"), "--cache-tokens", "32768") as running:
        yield running


@pytest.fixture
def server(shared_server):
    """The shared server; the part of its log that a test caused is shown where the test fails."""
    before = shared_server.log.stat().st_size
    yield shared_server
    with shared_server.log.open() as log:
        log.seek(before)
        print(log.read())
