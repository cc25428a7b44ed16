"""Routers that do not look at the replicas: which replica serves a request is known before the run."""

from dataclasses import replace

import numpy as np
import pytest

from evaluator.errors import InputError
from evaluator.routing import ROUTERS, HeavyLight, Router, Sent, assign, name_of, router_of, stream
from tests.reference.build import CHOICES

INDEPENDENT = ["session", *(choice for choice in CHOICES if router_of(choice).independent is not None)]


def chosen(choice, count, replicas, seed=0, station=0):
    prompts = np.random.default_rng(1).integers(1, 100, count)
    return assign(choice, Sent(prompts, replicas, stream(seed, station), prompts // 3))


@pytest.mark.parametrize("choice", INDEPENDENT, ids=str)
def test_both_forms_choose_the_same(choice):
    prompts = np.random.default_rng(1).integers(1, 100, 500)
    for replicas in (1, 2, 5):
        independent = router_of(choice).independent
        in_turn = independent.in_turn(choice, replicas, stream(3, 1))
        one_by_one = [in_turn(prompt, prompt // 3) for prompt in prompts.tolist()]
        assert one_by_one == chosen(choice, 500, replicas, 3, 1).tolist()
        assert set(one_by_one) == set(range(replicas))


def test_random_is_fair_and_its_seed_decides():
    found = chosen("random", 40_000, 4)
    np.testing.assert_allclose(np.bincount(found) / 10_000, 1, atol=0.05)
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.02
    np.testing.assert_array_equal(found[:500], chosen("random", 500, 4))
    for other in (chosen("random", 40_000, 4, seed=1), chosen("random", 40_000, 4, station=1)):
        assert (found != other).mean() == pytest.approx(0.75, abs=0.02)


def test_turns():
    assert chosen("round_robin", 6, 4).tolist() == [0, 1, 2, 3, 0, 1]
    sent = Sent(np.array([9, 1, 2, 10, 3, 11]), 3, stream(0))
    assert assign(HeavyLight(9), sent).tolist() == [0, 1, 2, 0, 1, 0]
    assert assign(HeavyLight(9, 2), sent).tolist() == [0, 2, 2, 1, 2, 0]


def test_what_no_router_can_be():
    with pytest.raises(InputError, match="no router 'robin'; the routers are random, round_robin, least_outstanding"):
        router_of("robin")
    with pytest.raises(ValueError, match="router least_work looks at the replicas: nothing is known before the run"):
        assign("least_work", Sent(np.ones(3, int), 2, stream(0)))
    with pytest.raises(
        ValueError,
        match="either independent, or counts something, or goes by prefixes, adapters or reports, or is a queue",
    ):
        Router("none", "")
    with pytest.raises(ValueError, match="router odd counts luck, which is none of requests, work_tokens"):
        Router("odd", "", counts="luck")
    assert all(replace(router, name=name) == router for name, router in ROUTERS.items())
    assert name_of(HeavyLight(4096, 2)) == "heavy_light"
