"""How far the engine may leap under the eager cost: nothing between the start and the end of a leap changes sides."""

import numpy as np
import pytest

from evaluator.cost.batch import decode_batch
from evaluator.cost.eager import Corrected, Dispatch
from evaluator.cost.eager.cost import LEAPS
from evaluator.cost.iteration import alike_steps, decode_growth, iteration_time
from tests.cost.eager.paper import paper_cost


def random_cost(rng):
    """Hosts, efficiencies and copies that bind in turn, as the context grows."""
    cost = paper_cost(Corrected(), int(rng.choice([1, 2, 4, 8])))
    host = Dispatch(*(10.0 ** rng.uniform(-6, -2.5, 3)))
    decode = cost.decode._replace(flops=10.0 ** rng.uniform(11, 15), memory=10.0 ** rng.uniform(11, 13))
    return cost._replace(decode=decode, dispatch=host, runs_ahead=bool(rng.integers(2)))


def after(batch, steps):
    return batch._replace(decode_context=batch.decode_context + steps * batch.decodes)


@pytest.mark.parametrize("seed", range(60))
def test_the_growth_is_the_same_all_along_a_leap(seed):
    rng = np.random.default_rng(seed)
    cost = random_cost(rng)
    batch = decode_batch(float(rng.integers(1, 200)), float(rng.integers(1, 9000)), None)
    leap, growth_s = float(alike_steps(cost, batch)), float(decode_growth(cost, batch, 0.0))
    start_s = float(iteration_time(cost, batch))
    assert leap in (1.0, *LEAPS)
    for steps in np.unique(np.linspace(0, leap, 50).astype(int)):
        found = float(iteration_time(cost, after(batch, float(steps))))
        assert found == pytest.approx(start_s + steps * growth_s, rel=1e-11)


def test_a_leap_ends_before_the_device_overtakes_the_host():
    """At some context the device needs longer than the host: from far before it leaps are long, from near it short."""
    cost = paper_cost(Corrected())._replace(dispatch=Dispatch(0.0, 1e-3, 1e-3), runs_ahead=True)
    contexts = np.arange(1.0, 100_000.0)
    times = np.array(iteration_time(cost, decode_batch(np.full_like(contexts, 4.0), contexts, None)))
    kink = int(contexts[np.argmax(np.diff(times, n=2) > 1e-9)]) + 1
    leaps = [float(alike_steps(cost, decode_batch(4.0, float(kink - before), None))) for before in (6000, 2000, 5, -5)]
    assert leaps == [4096.0, 16.0, 1.0, 4096.0]
