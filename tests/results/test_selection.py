import pytest

from evaluator.errors import InputError
from evaluator.results.selection import parse_selection, select
from evaluator.scenario import Axis


def axis(path, *values):
    return Axis(path, values, tuple({path: value} for value in values))


BATCHING = Axis(
    "deployment.batching",
    ("small", "large"),
    (
        {"deployment.batching": {"policy": "chunked", "max_num_batched_tokens": 512}},
        {"deployment.batching": {"policy": "continuous", "max_num_batched_tokens": 8192}},
    ),
)
AXES = (
    axis("deployment.hardware", "h100-sxm", "l40s"),
    axis("deployment.tensor_parallel", 1, 2, 4),
    axis("workload.arrivals.rate_rps", 1.0, 4.157894736842105, 20.0),
    BATCHING,
)


def test_parse_takes_repeated_and_comma_separated_parts():
    assert parse_selection(["tp=4, hardware=l40s", "rate=2"]) == {"tp": "4", "hardware": "l40s", "rate": "2"}
    assert parse_selection([]) == {}


@pytest.mark.parametrize("text", ["tp", "tp=", "=4", "tp=4,"])
def test_parse_refuses_what_is_no_assignment(text):
    with pytest.raises(InputError, match="NAME=VALUE is wanted, such as tp=4"):
        parse_selection([text])


def test_parse_refuses_two_values_of_one_name():
    with pytest.raises(InputError, match="--select tp: given twice, as 4 and as 8"):
        parse_selection(["tp=4", "tp=8"])


@pytest.mark.parametrize(
    "wanted",
    [
        {"hardware": "l40s", "tp": "4", "rate": "20", "policy": "continuous"},
        {"deployment.hardware": "L40S", "tensor_parallel": "4.0", "arrivals.rate_rps": "2e1", "batching": "large"},
        {"hardware": "l40s", "tp": "4", "rate_rps": "20", "max_num_batched_tokens": "8192"},
    ],
)
def test_one_configuration_by_any_spelling(wanted):
    assert select(AXES, wanted) == (1, 2, 2, 1)


def test_a_rounded_number_selects_the_value_that_it_rounds():
    assert select(AXES[2:3], {"rate": "4.16"}) == (1,)
    with pytest.raises(InputError, match=r"--select rate=4.17: not in the sweep; .*rate_rps is 1, 4.15789, 20"):
        select(AXES[2:3], {"rate": "4.17"})


def test_a_number_may_have_its_unit():
    """As the scenario wrote it; the table shows SI numbers."""
    bandwidths = (axis("deployment.hardware.memory_bandwidth", 2e12, 10e12 / 3, 8e12),)
    assert select(bandwidths, {"memory_bandwidth": "2TB/s"}) == (0,)
    assert select(bandwidths, {"memory_bandwidth": "3.33 TB/s"}) == select(bandwidths, {"memory_bandwidth": "3.33e12"})
    with pytest.raises(InputError, match=r"memory_bandwidth=2XB/s: not in the sweep"):
        select(bandwidths, {"memory_bandwidth": "2XB/s"})


def test_an_axis_of_one_value_needs_no_selection():
    assert select((axis("deployment.replicas", 2), AXES[0]), {"hardware": "l40s"}) == (0, 1)
    assert select((), {}) == ()


def test_what_remains_open_is_listed_with_its_values():
    message = (
        r"6 configurations remain; choose one with --select NAME=VALUE on "
        r"deployment.tensor_parallel: 1, 2, 4; deployment.batching: small, large"
    )
    with pytest.raises(InputError, match=message):
        select(AXES, {"hardware": "l40s", "rate": "1"})


def test_a_long_axis_is_cut_in_messages():
    with pytest.raises(InputError, match=r"20 configurations remain; .* 7, \.\.\. \(20 values\)"):
        select((axis("workload.arrivals.rate_rps", *range(20)),), {})


def test_two_names_of_one_zipped_axis_must_agree():
    assert select((BATCHING,), {"policy": "chunked", "max_num_batched_tokens": "512"}) == (0,)
    with pytest.raises(
        InputError, match=r"max_num_batched_tokens=8192: not in the sweep; deployment.batching is small"
    ):
        select((BATCHING,), {"policy": "chunked", "max_num_batched_tokens": "8192"})


def test_unknown_names_are_told_with_the_nearest():
    with pytest.raises(InputError, match="--select hardwear: not an axis of the sweep; did you mean hardware"):
        select(AXES, {"hardwear": "l40s"})
    with pytest.raises(InputError, match="the scenario sweeps nothing, there is one configuration"):
        select((), {"tp": "4"})


def test_an_end_of_several_axes_is_ambiguous():
    axes = (axis("slo.ttft.p90", 1.0, 2.0), axis("slo.tpot.p90", 0.05))
    with pytest.raises(InputError, match=r"--select p90: is an axis more than once: slo.ttft.p90, slo.tpot.p90"):
        select(axes, {"p90": "1"})
    assert select(axes, {"ttft.p90": "2"}) == (1, 0)
