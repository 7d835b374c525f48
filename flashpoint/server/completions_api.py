"""POST /v1/completions: raw prompts, as text or token ids, to OpenAI's completion objects."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flashpoint.engine.plan import TokenLogprob
from flashpoint.server.context import ServerContext
from flashpoint.server.generation import Delta, Job
from flashpoint.server.limits import check_model, refuse_hopeless, resolve_max_tokens
from flashpoint.server.protocol import CompletionRequest, parse_prompts, parse_request
from flashpoint.server.respond import Answer, Prepared
from flashpoint.server.tokenizer import Tokenizer

# OpenAI's default of this endpoint.
DEFAULT_MAX_TOKENS = 16


async def prepare_completion(context: ServerContext, request_id: str, body: Any) -> Prepared:
    """Check a body and encode its prompts. Raises ApiError or FlashpointError naming the field."""
    request = parse_request(CompletionRequest, body, context.ignored_fields)
    check_model(context, request.model)
    vocab_size = context.engine.vocab_size
    prompts = parse_prompts(request.prompt, context.config.max_prompts, vocab_size)

    def encode() -> list[npt.NDArray[np.int32]]:
        return [_encode(context, prompt) for prompt in prompts]

    characters = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
    encoded = await context.tokenize(characters, encode)
    jobs = [_job(context, request, prompt) for prompt in encoded]
    shape = CompletionShape(request_id, context.model.name, context.tokenizer, request.logprobs is not None)
    include_usage = bool(request.stream_options and request.stream_options.include_usage)
    return Prepared(jobs, shape, bool(request.stream), include_usage)


def _job(context: ServerContext, request: CompletionRequest, prompt: npt.NDArray[np.int32]) -> Job:
    sampling = request.sampling(
        resolve_max_tokens(context, len(prompt), request.max_tokens, DEFAULT_MAX_TOKENS),
        request.logprobs,
        context.tokenizer.eos_ids,
        context.engine.vocab_size,
    )
    return Job(prompt, sampling, request.stop_strings)


def _encode(context: ServerContext, prompt: str | list[int]) -> npt.NDArray[np.int32]:
    if isinstance(prompt, str):
        refuse_hopeless(context, prompt)
        return context.tokenizer.encode(prompt)
    return np.array(prompt, dtype=np.int32)


class CompletionShape:
    """OpenAI's completion objects."""

    def __init__(self, request_id: str, model: str, tokenizer: Tokenizer, logprobs: bool) -> None:
        self._base = {
            "id": request_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        # Characters written so far per choice: `text_offset` counts them.
        self._written: dict[int, int] = {}

    def chunk(self, index: int, delta: Delta) -> dict[str, Any]:
        """A chunk has the form of the whole response."""
        return {**self._base, "choices": [self._choice(index, delta)]}

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The chunk without choices that `stream_options.include_usage` asks for."""
        return {**self._base, "choices": [], "usage": usage}

    def whole(self, answers: Sequence[Answer], usage: dict[str, Any]) -> dict[str, Any]:
        """The response that is not streamed."""
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        return {**self._base, "choices": choices, "usage": usage}

    def _choice(self, index: int, part: Delta | Answer) -> dict[str, Any]:
        logprobs = self._logprobs_object(index, part.content_logprobs) if self._logprobs else None
        return {"index": index, "text": part.content, "logprobs": logprobs, "finish_reason": part.finish}

    def _logprobs_object(self, index: int, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        tokens = [self._spelled(entry.token) for entry in entries]
        offset = self._written.get(index, 0)
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        self._written[index] = offset
        return {
            "tokens": tokens,
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [
                {self._spelled(token): logprob for token, logprob in entry.top} for entry in entries
            ],
            "text_offset": offsets,
        }

    def _spelled(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode(errors="replace")
