"""Which calibration set serves an experiment."""

from dataclasses import replace

import pytest

from evaluator.catalog import load_calibration
from evaluator.catalog.calibration import HOST, with_host
from evaluator.compare.servers import calibration_for
from evaluator.errors import InputError


def test_the_best_set_is_chosen():
    assert calibration_for("auto", "h100-sxm").name == "h100-sxm-vllm.serving"
    assert calibration_for("auto", "tpu-v6e").name == "vllm.serving"
    assert calibration_for("datasheet", "h100-sxm").name == "datasheet"
    assert calibration_for("GPU-vllm.serving", "l40s").name == "l40s-vllm.serving"
    assert calibration_for("GPU-vllm.serving", "mi300x").name == "datasheet"


def test_a_set_of_other_hardware_is_refused():
    with pytest.raises(InputError, match="is of l40s, not of h100-sxm"):
        calibration_for("l40s-vllm.serving", "h100-sxm")


def test_kernels_take_the_host_of_serving_runs():
    serving = load_calibration("vllm.serving", "any")
    kernels = replace(load_calibration("datasheet", "any"), name="kernels")
    both = with_host(kernels, serving)
    assert both.efficiencies == {**kernels.efficiencies, "sort": serving.efficiencies["sort"]}
    assert all(getattr(both, name) == getattr(serving, name) for name in HOST)
    assert both.name == "kernels, host of vllm.serving"
