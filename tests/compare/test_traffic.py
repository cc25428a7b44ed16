"""The requests of an experiment."""

import numpy as np
import pytest

from evaluator.compare import read_experiments
from evaluator.compare.traffic import mean_output, output_lengths, output_shares, requests
from tests.compare.conftest import entry, row


@pytest.fixture
def first(small):
    return read_experiments(*small)[0]


def test_stages_have_exact_counts_and_durations(first):
    load = requests(first, 3, {})
    assert np.bincount(load.stage).tolist() == [40, 120]
    assert np.all(np.diff(load.arrival_s) > 0)
    assert load.arrival_s[39] == pytest.approx(20)
    assert load.arrival_s[-1] == pytest.approx(40)


def test_the_same_seed_gives_the_same_requests(first):
    one, two, other = (requests(first, seed, {}) for seed in (1, 1, 2))
    assert np.array_equal(one.arrival_s, two.arrival_s)
    assert not np.array_equal(one.arrival_s, other.arrival_s)


def test_prompts_repeat_and_are_cached_in_whole_blocks(first):
    load = requests(first, 0, {})
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
    load = requests(only, 0, {})
    assert np.array_equal(load.compute_tokens, load.prompt_tokens)


@pytest.mark.parametrize("mean", [10.0, 120.0, 195.4, 246.0, 249.6])
def test_outputs_have_the_mean_and_end_at_what_was_asked(mean):
    lengths = output_lengths(np.random.default_rng(0), mean, 247, 200_000)
    assert lengths.mean() == pytest.approx(mean, rel=5e-3)
    assert lengths.min() >= 1
    assert lengths.max() <= max(247, np.ceil(mean))


def test_unknown_outputs_are_those_of_the_models_other_runs(campaign):
    rows = [row("a", 0, output=20.0), row("b", -1) | {"implied_mean_output_tokens": ""}]
    a, b = read_experiments(*campaign([entry("a", rates=(2.0,)), entry("b")], rows))
    shares = output_shares([a, b])
    assert mean_output(b, 0, shares) == pytest.approx(20.0)
    assert mean_output(b, 0, {}) == 40.0
