"""`make demo`: makes a nano checkpoint, serves it, replays agent sessions against it, draws the curve."""

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

DEMO = Path("demo")
FLASHPOINT = [sys.executable, "-m", "flashpoint"]
START_SECONDS = 60


def run(*arguments: object) -> None:
    """Run a flashpoint command, shown as a user would type it; end the demo when it fails."""
    words = [str(a) for a in arguments]
    print(f"\n$ flashpoint {' '.join(words)}", flush=True)
    subprocess.run([*FLASHPOINT, *words], check=True)


def free_port() -> int:
    """A port nobody listens on right now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def server(checkpoint: Path, port: int):
    """`flashpoint serve` for the length of the block, drained at its end."""
    arguments = ["serve", str(checkpoint), "--port", str(port), "--cache-tokens", "65536", "--threads", "1"]
    print(f"\n$ flashpoint {' '.join(arguments)} &", flush=True)
    with open(DEMO / "server.log", "w") as log:
        process = subprocess.Popen([*FLASHPOINT, *arguments], stderr=log)
    try:
        wait_until_healthy(process, port)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def wait_until_healthy(process: subprocess.Popen, port: int) -> None:
    """Return once /health answers 200; RuntimeError with the log's place when it never does."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5),
        ):
            return
        time.sleep(0.2)
    raise RuntimeError(f"the server did not start; see {DEMO / 'server.log'}")


def main() -> None:
    """Leaves everything it made in demo/."""
    shutil.rmtree(DEMO, ignore_errors=True)
    DEMO.mkdir()
    checkpoint, corpus, archive, page = (DEMO / n for n in ("nano", "corpus.json", "run", "report.html"))
    began = time.monotonic()
    run("checkpoint", "init", "--preset", "nano", checkpoint)
    run("checkpoint", "inspect", checkpoint)
    run("sessions", "generate", "--out", corpus, "--sessions", 16, "--scale", "1/128", "--max-turns", 40)
    run("sessions", "stats", corpus)
    port = free_port()
    with server(checkpoint, port):
        replay = ["replay", "--url", f"http://127.0.0.1:{port}", "--corpus", corpus, "--out", archive]
        replay += ["--concurrency", "1,2,4,8", "--duration", 12, "--warmup-requests", 2]
        # Agents wait for tools and people for minutes; a demo does not.
        run(*replay, "--session-idle-cap", 0.2, "--system-idle-cap", 0.2)
    run("report", archive, "--out", page)
    run("claim", "vera-rubin-58x")
    print(f"\ndone in {time.monotonic() - began:.0f} s; open {page.resolve()}")


if __name__ == "__main__":
    main()
