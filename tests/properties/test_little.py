"""Little's law of random closed loops: throughput x mean time in the system, and thinking, are the users."""

from __future__ import annotations

import random

import numpy as np
import pytest

import evaluator
from evaluator.plan import plan
from evaluator.scenario import load_scenario
from tests.thorough import tried

SEEDS = range(tried(48))
CYCLES = 12


def closed_loop(seed: int) -> dict:
    """Lengths that are equal end in waves; others mix. Half of the designs have several replicas."""
    rng = random.Random(seed)
    users = rng.choice([1, 3, 8, 20, 48])
    prompt, output = rng.randint(1, 1500), rng.randint(2, 60)
    lengths = rng.choice(
        [
            {"source": "fixed", "prompt_tokens": prompt, "output_tokens": output},
            {"source": "lognormal", "prompt_mean": prompt, "prompt_cv": 0.6, "output_mean": output, "output_cv": 0.6},
        ]
    )
    return {
        "name": "closed",
        "workload": {
            "arrivals": {"process": "closed_loop", "users": users},
            "lengths": lengths,
            # Not a multiple of the users, so that the last arrival is anywhere in a wave.
            "requests": max(CYCLES * users, 60) + rng.randint(0, users),
            "seeds": [seed],
        },
        "deployment": {
            "model": "llama-3.1-8b",
            "hardware": "h100-sxm",
            "replicas": rng.choice([1, 1, 2, 3]),
            "batching": {
                "policy": rng.choice(["chunked", "continuous", "mixed"]),
                "max_num_seqs": rng.choice([4, 16, 256]),
                "max_num_batched_tokens": 16384,
            },
        },
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_throughput_times_time_in_system_are_the_users(seed):
    tree = closed_loop(seed)
    users = tree["workload"]["arrivals"]["users"]
    found = evaluator.sweep(tree, simulator="token").isel(config=0)
    product = float(found["throughput_rps"]) * float(found["e2e_s_mean"])
    fixed = tree["workload"]["lengths"]["source"] == "fixed"
    # Counted requests are those that end in the window, averaged ones those that begin in it: of equal lengths both
    # take alike, of others their means differ by chance.
    spread = 0.0 if fixed else 3.0 / np.sqrt(tree["workload"]["requests"])
    assert product == pytest.approx(users, rel=0.03 + spread)


def conversations(seed: int) -> dict:
    """Users who hold conversations, or think between requests, over replicas or prefill and decode apart, with caches
    on both sides or without."""
    rng = random.Random(seed)
    tree = closed_loop(seed)
    users, turns = tree["workload"]["arrivals"]["users"], rng.choice([1, 3, {"mean": 3, "max": 8}])
    mean_turns = turns if isinstance(turns, int) else 3
    tree["workload"] |= {
        "sessions": {"turns": turns, "think_s": rng.choice([0.0, 0.5, {"mean": 2.0}])},
        "requests": max(CYCLES * users * mean_turns, 90) + rng.randint(0, users),
    }
    if rng.random() < 0.4:
        tree["deployment"] |= {"pools": {"p": {"role": "prefill"}, "d": {"role": "decode", "replicas": 2}}}
        tree["deployment"] |= {
            "kv": {"prefix_caching": rng.choice([False, True])},
            "transfer": {"backpressure": rng.choice([False, True])},
        }
        del tree["deployment"]["replicas"]
    return tree


@pytest.mark.parametrize("seed", SEEDS)
def test_users_wait_or_think_until_the_first_finds_no_conversation(seed):
    tree = conversations(seed)
    users = tree["workload"]["arrivals"]["users"]
    ran = evaluator.simulate(tree, simulator="token")
    table = ran.requests
    whole = plan(load_scenario(tree))
    turns = whole.jobs(whole.configurations[0])[0].sharing
    if turns is None:  # users who do not think between requests have no turns
        return
    drawn = turns.turns
    pause_s = drawn.rest_s.copy()
    later = drawn.previous >= 0
    pause_s[drawn.previous[later]] = drawn.think_s[later]
    opens = ~later
    until_s = table["arrival_s"][opens].max()
    sent_s, free_s = table["arrival_s"].to_numpy(), table["last_token_s"].to_numpy() + pause_s
    # Each user is with one request at a time: waits for its answer, or thinks after it. So the time that all requests
    # take up together is that of all users, as long as none of them has left.
    taken_s = (np.minimum(free_s, until_s) - np.minimum(sent_s, until_s)).sum()
    assert taken_s == pytest.approx(min(users, opens.sum()) * until_s, rel=1e-9)
    if opens.sum() < 6 * users:
        return
    product = float(ran.summary["throughput_rps"].item()) * (table["e2e_s"].mean() + pause_s.mean())
    assert product == pytest.approx(users, rel=0.05 + 4.0 / np.sqrt(len(table)))
