"""Whole scenarios on both engines, which must agree."""

from __future__ import annotations

import numpy as np

from evaluator.device import configure
from evaluator.metrics import Outcomes, summarise
from evaluator.plan import plan
from evaluator.simulation import simulate_chunk
from evaluator.simulation.tokens import Observe
from tests.scenario.build import scenario

TIMES = ["arrival_s", "scheduled_s", "first_token_s", "last_token_s"]
TOTALS = ["busy_s", "iterations", "flops", "bytes", "kv_unit_s", "kv_units_max", "preemptions", "experts_touched"]
LEVELS = np.array([0.5, 0.9, 0.99])


def outcomes(engine: str, *overrides: str, observe: Observe | None = None) -> Outcomes:
    """Of the first group of a small scenario; ``observe`` sees the iterations of the reference."""
    whole = plan(scenario(*overrides), engine=engine)
    return simulate_chunk(whole, whole.groups[0], whole.members, observe)


def both_engines(*overrides: str) -> tuple[Outcomes, Outcomes]:
    """Outcomes of the vectorised engine and of the reference, with the same times, totals and gaps between tokens."""
    configure()
    fast, exact = outcomes("iteration", *overrides), outcomes("token", *overrides)
    assert (fast.engine.item(), exact.engine.item()) == ("iteration", "token")
    for name in (*TIMES, "makespan_s"):
        np.testing.assert_allclose(getattr(fast, name), getattr(exact, name), rtol=1e-9, err_msg=name)
    for name in TOTALS:
        np.testing.assert_allclose(fast.summed(name), exact.summed(name), rtol=1e-9, err_msg=name)
    for one, other in zip(fast.itl[0], exact.itl[0], strict=True):
        assert one[1].sum() == other[1].sum()
    found, known = summarise(fast, LEVELS), summarise(exact, LEVELS)
    np.testing.assert_allclose(found["itl_s"], known["itl_s"], rtol=0.01)
    return fast, exact
