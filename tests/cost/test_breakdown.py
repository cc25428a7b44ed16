"""The parts add up to the whole, and each says what binds it."""

import pytest

from evaluator.cost import Parallel, breakdown, fold, iteration_time, operators
from evaluator.cost.batch import decode_batch, prefill_batch, together
from evaluator.cost.iteration import experts_touched
from evaluator.cost.precision import Precision
from evaluator.cost.utilisation import ideal_time, ideal_times
from tests.cost.fixtures import ALL_MODELS, H100, LLAMA_70B, calibration


@pytest.mark.parametrize("model", ALL_MODELS, ids=lambda model: model.name)
def test_parts_add_up(model):
    found = operators(model, Precision(), Parallel(2, 2))
    batch = together(decode_batch(20.0, 900.0, 128), prefill_batch(1.0, 700, 128))
    parts = breakdown(found, H100, calibration(), batch)
    whole = float(iteration_time(fold(found, H100, calibration()), batch))
    assert sum(part.time_s for part in parts) == pytest.approx(whole, rel=1e-12)
    assert sum(part.share for part in parts) == pytest.approx(1.0, rel=1e-12)


def bounds(batch, **rates):
    parts = breakdown(operators(LLAMA_70B, Precision(), Parallel(4)), H100, calibration(**rates), batch)
    return {part.name: part.bound for part in parts}


def test_bounds():
    decode, prefill = bounds(decode_batch(8.0, 1000.0, None)), bounds(prefill_batch(1.0, 4096, None))
    assert decode["feed_forward.gate_up"] == decode["attention.decode"] == decode["head"] == "memory"
    assert prefill["feed_forward.gate_up"] == prefill["attention.prefill"] == "compute"
    assert prefill["attention.all_reduce"] == decode["attention.all_reduce"] == "network"
    assert prefill["host.step"] == decode["attention.launch"] == "overhead"
    assert bounds(decode_batch(1.0, 1.0, None), launch_s=1e-3)["attention.qkv"] == "overhead"


@pytest.mark.parametrize("model", ALL_MODELS, ids=lambda model: model.name)
def test_ideal_times_are_the_work_of_the_parts(model):
    found = operators(model, Precision(weights="bf16"), Parallel())
    batch = together(decode_batch(20.0, 900.0, 128), prefill_batch(1.0, 700, 128))
    parts = breakdown(found, H100, calibration(), batch)
    compute, memory = ideal_times(found, H100)
    touched = experts_touched(fold(found, H100, calibration()).log_expert_missed, 720.0)
    assert ideal_time(compute, batch) == pytest.approx(sum(part.flops for part in parts) / 989e12, rel=1e-12)
    assert ideal_time(memory, batch, touched=touched) == pytest.approx(
        sum(part.bytes for part in parts) / 3.35e12, rel=1e-12
    )
