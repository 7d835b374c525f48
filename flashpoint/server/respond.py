"""Runs the jobs of one API request and writes their answers, streamed or whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
from starlette.types import Send

from flashpoint.engine.plan import TokenLogprob
from flashpoint.server.context import ServerContext
from flashpoint.server.errors import ApiError
from flashpoint.server.generation import Delta, Generation, Job
from flashpoint.server.http import DONE, send_event, send_json, start_stream

Merge = asyncio.Queue[tuple[int, Delta | Exception]]


@dataclass(slots=True)
class Answer:
    """A whole answer, put together from its deltas."""

    reasoning: str = ""
    content: str = ""
    reasoning_logprobs: list[TokenLogprob] = field(default_factory=list)
    content_logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None

    def add(self, delta: Delta) -> None:
        """Append what a delta brought."""
        self.reasoning += delta.reasoning
        self.content += delta.content
        self.reasoning_logprobs += delta.reasoning_logprobs
        self.content_logprobs += delta.content_logprobs
        self.finish = delta.finish


class Shape(Protocol):
    """How an endpoint writes its answers."""

    def chunk(self, index: int, delta: Delta) -> dict[str, Any]:
        """One streamed object with one choice."""
        ...

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The last streamed object, without choices."""
        ...

    def whole(self, answers: Sequence[Answer], usage: dict[str, Any]) -> dict[str, Any]:
        """The response that is not streamed."""
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request, ready to run. The answer's choice `i` is job `i`'s."""

    jobs: Sequence[Job]
    shape: Shape
    stream: bool
    include_usage: bool


async def respond(
    context: ServerContext, request_id: str, prepared: Prepared, arrived: float, send: Send
) -> None:
    """Submit every job and write the answers.

    Raises what the engine raises on submission, and ApiError for failures before anything was written; later
    ones become an error event, after which the stream ends without `[DONE]`.
    """
    generations: list[Generation] = []
    try:
        for index, job in enumerate(prepared.jobs):
            engine_id = request_id if len(prepared.jobs) == 1 else f"{request_id}-{index}"
            generations.append(Generation(context, engine_id, job, arrived))
        if prepared.stream:
            await _stream(request_id, prepared, generations, send)
        else:
            await _whole(request_id, prepared, generations, send)
    finally:
        for generation in generations:
            generation.close()


async def _stream(request_id: str, prepared: Prepared, generations: list[Generation], send: Send) -> None:
    await start_stream(send, request_id)
    shape = prepared.shape
    try:
        async with aclosing(_merged(generations)) as deltas:
            async for index, delta in deltas:
                chunk = shape.chunk(index, delta)
                if prepared.include_usage:
                    chunk["usage"] = None
                await send_event(send, orjson.dumps(chunk))
    except ApiError as error:
        await send_event(send, error.body(), last=True)
        return
    if prepared.include_usage:
        await send_event(send, orjson.dumps(shape.usage_chunk(_usage(generations))))
    await send({"type": "http.response.body", "body": DONE})


async def _whole(request_id: str, prepared: Prepared, generations: list[Generation], send: Send) -> None:
    answers = [Answer() for _ in generations]
    async with aclosing(_merged(generations)) as deltas:
        async for index, delta in deltas:
            answers[index].add(delta)
    body = orjson.dumps(prepared.shape.whole(answers, _usage(generations)))
    await send_json(send, 200, body, headers={"x-request-id": request_id})


async def _merged(generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, Delta], None]:
    """Deltas of all generations as they come. A slow reader slows every one of them, in bounded memory."""
    if len(generations) == 1:
        async for delta in generations[0].deltas():
            yield 0, delta
        return
    queue: Merge = asyncio.Queue(maxsize=1)
    tasks = [asyncio.create_task(_pump(*numbered, queue)) for numbered in enumerate(generations)]
    try:
        running = len(tasks)
        while running:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            running -= item.finish is not None
            yield index, item
    finally:
        for task in tasks:
            task.cancel()


async def _pump(index: int, generation: Generation, queue: Merge) -> None:
    try:
        async for delta in generation.deltas():
            await queue.put((index, delta))
    except Exception as error:
        await queue.put((index, error))


def _usage(generations: Sequence[Generation]) -> dict[str, Any]:
    """OpenAI's usage object, summed over the prompts of a request."""
    prompt = sum(generation.prompt_tokens for generation in generations)
    cached = sum(generation.cached_tokens for generation in generations)
    completion = sum(generation.completion_tokens for generation in generations)
    reasoning = sum(generation.reasoning_tokens for generation in generations)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
