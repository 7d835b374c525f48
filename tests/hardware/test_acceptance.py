"""Tokens per verify step, forced or drawn."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.errors import InvalidValue
from flashpoint.hardware.acceptance import ForcedAcceptance, SampledAcceptance, make_acceptance

MEANS = st.integers(0, 7).flatmap(
    lambda drafts: st.tuples(
        st.just(drafts), st.fractions(1, drafts + 1, max_denominator=200) if drafts else st.just(Fraction(1))
    )
)


def tokens_after(acceptance, name, generated, steps):
    return acceptance.pace([(name, generated)]).tokens_after(steps)[0]


@given(MEANS, st.text(max_size=5), st.integers(1, 200), st.integers(1, 200), st.booleans())
@settings(max_examples=200, deadline=None)
def test_steps_add_up(rule, name, first, second, sampled):
    """n + m steps give what n steps and then m steps give: what skips steps must not change answers."""
    drafts, mean = rule
    acceptance = make_acceptance("sampled" if sampled else "forced", mean, drafts, 7)
    gained = tokens_after(acceptance, name, 1, first)
    assert tokens_after(acceptance, name, 1, first + second) == gained + tokens_after(
        acceptance, name, 1 + gained, second
    )
    assert first <= gained <= first * (drafts + 1)


@given(MEANS, st.text(max_size=5), st.integers(0, 500), st.integers(1, 500), st.booleans())
@settings(max_examples=200, deadline=None)
def test_steps_for_is_the_first_that_suffices(rule, name, generated, tokens, sampled):
    drafts, mean = rule
    acceptance = make_acceptance("sampled" if sampled else "forced", mean, drafts, 7)
    steps = acceptance.pace([(name, generated)]).steps_for([tokens])
    assert steps >= 1
    assert tokens_after(acceptance, name, generated, steps) >= tokens
    if steps > 1:
        assert tokens_after(acceptance, name, generated, steps - 1) < tokens


def test_forced_is_the_mean_exactly():
    acceptance = ForcedAcceptance(Fraction(351, 100), 5)
    assert tokens_after(acceptance, "a", 1, 100_000) == 351_000


def test_sampled_has_the_mean():
    acceptance = SampledAcceptance(Fraction(351, 100), 5, seed=1)
    gained = sum(tokens_after(acceptance, f"r{i}", 1, 200) for i in range(200))
    # 40,000 steps of a standard deviation below 2: six sigma are 0.06.
    assert gained / 40_000 == pytest.approx(3.51, abs=0.06)
    acceptance.forget("r0")
    assert tokens_after(acceptance, "r0", 1, 200) == tokens_after(
        SampledAcceptance(Fraction(351, 100), 5, 1), "r0", 1, 200
    )


@pytest.mark.parametrize(
    ("mean", "drafts"), [(Fraction(1, 2), 3), (Fraction(5), 3), (Fraction(2), 0), (1, -1)]
)
def test_what_cannot_be_accepted(mean, drafts):
    with pytest.raises(InvalidValue, match=r"acceptance|draft_tokens"):
        ForcedAcceptance(Fraction(mean), drafts)


@pytest.mark.parametrize("kind", ["forced", "sampled"])
def test_answers_in_step_are_those_of_each_alone(kind):
    acceptance = make_acceptance(kind, Fraction(351, 100), 5, 3)
    answers = [("a", 0), ("b", 1), ("c", 40), ("d", 977)]
    alone = [acceptance.pace([answer]) for answer in answers]
    together, rooms = acceptance.pace(answers), [500, 60, 20, 7]
    assert together.tokens_after(9) == [pace.tokens_after(9)[0] for pace in alone]
    assert together.steps_for(rooms) == min(
        pace.steps_for([room]) for pace, room in zip(alone, rooms, strict=True)
    )
