"""Token choice: each parameter does what it says, and a row never depends on its neighbours."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.engine.plan import Chunk
from flashpoint.engine.sampling import SamplingParams, uniform
from flashpoint.errors import InvalidValue
from flashpoint.executor.sampler import choose, restrict, sample

VOCAB = 40


def chunk(params, history=(5, 6, 7), prompt_tokens=3):
    ids = np.array(history, dtype=np.int32)
    return Chunk("r", 0, len(ids) - 1, ids, np.zeros(1, np.int32), prompt_tokens, params)


def logits(seed=0, vocab=VOCAB):
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 3


def kept(scores):
    return set(torch.nonzero(torch.isfinite(scores)).flatten().tolist())


def test_greedy_takes_the_best_and_the_lower_id_of_equals():
    row = torch.zeros(VOCAB)
    row[[7, 9]] = 2.0
    assert sample(row[None].clone(), [chunk(SamplingParams(temperature=0))])[0].tokens == (7,)


def test_logit_bias_can_force_and_forbid():
    row = logits()
    assert choose(row, SamplingParams(temperature=0, logit_bias={3: 100.0}), chunk(None)) == 3
    best = int(row.argmax())
    assert choose(row, SamplingParams(temperature=0, logit_bias={best: -100.0}), chunk(None)) != best


def test_stop_ids_wait_for_min_tokens():
    row = logits()
    best = int(row.argmax())
    params = SamplingParams(temperature=0, stop_ids=frozenset({best}), min_tokens=2, max_tokens=5)
    early = sample(row[None].clone(), [chunk(params, (1, 2, 3, 4), prompt_tokens=3)])[0].tokens[0]
    late = sample(row[None].clone(), [chunk(params, (1, 2, 3, 4, 5), prompt_tokens=3)])[0].tokens[0]
    assert early != best
    assert late == best


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 999), k=st.integers(1, VOCAB), p=st.floats(0.05, 1.0), m=st.floats(0.0, 1.0))
def test_restrictions_keep_what_their_definitions_keep(seed, k, p, m):
    row = logits(seed)
    order = torch.sort(row, descending=True, stable=True).indices.tolist()
    share = torch.softmax(row.double(), -1)
    assert kept(restrict(row, SamplingParams(top_k=k))) == set(order[:k])
    expected, total = set(), 0.0
    for token in order:
        if total >= p:
            break
        expected.add(token)
        total += float(share[token])
    nucleus = kept(restrict(row, SamplingParams(top_p=p)))
    assert len(nucleus ^ expected) <= 1  # a sum may land on p itself
    assert nucleus == set(order[: len(nucleus)])
    limit = m * float(share.max())
    assert kept(restrict(row, SamplingParams(min_p=m))) == {t for t in order if float(share[t]) >= limit} | {
        order[0]
    }


def test_penalties_count_the_answer_and_repetition_also_the_prompt():
    row = torch.full((VOCAB,), 1.0)
    history, prompt = (5, 5, 8, 9, 9, 9), 3

    def scores(**kw):
        from flashpoint.executor.sampler import penalise

        out = row.clone()
        params = SamplingParams(**kw)
        penalise(out, params, chunk(params, history, prompt))
        return out

    frequency = scores(frequency_penalty=0.5)
    assert math.isclose(frequency[9], 1.0 - 1.5) and frequency[5] == 1.0
    presence = scores(presence_penalty=0.5)
    assert presence[9] == 0.5 and presence[5] == 1.0
    repetition = scores(repetition_penalty=2.0)
    assert repetition[9] == 0.5 and repetition[5] == 0.5 and repetition[8] == 0.5 and repetition[1] == 1.0


def test_draws_follow_the_distribution():
    row = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    counts = np.zeros(4)
    for seed in range(4000):
        counts[choose(row, SamplingParams(seed=seed), chunk(None))] += 1
    assert np.abs(counts / 4000 - [0.5, 0.3, 0.15, 0.05]).max() < 0.03


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(-(2**63), 2**63 - 1), others=st.integers(0, 5), place=st.integers(0, 5))
def test_a_row_is_the_same_alone_and_in_any_batch(seed, others, place):
    params = SamplingParams(seed=seed, temperature=0.9, top_p=0.9)
    alone = sample(logits(1)[None].clone(), [chunk(params)])[0].tokens
    rows = [logits(i + 2) for i in range(others)]
    chunks = [chunk(SamplingParams(seed=i)) for i in range(others)]
    place = min(place, others)
    rows.insert(place, logits(1))
    chunks.insert(place, chunk(params))
    assert sample(torch.stack(rows), chunks)[place].tokens == alone


def test_draws_differ_by_seed_and_position():
    draws = {uniform(seed, position) for seed in range(20) for position in range(20)}
    assert len(draws) == 400
    assert all(0 <= d < 1 for d in draws)
    assert uniform(-1, 3) == uniform(-1, 3) != uniform(1, 3)


def test_logprobs_are_of_the_raw_logits():
    row = logits()
    params = SamplingParams(temperature=0, logprobs=3, logit_bias={0: 100.0})
    result = sample(row[None].clone(), [chunk(params)])[0]
    expected = torch.log_softmax(row, -1)
    assert result.tokens == (0,)
    assert math.isclose(result.logprobs[0].logprob, float(expected[0]), rel_tol=1e-5)
    assert [t for t, _ in result.logprobs[0].top] == torch.topk(expected, 3).indices.tolist()


def test_numbers_that_are_not_finite_fail_their_row_only():
    rows = torch.stack([logits(0), logits(1), logits(2)])
    rows[1, 4] = float("nan")
    results = sample(rows, [chunk(SamplingParams(temperature=0))] * 3)
    assert results[1].error and not results[1].tokens
    assert results[0].tokens and results[2].tokens


def test_banned_ids_are_never_chosen():
    row = logits()
    best = int(row.argmax())
    assert sample(row[None].clone(), [chunk(SamplingParams(temperature=0))], [best])[0].tokens != (best,)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 2.0),
        ("presence_penalty", 3.0),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0.0),
        ("max_tokens", 0),
        ("logprobs", 21),
        ("min_tokens", 17),
    ],
)
def test_parameters_out_of_range_name_themselves(field, value):
    with pytest.raises(InvalidValue) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("temperature", [1e-40, 1e-9, 0.001])
def test_a_tiny_temperature_takes_the_best_token_that_is_allowed(temperature):
    row = logits()
    best, second = torch.topk(row, 2).indices.tolist()
    params = SamplingParams(temperature=temperature, top_p=0.9, seed=3)
    assert sample(row[None].clone(), [chunk(params)])[0].tokens == (best,)
    assert sample(row[None].clone(), [chunk(params)], [best])[0].tokens == (second,)


def test_nothing_left_to_choose_is_an_error_of_that_request():
    params = SamplingParams(stop_ids=frozenset(range(VOCAB)), min_tokens=1)
    result = sample(logits()[None], [chunk(params)])[0]
    assert result.error and not result.tokens


def test_banned_ids_do_not_change_logprobs():
    row = logits()
    best = int(row.argmax())
    result = sample(row[None].clone(), [chunk(SamplingParams(temperature=0, logprobs=1))], [best])[0]
    assert result.logprobs[0].top[0][0] == best
