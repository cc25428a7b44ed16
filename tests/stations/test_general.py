"""The general program against the plain loop over every token, on random replicas with everything at once."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests.stations.build import random_cases, run_engine
from tests.stations.compare import TOLERANCE, assert_same
from tests.stations.general import GeneralCase, Kind, general_cases, run_general, run_tokens

CASES = 150
KINDS = {
    "all policies": Kind(peaks=True),
    "windows and experts": Kind(windowed=True, experts=True),
    "two stages": Kind(stages=2),
    "three stages, windows, experts": Kind(windowed=True, experts=True, stages=3),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_equal_to_the_plain_loop(kind):
    cases = general_cases(kind, CASES)
    preemptions, policies = 0, set()
    for given, result in zip(cases, run_general(cases, kind), strict=True):
        expected = run_tokens(given)
        assert_same(given.case, result, expected)
        assert result.preemptions == expected.preemptions, given.case
        np.testing.assert_allclose(result.kv_unit_s, expected.kv_unit_s, rtol=TOLERANCE, err_msg=str(given.case))
        np.testing.assert_allclose(result.experts_touched, expected.experts_touched, rtol=TOLERANCE)
        preemptions += expected.preemptions
        policies.add(given.case.policy)
    assert preemptions > 100 and len(policies) >= 6  # the cases are about something


def test_equal_to_the_program_for_arrivals_in_order():
    """Where both apply; the two share no code for queues."""
    cases = random_cases(False, True, 100)
    general = run_general([GeneralCase(case, (case.cost,), 0 * case.kv_units) for case in cases], Kind(windowed=True))
    for one, other in zip(run_engine(cases), general, strict=True):
        for name, value in one._asdict().items():
            # Leaps end elsewhere, and with them the means in the histogram; kv_unit_s counts only who was served.
            if name not in ("itl_histogram", "kv_unit_s"):
                np.testing.assert_allclose(getattr(other, name), value, rtol=TOLERANCE, err_msg=name)


def test_in_step_as_on_an_accelerator():
    kind = Kind(peaks=True)
    cases = general_cases(kind, 8)
    for one, other in zip(run_general(cases, kind), run_general(cases, kind, vectorise=True), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), one, other)
