"""Next tokens from logits, one request's choices at a time (`engine/sampling.py` has the parameters).

A row's result depends on its logits, its parameters and its position alone: never on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from flashpoint.engine.plan import Chunk, Sampled, TokenLogprob
from flashpoint.engine.sampling import SamplingParams, uniform

NEVER = float("-inf")


def sample(logits: Tensor, chunks: Sequence[Chunk], banned: Sequence[int] = ()) -> tuple[Sampled, ...]:
    """One token per row: logits fp32 [R, vocab], one sampling chunk per row.

    `banned` ids are never chosen; log-probabilities are of the logits as they came. A row with a number that
    is not finite, or with nothing left to choose from, gives an error for its request only.
    """
    finite = torch.isfinite(logits).all(-1).tolist()
    allowed = logits.clone()
    allowed[:, list(banned)] = NEVER
    greedy = allowed.argmax(-1).tolist()
    results = []
    for row, chunk in enumerate(chunks):
        params = chunk.sampling
        if params is None:
            raise ValueError(f"chunk of {chunk.request_id} does not sample")
        if not finite[row]:
            results.append(
                Sampled(chunk.request_id, error="the model produced logits that are not finite numbers")
            )
            continue
        plain = params.greedy and not _reshapes(params, chunk)
        token = greedy[row] if plain else choose(allowed[row], params, chunk)
        if token is None:
            results.append(Sampled(chunk.request_id, error="the sampling parameters exclude every token"))
            continue
        logprobs = () if params.logprobs is None else (token_logprob(logits[row], token, params.logprobs),)
        results.append(Sampled(chunk.request_id, (token,), logprobs))
    return tuple(results)


def _reshapes(params: SamplingParams, chunk: Chunk) -> bool:
    answered = len(chunk.history) - chunk.prompt_tokens
    return (
        bool(params.logit_bias)
        or params.needs_history
        or (answered < params.min_tokens and bool(params.stop_ids))
    )


def choose(logits: Tensor, params: SamplingParams, chunk: Chunk) -> int | None:
    """The token of one row: logits fp32 [vocab], in the order that `SamplingParams` documents. None when no
    token is left."""
    scores = logits.clone()
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), device=scores.device)
        scores[ids] += torch.tensor(
            list(params.logit_bias.values()), dtype=scores.dtype, device=scores.device
        )
    if params.needs_history:
        penalise(scores, params, chunk)
    answered = len(chunk.history) - chunk.prompt_tokens
    if answered < params.min_tokens and params.stop_ids:
        scores[torch.tensor(sorted(params.stop_ids), device=scores.device)] = NEVER
    peak = scores.max()
    if peak == NEVER:
        return None
    if params.greedy:
        return int(scores.argmax())
    # Relative to the best, in fp64: however low the temperature, nothing overflows but what has no chance.
    heated = (scores - peak).double() / params.temperature
    probabilities = torch.softmax(restrict(heated, params), dim=-1)
    draw = uniform(params.seed, len(chunk.history))
    cumulative = probabilities.cumsum(-1)
    # The last step of the sum may round to below 1; scale the draw instead of trusting it.
    token = int(torch.searchsorted(cumulative, draw * float(cumulative[-1]), right=True))
    return min(token, int(probabilities.nonzero()[-1]))


def penalise(scores: Tensor, params: SamplingParams, chunk: Chunk) -> None:
    """Apply penalties to scores [vocab] in place.

    Presence and frequency look at the answer so far (OpenAI); repetition looks at prompt and answer, dividing
    positive scores and multiplying negative ones.
    """
    answer = torch.from_numpy(chunk.history[chunk.prompt_tokens :].astype(np.int64)).to(scores.device)
    counts = torch.bincount(answer, minlength=len(scores)).to(scores.dtype)
    scores -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
    if params.repetition_penalty != 1.0:
        seen = torch.from_numpy(np.unique(chunk.history).astype(np.int64)).to(scores.device)
        old = scores[seen]
        scores[seen] = torch.where(old > 0, old / params.repetition_penalty, old * params.repetition_penalty)


def restrict(scores: Tensor, params: SamplingParams) -> Tensor:
    """Scores [vocab] with everything outside top-k, then top-p, then min-p at -inf. One token always stays;
    tokens of equal score at an edge stay or go by the lower id."""
    if params.top_k == 0 and params.top_p == 1.0 and params.min_p == 0.0:
        return scores
    ordered, ids = torch.sort(scores, descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if params.top_k:
        keep[params.top_k :] = False
    if params.top_p < 1.0:
        share = torch.softmax(ordered.masked_fill(~keep, NEVER).double(), dim=-1)
        keep &= share.cumsum(-1) - share < params.top_p
    if params.min_p:
        share = torch.softmax(ordered.masked_fill(~keep, NEVER).double(), dim=-1)
        keep &= share >= params.min_p * share[0]
    keep[0] = True
    restricted = torch.full_like(scores, NEVER)
    restricted[ids[keep]] = ordered[keep]
    return restricted


def token_logprob(logits: Tensor, token: int, count: int) -> TokenLogprob:
    """Log-probabilities of `token` and of the `count` best, from raw logits [vocab]."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    best = torch.topk(logprobs, min(count, len(logprobs)))
    top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return TokenLogprob(token, float(logprobs[token]), top)
