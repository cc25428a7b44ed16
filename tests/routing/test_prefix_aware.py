"""The router that goes by prefixes, on numbers and on replicas."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.routing.prefix_aware import PrefixAware
from tests.reference.build import random_scenario
from tests.thorough import tried

ROUTER = PrefixAware(threshold=0.5, imbalance=4, imbalance_ratio=2.0)
CHOICES = {
    "the longest prefix": ([3, 0, 1], [0.6, 0.0, 0.7], [9, 0, 5], 2),
    "of several with it the fewest requests": ([3, 2, 1], [0.7, 0.7, 0.5], [9, 9, 9], 1),
    "at least the threshold": ([1, 0], [0.5, 0.4], [9, 9], 0),
    "below it the fewest requests": ([3, 2, 0], [0.4, 0.1, 0.0], [0, 0, 9], 2),
    "of several the smallest record": ([1, 1, 1], [0.0, 0.0, 0.0], [5, 2, 3], 1),
    "of several of these the first": ([1, 1, 1], [0.0, 0.0, 0.0], [5, 2, 2], 1),
    "not where the load is too uneven": ([8, 3], [0.9, 0.0], [9, 9], 1),
    "nor far apart but alike": ([15, 8], [0.9, 0.0], [9, 9], 0),
    "few requests are never uneven": ([4, 0], [0.9, 0.0], [9, 9], 0),
}


@pytest.mark.parametrize(("requests", "share", "known", "chosen"), CHOICES.values(), ids=list(CHOICES))
def test_choices(requests, share, known, chosen):
    assert ROUTER.choose(requests, share, known) == chosen


def test_without_a_threshold_no_prefix_is_still_none():
    assert PrefixAware(threshold=0.0).choose([2, 1], [0.0, 0.0], [0, 0]) == 1


@pytest.mark.parametrize("seed", range(tried(30)))
def test_it_sees_the_caches_in_the_middle_of_a_leap(seed):
    """Leaping over iterations gives the same choices and the same times as going through them one by one."""
    case = random_scenario(seed, prefix_caching=True, replicas=3, pipeline_ranks=1, router=PrefixAware(threshold=0.05))
    leaping, stepping = case.run(), case.run(leap=False)
    for name in ("replica", "hit_tokens", "preemptions"):
        assert [getattr(one, name) for one in leaping.requests] == [getattr(one, name) for one in stepping.requests]
    for name in ("arrival_s", "first_token_s", "last_token_s"):
        one, other = ([getattr(each, name) for each in run.requests] for run in (leaping, stepping))
        np.testing.assert_allclose(one, other, rtol=1e-9)
    assert leaping.kv_unit_s == pytest.approx(stepping.kv_unit_s)
    assert leaping.kv_units_max == stepping.kv_units_max
