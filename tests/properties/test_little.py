"""Little's law of random closed loops: throughput x mean time in the system are the users."""

from __future__ import annotations

import random

import numpy as np
import pytest

import evaluator
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
