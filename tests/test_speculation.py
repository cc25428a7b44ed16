"""How many drafts are accepted: the draws, and what theory says of them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from evaluator.device import configure
from evaluator.speculation import Drafting, Speculative, keys, tokens_given, uniform

IDS = np.arange(2000)


def given(speculative: Speculative, iterations: int = 100, seed: int = 0) -> np.ndarray:
    """Tokens of decode iterations, (request, iteration)."""
    return np.stack([tokens_given(speculative.chances, key, iterations) for key in keys(seed, IDS)])


@pytest.mark.parametrize("rate", [0.0, 0.35, 0.8, 1.0])
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_mean_tokens_of_one_rate_are_those_of_leviathan(rate, tokens):
    """Equation 1 of arXiv:2211.17192."""
    speculative = Speculative("ngram", tokens, None, rate)
    expected = tokens + 1.0 if rate == 1.0 else (1 - rate ** (tokens + 1)) / (1 - rate)
    assert speculative.mean_tokens == pytest.approx(expected, rel=1e-12)
    found = given(speculative)
    assert found.mean() == pytest.approx(expected, abs=4 * found.std() / np.sqrt(found.size) + 1e-12)


def test_rates_by_position_are_those_of_drafts_behind_accepted_ones():
    found = given(Speculative("mtp", 3, None, (0.8, 0.5, 0.25)))
    for position, rate in enumerate((0.8, 0.5, 0.25)):
        reached = found > position  # the drafts before it were accepted
        assert (found[reached] > position + 1).mean() == pytest.approx(rate, abs=0.006)


def test_a_higher_rate_and_more_drafts_never_give_fewer_tokens():
    few, more = given(Speculative("ngram", 4, None, 0.5)), given(Speculative("ngram", 4, None, (0.5, 0.6, 0.7, 0.5)))
    longer = given(Speculative("ngram", 6, None, 0.5))
    assert (more >= few).all() and (more > few).any()
    assert (longer >= few).all() and (longer > few).any()


def test_draws_are_uniform_and_independent_between_requests_iterations_and_seeds():
    drawn = np.stack([uniform(np.array([key]), np.arange(100, dtype=np.uint32)) for key in keys(0, IDS)])
    other = np.stack([uniform(np.array([key]), np.arange(100, dtype=np.uint32)) for key in keys(1, IDS)])
    error = 4 / np.sqrt(drawn.size)
    assert drawn.mean() == pytest.approx(0.5, abs=error) and 12 * drawn.var() == pytest.approx(1.0, abs=error)
    for one, two in ((drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1]), (drawn, other)):
        assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < error
    assert 100 * 12 * drawn.mean(axis=1).var() == pytest.approx(1.0, abs=0.15)


def test_numpy_and_jax_draw_the_same():
    configure()
    own, iterations = keys(7, IDS), np.arange(50, dtype=np.uint32)
    expected = uniform(own[:, None], iterations[None])
    found = uniform(jnp.asarray(own)[:, None], jnp.asarray(iterations)[None])
    assert found.dtype == jnp.float64
    np.testing.assert_array_equal(found, expected)


def test_what_an_iteration_costs_does_not_depend_on_the_acceptance():
    one, other = (Speculative("draft", 3, "llama-3.1-8b", rate) for rate in (0.1, (0.9, 0.8, 0.7)))
    assert one.drafting == other.drafting == Drafting("draft", 3, "llama-3.1-8b")
    assert str(one) == "draft llama-3.1-8b x 3 at 0.1"
    assert str(Speculative("mtp", 3, None, (0.8, 0.6, 0.45))) == "mtp x 3 at 0.8/0.6/0.45"
