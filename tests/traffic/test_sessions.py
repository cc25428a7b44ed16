"""Sessions of several turns: who sends what when, and what the prompts have in common."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.errors import InputError
from evaluator.scenario import Arrivals, Exponential, Geometric, Lengths, Sessions, Workload, load_scenario
from evaluator.traffic.arrivals import drawn_for
from evaluator.traffic.request_sampler import RequestSampler
from evaluator.traffic.roles import ROLES
from evaluator.traffic.sessions import _think_s, turn_counts, turns_of

POISSON = Arrivals("poisson", rate_rps=5.0)
TALKS = Sessions(3, 40, turns=Geometric(4.0), think_s=Exponential(20.0))
LENGTHS = Lengths("uniform", {"prompt_min": 5, "prompt_max": 60, "output_min": 1, "output_max": 40})
WORKLOAD = Workload(POISSON, LENGTHS, 2000, 100, seeds=(0,), sessions=TALKS)
MIXED = ROLES["mixed"]


@pytest.mark.parametrize("turns", [3, Geometric(1.0), Geometric(4.0), Geometric(4.0, 5)])
def test_mean_turns(turns):
    sessions = Sessions(turns=turns)
    counts = turn_counts(sessions, 0, 40_000)
    assert counts.min() >= 1
    np.testing.assert_allclose(counts.mean(), sessions.mean_turns, rtol=0.02)


def test_geometric():
    counts = turn_counts(Sessions(turns=Geometric(2.5)), 1, 100_000)
    for number in range(1, 6):
        np.testing.assert_allclose((counts == number).mean(), 0.6 ** (number - 1) * 0.4, atol=0.005)


def test_a_rate_at_which_too_many_sessions_begin_is_refused():
    with pytest.raises(InputError, match=r"workload.sessions: at 1e\+09 requests/s .* sessions begin before the last"):
        turns_of(replace(POISSON, rate_rps=1e9), TALKS, 0, 100)


def test_a_turn_follows_the_one_before():
    jobs = RequestSampler().jobs(WORKLOAD, 0, MIXED)
    turns = jobs.sharing.turns
    assert (np.diff(jobs.ready_s) >= 0).all()
    later = np.flatnonzero(turns.previous >= 0)
    before = turns.previous[later]
    assert (turns.session[later] == turns.session[before]).all() and (before < later).all()
    np.testing.assert_allclose(jobs.ready_s[later] - jobs.ready_s[before], turns.think_s[later], rtol=1e-9)
    np.testing.assert_allclose(turns.think_s[later].mean(), 20.0, rtol=0.15)
    assert (turns.think_s[turns.place == turns.first] == 0).all()
    assert (turns.previous[turns.place == turns.first] == -1).all()
    # The prompt is what was said, and at least five tokens more.
    demand = jobs.demand
    said = demand.prompt_tokens[before] + demand.output_tokens[before]
    new = demand.prompt_tokens[later] - said
    assert new.min() == 5 and new.max() == 60
    first = demand.prompt_tokens[turns.place == turns.first]
    assert first.min() == 45 and first.max() == 100  # with the system prompt


def test_requests_come_at_the_rate_of_the_arrivals_from_the_beginning():
    rates = []
    for seed in range(16):
        turns = turns_of(POISSON, TALKS, seed, 10_000)
        cuts = np.searchsorted(turns.sent_s, [0.0, 500.0, 1000.0])
        rates.append(np.diff(cuts) / 500.0)
        assert cuts[0] == 0 and turns.sent_s[0] < 5.0
    # Compound Poisson arrivals: 2,500 requests vary by sqrt(2,500 x E n^2 / E n) = 132, the mean of 16 by 33.
    np.testing.assert_allclose(np.mean(rates, axis=0), 5.0, rtol=3 * 33 / 2500)


def test_sessions_under_way_go_on_with_what_was_said():
    jobs = RequestSampler().jobs(WORKLOAD, 0, MIXED)
    turns = jobs.sharing.turns
    under_way = (turns.previous < 0) & (turns.place > turns.first)
    assert 20 < under_way.sum() < 120  # Little: sessions start at 5/4 per second and take 60 s, 75 are under way
    prompts = jobs.demand.prompt_tokens
    assert prompts[under_way].mean() > 1.5 * prompts[turns.place == turns.first].mean()


def test_more_requests_are_the_same_and_more():
    few, many = (turns_of(POISSON, TALKS, 3, count) for count in (200, 5000))
    for name in ("session", "place", "first", "previous", "think_s", "sent_s"):
        np.testing.assert_allclose(getattr(few, name), getattr(many, name)[:200], rtol=1e-9, err_msg=name)


def test_all_at_once_takes_whole_sessions():
    sessions = Sessions(turns=4, think_s=1.0)
    turns = turns_of(Arrivals("all_at_once"), sessions, 0, 40)
    assert (np.bincount(turns.session) == 4).all()


def test_another_rate_has_the_same_requests():
    """A search compares rates: sessions start closer together, and what they say and how long they think stays."""
    sampler = RequestSampler()
    faster = sampler.at_rate(WORKLOAD, 10.0)
    one, other, again = (sampler.jobs(each, 0, MIXED) for each in (WORKLOAD, faster, sampler.at_rate(faster, 5.0)))
    assert one.demand is other.demand and one.sharing is other.sharing
    turns = one.sharing.turns
    starts = turns.place == turns.first
    np.testing.assert_allclose(np.diff(other.ready_s[starts]), np.diff(one.ready_s[starts]) / 2, atol=1e-9)
    later = np.flatnonzero(turns.previous >= 0)
    np.testing.assert_allclose(
        other.ready_s[later] - other.ready_s[turns.previous[later]], turns.think_s[later], atol=1e-9
    )
    assert (other.ready_s >= 0).all()
    np.testing.assert_array_equal(again.ready_s, one.ready_s)
    scenario_s_own = sampler.jobs(replace(WORKLOAD, arrivals=Arrivals("poisson", rate_rps=10.0)), 0, MIXED)
    assert not np.array_equal(scenario_s_own.demand.prompt_tokens, one.demand.prompt_tokens)


@pytest.mark.parametrize("seed", [0, 3])
def test_rates_that_share_draws_have_what_each_draws_by_itself(seed, monkeypatch):
    def of_rates():
        return [
            RequestSampler().jobs(replace(WORKLOAD, arrivals=replace(POISSON, rate_rps=rate)), seed, MIXED)
            for rate in (0.5, 2.0, 3.0, 50.0)
        ]

    shared = of_rates()
    for module in ("arrivals", "requests", "sessions"):
        monkeypatch.setattr(f"evaluator.traffic.{module}.drawn_for", lambda n: n)
    for together, alone in zip(shared, of_rates(), strict=True):
        np.testing.assert_array_equal(together.ready_s, alone.ready_s)
        np.testing.assert_array_equal(together.sharing.turns.think_s, alone.sharing.turns.think_s)
        np.testing.assert_array_equal(together.sharing.turns.session, alone.sharing.turns.session)
        np.testing.assert_array_equal(together.demand.prompt_tokens, alone.demand.prompt_tokens)
        np.testing.assert_array_equal(together.demand.output_tokens, alone.demand.output_tokens)


def test_draws_are_shared_up_to_a_number_and_go_on_beyond_it():
    assert [drawn_for(n) for n in (0, 1, 2, 3, 40_000)] == [1, 1, 2, 4, 65_536]
    assert [drawn_for(n) for n in (65_536, 65_537, 100_000)] == [65_536, 65_537, 100_000]
    beyond = turn_counts(TALKS, 0, 100_000)
    thoughts = _think_s(TALKS, 0, 100_000)
    for number in (40_000, 65_536, 65_537):
        np.testing.assert_array_equal(turn_counts(TALKS, 0, number), beyond[:number])
        np.testing.assert_array_equal(_think_s(TALKS, 0, number), thoughts[:number])


def test_single_turns_are_as_without_sessions():
    plain = replace(WORKLOAD, sessions=Sessions(3, 40))
    jobs = RequestSampler().jobs(plain, 0, MIXED)
    same = RequestSampler().jobs(replace(plain, sessions=Sessions(3, 40, turns=Geometric(1.0))), 0, MIXED)
    assert jobs.session is None and same.session is None
    np.testing.assert_array_equal(jobs.sharing.system, same.sharing.system)
    np.testing.assert_array_equal(jobs.ready_s, same.ready_s)
    np.testing.assert_array_equal(jobs.demand.prompt_tokens, same.demand.prompt_tokens)


def test_contents_say_system_prompt_and_session():
    jobs = RequestSampler().jobs(WORKLOAD, 0, MIXED)
    sharing, demand = jobs.sharing, jobs.demand
    contents = [tuple(one) for one in sharing.contents(jobs.id, demand.prompt_tokens, demand.kv_tokens, 16)]
    for row, content in enumerate(contents):
        assert len(content) == demand.kv_tokens[row] // 16
        assert content[:2] == (-1 - sharing.system[row],) * 2  # 40 tokens are two whole blocks
        assert set(content[2:]) <= {sharing.session[row]}
    by_session = dict(zip(sharing.session.tolist(), sharing.system.tolist(), strict=True))
    assert all(
        by_session[one] == two for one, two in zip(sharing.session.tolist(), sharing.system.tolist(), strict=True)
    )
    np.testing.assert_allclose(np.bincount(list(by_session.values())) / len(by_session), 1 / 3, atol=0.06)


# --- users of a closed loop

USERS = Arrivals("closed_loop", users=8)


@pytest.mark.parametrize("turns", [1, 3, Geometric(4.0), Geometric(4.0, 5)])
def test_users_take_whole_sessions_one_after_the_other(turns):
    sessions = Sessions(turns=turns, think_s=Exponential(20.0))
    found = turns_of(USERS, sessions, 0, 500)
    counts = turn_counts(sessions, 0, 600)
    numbers, held = np.unique(found.session, return_counts=True)
    np.testing.assert_array_equal(numbers, np.arange(len(numbers)))
    np.testing.assert_array_equal(held[:-1], counts[: len(numbers) - 1])  # the last one is cut
    assert 1 <= held[-1] <= counts[len(numbers) - 1] and found.last.sum() == len(numbers) - (
        held[-1] < counts[len(numbers) - 1]
    )
    opens = found.place == found.first
    # Sessions are sent in their order, the first of each user before all others.
    np.testing.assert_array_equal(found.session[opens], numbers)
    assert opens[:8].all() and (found.previous[opens] == -1).all()
    later = np.flatnonzero(~opens)
    before = found.previous[later]
    assert (before < later).all() and (found.place[later] == found.place[before] + 1).all()
    assert found.rest_s is not None and not found.sent_s.any()
    np.testing.assert_allclose(np.append(found.think_s[later], found.rest_s[found.last]).mean(), 20.0, rtol=0.2)


def test_users_who_think_send_the_requests_of_users_who_do_not():
    lazy = replace(WORKLOAD, arrivals=USERS, sessions=Sessions(think_s=1.0))
    one, other = (RequestSampler().jobs(each, 0, MIXED) for each in (lazy, replace(lazy, sessions=Sessions())))
    np.testing.assert_array_equal(one.demand.prompt_tokens, other.demand.prompt_tokens)
    assert other.sharing is None and one.session is None and one.sharing.feedback
    np.testing.assert_array_equal(one.sharing.turns.session, one.id)


def test_more_users_hold_the_same_sessions():
    few, many = (
        RequestSampler().jobs(replace(WORKLOAD, arrivals=Arrivals("closed_loop", users=users)), 0, MIXED)
        for users in (4, 60)
    )
    at = [np.argsort(jobs.sharing.turns.place) for jobs in (few, many)]
    for name in ("prompt_tokens", "output_tokens"):
        one, other = (getattr(jobs.demand, name)[order] for jobs, order in zip((few, many), at, strict=True))
        np.testing.assert_array_equal(one, other)


def test_what_is_cut_by_itself_are_two_sessions_of_each_user_and_one():
    raw = {
        "workload": {"arrivals": {"process": "closed_loop", "users": 20}, "lengths": {"source": "azure-conv-2023"}},
        "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm"},
    }
    for sessions, ends in (
        ({}, (100, 100)), ({"think_s": 3}, (100, 100)), ({"turns": 4}, (160, 80)), ({"turns": {"mean": 40}}, (500, 250))
    ):  # fmt: skip
        raw["workload"]["sessions"] = sessions
        assert load_scenario(raw).workload.ends == ends
