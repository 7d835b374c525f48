"""From an engine and a checkpoint to a process that serves, drains on SIGTERM and ends with a code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import uvicorn
import uvloop
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from flashpoint.engine.service import EngineService
from flashpoint.errors import CheckpointError, InvalidValue
from flashpoint.models.deepseek_v41.chat import renderer_for
from flashpoint.server.app import create_app
from flashpoint.server.config import ServerConfig
from flashpoint.server.context import ModelInfo, ServerContext
from flashpoint.server.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_BACKLOG = 4096
_LAST_WRITE_SECONDS = 1.0


def serve(engine: EngineService, checkpoint: Path, config: ServerConfig) -> int:
    """Serve a checkpoint's model until SIGTERM or SIGINT; the process's exit code.

    `engine` is not started yet; it is started and stopped here. Raises CheckpointError for a bad
    tokenizer and InvalidValue for an address that cannot be listened on.
    """
    logging.basicConfig(
        level=config.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    tokenizer = Tokenizer.from_checkpoint(checkpoint, config.tokenizer_cache_bytes)
    if len(tokenizer) > engine.vocab_size:
        problem = (
            f"tokenizer.json has {len(tokenizer)} ids, but the model's vocab_size is {engine.vocab_size}"
        )
        raise CheckpointError(checkpoint, [problem])
    renderer = renderer_for(tokenizer.token_id)
    model = ModelInfo(config.served_model_name or checkpoint.resolve().name, str(checkpoint.resolve()))
    app = create_app(engine, tokenizer, renderer, model, config)
    raise_file_limit()
    with listen(config.host, config.port) as sock:
        host, port = sock.getsockname()[:2]
        log.info(
            "serving %s at http://%s:%d, chat template %s, context %d tokens",
            model.name,
            f"[{host}]" if ":" in host else host,
            port,
            renderer.name,
            engine.max_context,
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve_until_signal(engine, app, sock))
    return 0


async def _serve_until_signal(engine: EngineService, app: Starlette, sock: socket.socket) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            log.warning("%s again: ending at once", number.name)
            logging.shutdown()
            # Nothing may hold this up: not a hung step, not a thread that does not return.
            os._exit(128 + number)
        log.info("%s: draining; once more to end at once", number.name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    await run_server(engine, app, sock, stop)


async def run_server(engine: EngineService, app: Starlette, sock: socket.socket, stop: asyncio.Event) -> None:
    """Start the engine and answer requests until `stop`, then drain and stop both.

    Draining: new requests get 503 while running ones have `drain_seconds`; what is left then is
    aborted and ends with an error.
    """
    context: ServerContext = app.state.context
    config = context.config
    engine.add_observer(lambda record: context.metrics.step.observe(record.seconds))
    engine.start()
    server = _Server(_uvicorn_config(app, config))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            await _drain(engine, context, server)
    finally:
        stopping.cancel()
        server.should_exit = True
        await serving
        await engine.stop()


async def _drain(engine: EngineService, context: ServerContext, server: uvicorn.Server) -> None:
    lifecycle = context.lifecycle
    lifecycle.draining = True
    if not await lifecycle.drained(context.config.drain_seconds):
        log.warning(
            "%d request(s) not finished after %g s: aborting", lifecycle.active, context.config.drain_seconds
        )
        await engine.stop()
        if not await lifecycle.drained(_LAST_WRITE_SECONDS):
            # Clients that do not read.
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            await lifecycle.drained(_LAST_WRITE_SECONDS)
    log.info("drained")


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to an address. Raises InvalidValue naming `host` or `port`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise InvalidValue("host", host, f"an address of this machine: {error.strerror}") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise InvalidValue(
            "port", port, f"a port that can be listened on at {host}: {error.strerror}"
        ) from error
    return sock


def raise_file_limit() -> None:
    """Allow as many open connections as the hard limit lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers; they would stop listening before requests are drained."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _uvicorn_config(app: Starlette, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_protocol(config.request_seconds),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=config.keep_alive_seconds,  # type: ignore[arg-type]  # it is a timer's delay
        timeout_graceful_shutdown=1,
    )


def _protocol(request_seconds: float) -> type[HttpToolsProtocol]:
    """uvicorn's protocol, but a connection that never sends a whole header is closed in the end."""

    class PatientProtocol(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.loop.call_later(request_seconds, self._close_if_silent)

        def _close_if_silent(self) -> None:
            header_came = self.cycle is not None
            if not header_came and not self.transport.is_closing():
                self.transport.close()

    return PatientProtocol
