"""The requests of an experiment."""

from dataclasses import replace

import numpy as np
import pytest

from evaluator.experiments import read_experiments
from evaluator.experiments.traffic import requests
from tests.campaign import entry, row


@pytest.fixture
def first(small):
    return read_experiments(*small)[0]


def test_stages_have_exact_counts_and_durations(first):
    load = requests(first, 3)
    assert np.bincount(load.stage).tolist() == [40, 120]
    assert np.all(np.diff(load.arrival_s) > 0)
    assert load.arrival_s[39] == pytest.approx(20)
    assert load.arrival_s[-1] == pytest.approx(40)


def test_the_same_seed_gives_the_same_requests(first):
    one, two, other = (requests(first, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.arrival_s, two.arrival_s)
    assert not np.array_equal(one.arrival_s, other.arrival_s)


def test_prompts_repeat_and_are_cached_in_whole_blocks(first):
    load = requests(first, 0)
    assert np.array_equal(load.prompt_tokens[:6], load.prompt_tokens[6:12])
    cached = load.prompt_tokens - load.compute_tokens
    assert np.all(cached % 16 == 0)
    assert np.all(load.compute_tokens[6:] <= 16)
    assert np.all(load.compute_tokens >= 1)
    assert load.compute_tokens[0] == load.prompt_tokens[0]  # nothing was there
    assert cached[1] == 96  # the system prompt of its group
    assert cached[2] == 0  # another group


def test_without_prefix_caching_all_is_computed(campaign):
    (only,) = read_experiments(*campaign([entry("a", prefix_caching=False)], [row("a", 0)]))
    load = requests(only, 0)
    assert np.array_equal(load.compute_tokens, load.prompt_tokens)


def test_the_server_generates_what_was_asked_whatever_the_client_counts(first):
    assert first.row(0).counted_tokens == 39.5
    assert set(requests(first, 0).output_tokens.tolist()) == {40}


def test_each_data_parallel_rank_has_a_cache_of_its_own(first):
    """A prompt is computed once on every rank that it comes to; which that is, is drawn."""
    load = requests(replace(first, data_parallel=4), 0)
    whole = (load.compute_tokens > 150).sum()
    alone = (requests(first, 0).compute_tokens > 150).sum()
    assert alone == 6
    assert 16 <= whole <= 24  # of 160 requests for 6 prompts on 4 ranks
