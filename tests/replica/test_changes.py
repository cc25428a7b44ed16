"""The inputs of a sensitivity: every rate and every fixed time is in one of them, and only there."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.catalog.store import find, names
from evaluator.cost.eager import eager_cost
from evaluator.cost.fold import fold
from evaluator.cost.iteration import BatchStatistics, iteration_time
from evaluator.cost.operators import operators
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.metrics.variables import INPUTS
from evaluator.replica.changes import Change, changed_calibration, changed_hardware, chosen_inputs

RATES = ("memory_bandwidth", "flops", "link_bandwidth")
MODELS = ("llama-3.1-70b", "gpt-oss-120b", "deepseek-v3")
FP8 = Precision(weights="fp8")
BATCHES = [
    BatchStatistics(1.0, 500.0, 100.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    BatchStatistics(40.0, 3e4, 5e3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    BatchStatistics(9.0, 9e3, 1e3, 2e3, 3.0, 3e6, 2e5, 4e3, 700.0),
]


def sets() -> list[tuple[str, str]]:
    """Every calibration set of fused operators that is shipped, with hardware that it is of.

    By two lines of each file: every process of pytest asks, and would take half a second to read them all.
    """
    pairs = []
    for name in names("calibrations"):
        lines = find("calibrations", name).read_text(encoding="utf-8").splitlines()
        told = dict(line.split(": ") for line in lines if line.startswith(("hardware: ", "form: ")))
        if "form" not in told:  # a roofline
            pairs.append((name, told["hardware"].replace("any", "h100-sxm")))
    return pairs


def faster(hardware, calibration, only=tuple(INPUTS), factor=2.0):
    """All of ``only`` better: rates x factor, times / factor."""
    changes = [Change(name, factor if name in RATES else 1.0 / factor) for name in only]
    return reduce(changed_hardware, changes, hardware), reduce(changed_calibration, changes, calibration)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("calibration", "hardware"), sets())
def test_all_inputs_together_are_another_unit_of_time(calibration, hardware, model):
    """Twice as fast in everything is exactly half the time, whatever the batch: no rate or time was forgotten."""
    device, figures = load_hardware(hardware), load_calibration(calibration, hardware)
    parallel = Parallel(8, 1, 1) if len(device.links) else Parallel(1, 1, 1)
    work = operators(load_model(model), FP8, parallel)
    twice = faster(device, figures)
    for batch in BATCHES:
        slow, fast = (float(iteration_time(fold(work, *one), batch)) for one in ((device, figures), twice))
        assert fast == pytest.approx(slow / 2, rel=1e-14)
    assert twice[1].frontend_s == figures.frontend_s / 2 and twice[1].lookahead_steps == figures.lookahead_steps


def test_all_inputs_together_are_another_unit_of_time_for_unfused_operators():
    device, figures = load_hardware("ascend-910b3"), load_calibration("ascend-910b3-bestserve", "ascend-910b3")
    figures = replace(figures, eager=replace(figures.eager, message_s=1e-4))
    costs = [
        eager_cost(load_model("codellama-34b"), one, 4, both.eager)
        for one, both in ((device, figures), faster(device, figures))
    ]
    for batch in BATCHES:
        slow, fast = (float(iteration_time(cost, batch)) for cost in costs)
        assert fast == pytest.approx(slow / 2, rel=1e-14)


@pytest.mark.parametrize("name", INPUTS)
def test_each_input_makes_a_difference_of_its_own(name):
    device, figures = load_hardware("h100-sxm"), load_calibration("auto", "h100-sxm")
    work = operators(load_model("llama-3.1-70b"), FP8, Parallel(8, 1, 1))
    base, with_it = ((device, figures), faster(device, figures, (name,)))
    without = faster(device, figures, tuple(other for other in INPUTS if other != name))
    times = [float(iteration_time(fold(work, *one), BATCHES[2])) for one in (base, with_it, without)]
    assert times[0] / 2 < times[1] < times[0] and times[0] / 2 < times[2] < times[0]
    assert (with_it[0].memory_bytes, with_it[0].power_w) == (device.memory_bytes, device.power_w)


def test_inputs_by_name():
    assert chosen_inputs(False) == () and chosen_inputs(True) == tuple(INPUTS)
    assert chosen_inputs("flops") == ("flops",)
    assert chosen_inputs(["host_overhead", "flops", "flops"]) == ("flops", "host_overhead")


def test_a_name_that_is_no_input():
    with pytest.raises(InputError, match="there is no input 'bandwith'; did you mean link_bandwidth"):
        chosen_inputs(["bandwith"])
    with pytest.raises(InputError, match="no input 'x'; the inputs are memory_bandwidth, flops, link_bandwidth"):
        chosen_inputs("x")
    with pytest.raises(ValueError, match="no input 'x'"):
        changed_calibration(load_calibration("auto", "h100-sxm"), Change("x", 2.0))


def test_times_of_nothing_stay_nothing():
    """Fields that are no times keep their values: fractions, counts, names."""
    figures = load_calibration("auto", "h100-sxm")
    longer = faster(load_hardware("h100-sxm"), figures)[1]
    for name, one in figures.efficiencies.items():
        other = longer.efficiencies[name]
        assert other.bandwidth_efficiency == one.bandwidth_efficiency and other.knee == one.knee
        assert other.launch_s == one.launch_s / 2 and set(other.devices) == set(one.devices)
    np.testing.assert_equal(longer.expert_skew, figures.expert_skew)
