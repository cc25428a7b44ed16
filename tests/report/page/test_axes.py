import numpy as np

from evaluator.report.axes import axes_shown
from evaluator.report.page.axes import axis_json, settings
from tests.results.build import BATCHING, HARDWARE, PARALLEL, RATE, Axis, sweep


def test_axes_that_do_not_vary_are_not_shown():
    one_rate_axis = axes_shown(sweep(HARDWARE, RATE).isel(config=slice(0, 8)))
    assert [axis.key for axis in one_rate_axis] == ["rate_rps"]
    assert axes_shown(sweep()) == []


def test_levels_of_numbers_ascend_and_names_keep_the_order_of_the_sweep():
    ds = sweep(PARALLEL, HARDWARE)
    parallel, hardware = axes_shown(ds.isel(config=np.r_[6:9, 0:6]))
    assert parallel.numeric and parallel.at.tolist() == [2, 2, 2, 0, 0, 0, 1, 1, 1]
    assert [hardware.words(ds, row) for row in hardware.first] == ["h100-sxm", "l40s", "mi300x"]


def test_keys_that_one_axis_sets_together_are_one_axis():
    ds = sweep(BATCHING, RATE)
    batching, rate = axes_shown(ds)
    assert (batching.key, rate.key) == ("batching", "rate_rps")
    found = axis_json(ds, batching, np.arange(ds.sizes["config"]))
    assert found["levels"] == ["chunked, max num batched tokens 512", "continuous"] and not found["numeric"]
    assert found["sets"][0] == [
        "deployment.batching.policy=chunked",
        "deployment.batching.max_num_batched_tokens=512",
    ]
    assert found["sets"][1] == ["deployment.batching.policy=continuous"]


def test_a_table_of_designs_has_an_axis_for_each_column():
    changes = tuple(
        {"deployment.tensor_parallel": 1 + place % 8, "deployment.batching.max_num_seqs": place} for place in range(50)
    )
    table = Axis("design", tuple(f"{at}=x" for at in range(50)), changes, tuple(changes[0]))
    assert [axis.key for axis in axes_shown(sweep(table))] == ["tensor_parallel", "max_num_seqs"]


def test_quantities_in_a_sentence_have_names_and_units():
    ds = sweep(HARDWARE, RATE)
    hardware, rate = axes_shown(ds)
    assert (hardware.quantity(ds, 0), rate.quantity(ds, 3)) == ("h100-sxm", "arrival rate 4 requests/s")


def test_settings_are_what_set_takes():
    ds = sweep(HARDWARE, RATE)
    found = settings(ds, ("hardware", "rate_rps"), 9)
    assert found == ["deployment.hardware=l40s", "workload.arrivals.rate_rps=2"]


def test_a_device_that_the_sweep_describes_is_set_by_its_description():
    ds = sweep(HARDWARE, RATE)
    ds.attrs["scenario"] = """
sweep:
  both:
    zip:
      - deployment.hardware: [h100-sxm, {name: l40s, like: h100-sxm, memory_bandwidth: 5TB/s}]
"""
    described = 'deployment.hardware={"name": "l40s", "like": "h100-sxm", "memory_bandwidth": "5TB/s"}'
    assert settings(ds, ("hardware",), 9) == [described]
    assert settings(ds, ("hardware",), 0) == ["deployment.hardware=h100-sxm"]


def test_a_page_holds_the_levels_of_its_designs_and_no_others():
    ds = sweep(HARDWARE, RATE)
    hardware, rate = (axis_json(ds, axis, np.array([3, 1, 9])) for axis in axes_shown(ds))
    assert (hardware["levels"], hardware["at"], hardware["path"]) == (["h100-sxm", "l40s"], [0, 0, 1], "")
    assert hardware["sets"] == [["deployment.hardware=h100-sxm"], ["deployment.hardware=l40s"]]
    assert (rate["levels"], rate["at"]) == ([2.0, 4.0], [1, 0, 0])
    assert (rate["path"], rate["sets"]) == ("workload.arrivals.rate_rps", None)
