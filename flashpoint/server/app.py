"""The ASGI application: which path does what."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from flashpoint.engine.service import EngineClient
from flashpoint.errors import FlashpointError
from flashpoint.models.chat import ChatRenderer
from flashpoint.server.chat_api import prepare_chat
from flashpoint.server.completions_api import prepare_completion
from flashpoint.server.config import ServerConfig
from flashpoint.server.context import ModelInfo, ServerContext
from flashpoint.server.errors import ApiError, from_flashpoint
from flashpoint.server.http import ClientGoneError, read_json, send_error, until_disconnect
from flashpoint.server.respond import Prepared, respond
from flashpoint.server.tokenizer import Tokenizer

log = logging.getLogger(__name__)

Prepare = Callable[[ServerContext, str, Any], Awaitable[Prepared]]


def create_app(
    engine: EngineClient,
    tokenizer: Tokenizer,
    renderer: ChatRenderer,
    model_info: ModelInfo,
    config: ServerConfig,
) -> Starlette:
    """The application for one engine. `app.state.context` is its ServerContext."""
    context = ServerContext(engine, tokenizer, renderer, model_info, config)
    app = Starlette(
        routes=[
            Route(
                "/v1/chat/completions",
                GenerationEndpoint(context, "chatcmpl", "messages", prepare_chat),
                methods=["POST"],
            ),
            Route(
                "/v1/completions",
                GenerationEndpoint(context, "cmpl", "prompt", prepare_completion),
                methods=["POST"],
            ),
            Route("/v1/models", _models(context)),
            Route("/health", _health(context)),
            Route("/metrics", _metrics(context)),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _internal_error},
    )
    app.state.context = context
    return app


class GenerationEndpoint:
    """Reads a request, prepares it, runs it, and turns every failure into an error object."""

    def __init__(self, context: ServerContext, id_prefix: str, prompt_param: str, prepare: Prepare) -> None:
        self._context = context
        self._id_prefix = id_prefix
        self._prompt_param = prompt_param
        self._prepare = prepare

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        arrived = time.perf_counter()
        request_id = f"{self._id_prefix}-{secrets.token_hex(12)}"
        try:
            with self._context.lifecycle.request():
                body = await self._read(scope, receive)
                await until_disconnect(receive, self._answer(request_id, body, arrived, send))
        except ClientGoneError:
            log.debug("request id=%s: the client left", request_id)
        except FlashpointError as error:
            await self._refuse(send, request_id, from_flashpoint(error, self._prompt_param))
        except ApiError as error:
            await self._refuse(send, request_id, error)

    async def _read(self, scope: Scope, receive: Receive) -> Any:
        config = self._context.config
        with self._context.metrics.in_flight.labels("preparing").track_inprogress():
            return await read_json(scope, receive, config.max_body_bytes, config.request_seconds)

    async def _answer(self, request_id: str, body: Any, arrived: float, send: Send) -> None:
        with self._context.metrics.in_flight.labels("preparing").track_inprogress():
            prepared = await self._prepare(self._context, request_id, body)
        await respond(self._context, request_id, prepared, arrived, send)

    async def _refuse(self, send: Send, request_id: str, error: ApiError) -> None:
        self._context.metrics.refused.labels(error.code).inc()
        log.info("refused id=%s status=%d code=%s: %s", request_id, error.status, error.code, error.message)
        await send_error(send, error, request_id)


def _models(context: ServerContext) -> Callable[[Request], Awaitable[Response]]:
    async def models(_: Request) -> Response:
        entry = {
            "id": context.model.name,
            "object": "model",
            "created": context.model.created,
            "owned_by": "flashpoint",
            "max_model_len": context.engine.max_context,
            "root": context.model.root,
        }
        return _json(200, {"object": "list", "data": [entry]})

    return models


def _health(context: ServerContext) -> Callable[[Request], Awaitable[Response]]:
    async def health(_: Request) -> Response:
        """200 only while tokens can flow."""
        stats = context.engine.stats()
        if not context.engine.alive:
            status = "engine_dead"
        elif stats.seconds_since_progress > context.config.stall_seconds:
            status = "engine_stalled"
        elif context.lifecycle.draining:
            status = "draining"
        else:
            status = "ok"
        report = {
            "status": status,
            "waiting": stats.waiting,
            "running": stats.running,
            "seconds_since_progress": stats.seconds_since_progress,
        }
        return _json(200 if status == "ok" else 503, report)

    return health


def _metrics(context: ServerContext) -> Callable[[Request], Awaitable[Response]]:
    async def metrics(_: Request) -> Response:
        return Response(context.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    return metrics


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and wrong methods, in the shape of every other error."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        api_error = ApiError(405, f"{what}: this path accepts {allowed}", code="method_not_allowed")
    else:
        api_error = ApiError(404, f"{what}: no such path", code="not_found")
    return Response(api_error.body(), error.status_code, error.headers, media_type="application/json")


async def _internal_error(request: Request, error: Exception) -> Response:
    """A fault of ours; the server logs it with its traceback."""
    api_error = ApiError(500, f"internal error: {type(error).__name__}", code="internal_error")
    return Response(api_error.body(), 500, media_type="application/json")


def _json(status: int, content: object) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")
