"""Numbers of contents against the contents themselves: one number where, and only where, all is the same so far."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.scenario import Agents, Arrivals, Geometric, Lengths, Sessions, Workload
from evaluator.scenario.trace import Ragged
from evaluator.traffic.block_names import block_names
from evaluator.traffic.jobs import Demand, Jobs
from evaluator.traffic.request_sampler import RequestSampler
from evaluator.traffic.requests import Tokens
from evaluator.traffic.roles import ROLES
from evaluator.traffic.sharing import Sharing

BLOCK = 4


def drawn_jobs(seed: int, hashed: bool) -> Jobs:
    """Thirty of forty requests: of sessions, with system prompts or without, or with hashes of some words."""
    rng = np.random.default_rng(seed)
    prompt, output = rng.integers(1, 90, 40), rng.integers(1, 30, 40)
    system_tokens = int(rng.choice([0, 3, 4, 21]))
    if hashed:
        counts = -(-prompt // 12)
        sharing = Sharing(
            session=None, turns=None, feedback=False, system=None, system_tokens=0,
            hashes=Ragged(rng.integers(-1, 2, counts.sum()), np.cumsum([0, *counts])), hash_block_tokens=12,
        )  # fmt: skip
    else:
        prompt = prompt + system_tokens
        session = rng.integers(0, 9, 40)
        sharing = Sharing(
            session=session, turns=None, feedback=False, system=rng.integers(0, 3, 9)[session],
            system_tokens=system_tokens, hashes=None, hash_block_tokens=12,
        )  # fmt: skip
    nothing = np.zeros(40, dtype=np.int64)
    demand = Demand.of(Tokens(prompt, output, nothing, nothing, nothing), ROLES["mixed"])
    at = np.sort(rng.permutation(40)[:30])
    return Jobs(np.arange(40)[at], np.zeros(30), demand[at], np.ones(30, dtype=bool), sharing=sharing)


def calls_of_agents(seed: int) -> Jobs:
    """Thirty of forty calls of tasks, whose agents begin with some, all or nothing of what started them."""
    rng = np.random.default_rng(seed)
    agents = Agents(int(rng.integers(1, 4)), int(rng.integers(0, 4)), float(rng.choice([0.0, 0.4, 1.0])))
    system_tokens = int(rng.choice([0, 3, 4, 21]))
    sessions = Sessions(3 if system_tokens else 1, system_tokens, turns=Geometric(2.0, 4), agents=agents)
    lengths = Lengths("uniform", {"prompt_min": 1, "prompt_max": 40, "output_min": 1, "output_max": 30})
    workload = Workload(Arrivals("poisson", rate_rps=5.0), lengths, 40, 0, seeds=(0,), sessions=sessions)
    return RequestSampler().jobs(workload, seed, ROLES["mixed"]).some(np.sort(rng.permutation(40)[:30]))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", ["sessions", "hashes", "agents"])
def test_a_number_stands_for_a_content_and_all_before_it(seed, kind):
    jobs = calls_of_agents(seed) if kind == "agents" else drawn_jobs(seed, kind == "hashes")
    names, demand = block_names(jobs, BLOCK), jobs.demand
    assert jobs.sharing is not None
    contents = jobs.sharing.contents(jobs.id, demand.prompt_tokens, demand.kv_tokens, BLOCK)
    number_of: dict[tuple, int] = {}
    answers: list[int] = []
    text_of: dict[int, tuple[int, int]] = {}
    for row, (content, tokens) in enumerate(zip(contents, demand.kv_tokens, strict=True)):
        whole = tokens // BLOCK
        places = np.arange(whole)
        sourced, found = places < names.sourced[row], names.own_from[row] + places
        texts = [(int(names.own_text[row]), place - int(names.sourced[row])) for place in range(whole)]
        for place in places[sourced].tolist():
            begin = names.sources_from[row]
            source = begin + place // names.per_source
            while names.ends[source] <= place:
                source += 1
            first = names.ends[source - 1] if source > begin else 0
            found[place] = names.sources[source] + place - first
            texts[place] = int(names.texts[source]), int(place - first)
        assert ((found >= 0) & (found < names.count)).all()
        answers += found[demand.prompt_tokens[row] // BLOCK :].tolist()
        so_far: tuple = ()
        for place in range(whole):
            so_far = (*so_far, content[place] if place < len(content) else (row, place))
            assert number_of.setdefault(so_far, int(found[place])) == found[place]
            # In its text a block has one place, whoever has it.
            assert text_of.setdefault(int(found[place]), texts[place]) == texts[place]
    assert len(set(number_of.values())) == len(number_of)
    assert len(set(text_of.values())) == len(text_of) and all(text < names.text_count for text, _ in text_of.values())
    # Drawn agents, and whatever has only prompts in common, never say the same; turns whose prompts do not grow might.
    assert names.answers_apart == (len(set(answers)) == len(answers))
    assert names.answers_apart or kind == "sessions"


def test_the_numbers_of_some_requests_are_those_of_all():
    names = block_names(drawn_jobs(3, True), BLOCK)
    some = names[np.array([4, 2])]
    assert some.own_from.tolist() == [names.own_from[4], names.own_from[2]] and some.count == names.count
    assert some.own_text.tolist() == [names.own_text[4], names.own_text[2]]
