import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.keys import split_path
from evaluator.scenario import Deployment, expand, load_scenario, sweep, with_engine_defaults
from evaluator.scenario.key_paths import leaves, put

TP = "deployment.tensor_parallel"
RATE = "workload.arrivals.rate_rps"
BATCHING = "deployment.batching"


def axis(base, path, values):
    base["sweep"] = {path: values}
    (only,) = load_scenario(base).sweep
    return only


def test_keys_of_a_router_are_swept_below_its_name(base):
    """One of them alone, beside the others that the scenario says."""
    base["deployment"]["router"] = {"prefix_aware": {"threshold": 0.5}}
    base["sweep"] = {"deployment.router.prefix_aware.events_delay_s": ["100ms", 2]}
    routers = [point[1].router for point in expand(load_scenario(base)).points]
    assert [(router.threshold, router.events_delay_s) for router in routers] == [(0.5, 0.1), (0.5, 2.0)]
    base["sweep"] = {"deployment.router.heavy_light.heavy_replicas": [1, 2]}
    base["deployment"]["router"] = {"heavy_light": {"prompt_tokens": 100}}
    assert [point[1].router.heavy_replicas for point in expand(load_scenario(base)).points] == [1, 2]


@pytest.mark.parametrize(
    ("path", "written", "values"),
    [
        (TP, [1, 2, 8], (1, 2, 8)),
        (TP, [4e0], (4,)),
        (TP, {"linspace": [1, 4, 4]}, (1, 2, 3, 4)),
        (TP, {"range": [1, 8, 3]}, (1, 4, 7)),
        (TP, {"range": [1, 7, 3]}, (1, 4, 7)),
        (TP, {"range": [8, 1, -4]}, (8, 4)),
        (RATE, {"linspace": [1, 20, 3]}, (1.0, 10.5, 20.0)),
        (RATE, {"linspace": [3, 4, 1]}, (3.0,)),
        (RATE, {"logspace": [1, 100, 3]}, (1.0, 10.0, 100.0)),
        (RATE, {"geomspace": [1, 8, 4]}, (1.0, 2.0, 4.0, 8.0)),
        (RATE, {"range": [0.1, 0.5, 0.1]}, (0.1, 0.2, 0.3, 0.4, 0.5)),
        (RATE, ["30 1/min", 2], (0.5, 2.0)),
        ("slo.ttft.p90", ["500ms", "2s"], (0.5, 2.0)),
        ("slo.ttft.p99.9", {"linspace": ["1s", "2s", 3]}, (1.0, 1.5, 2.0)),
        ("slo.tpot.mean", {"range": ["10ms", "30ms", "10ms"]}, (0.01, 0.02, 0.03)),
        ("deployment.model", ["llama-3.1-8b", "llama-3.1-70b"], ("llama-3.1-8b", "llama-3.1-70b")),
        ("deployment.batching.max_num_batched_tokens", [512, None], (512, "none")),
        ("deployment.precision.kv", ["bf16", "fp8"], ("bf16", "fp8")),
        ("workload.lengths.prompt_tokens", [128, 1024], (128, 1024)),
    ],
)
def test_forms(base, path, written, values):
    read = axis(base, path, written)
    assert read.values == values
    assert [type(value) for value in read.values] == [type(value) for value in values]
    if "none" not in values:
        assert [change[path] for change in read.changes] == list(values)


def test_zip_and_mappings_merge_into_what_is_there(base):
    base["deployment"]["batching"] = {"max_num_seqs": 64}
    entries = [{"policy": "chunked", "max_num_batched_tokens": 512}, {"policy": "static"}]
    for written in ({"zip": entries}, entries):
        read = axis(base, BATCHING, written)
        assert read.values == ("policy=chunked,max_num_batched_tokens=512", "policy=static")
        assert read.changes[0] == {f"{BATCHING}.policy": "chunked", f"{BATCHING}.max_num_batched_tokens": 512}
        points = expand(load_scenario(base)).points
        assert [point[1].batching.policy for point in points] == ["chunked", "static"]
        assert [point[1].batching.max_num_batched_tokens for point in points] == [512, None]
        assert {point[1].batching.max_num_seqs for point in points} == {64}


def test_a_zip_over_the_whole_deployment(base):
    del base["deployment"]["hardware"]
    entries = [
        {"hardware": "h100-sxm", "tensor_parallel": 4, "batching.max_num_seqs": 8},
        {"hardware": "l40s", "tensor_parallel": 8, "precision": {"kv": "fp8"}},
    ]
    read = axis(base, "deployment", {"zip": entries})
    assert read.values == (
        "hardware=h100-sxm,tensor_parallel=4,max_num_seqs=8",
        "hardware=l40s,tensor_parallel=8,kv=fp8",
    )
    points = expand(load_scenario(base)).points
    assert [point[1].hardware for point in points] == ["h100-sxm", "l40s"]
    assert [with_engine_defaults(point[1]).batching.max_num_seqs for point in points] == [8, 256]
    assert [point[1].precision.kv for point in points] == ["bf16", "fp8"]


def test_labels_of_objectives(base):
    read = axis(base, "slo", [{"ttft": {"p99.9": "1s", "mean": "500ms"}}, {"ttft.mean": 2}])
    assert read.values == ("p99.9=1,mean=0.5", "mean=2")


def test_axes_of_arrivals_change_the_process(base):
    written = [{"process": "poisson"}, {"process": "gamma", "cv": 2}, {"process": "closed_loop", "users": 8}]
    read = axis(base, "workload.arrivals", written)
    assert read.values == ("process=poisson", "process=gamma,cv=2", "process=closed_loop,users=8")
    arrivals = [point[0].arrivals for point in expand(load_scenario(base)).points]
    assert [(each.process, each.rate_rps, each.cv, each.users) for each in arrivals] == [
        ("poisson", 4.0, None, None),
        ("gamma", 4.0, 2.0, None),
        ("closed_loop", None, None, 8),
    ]


def test_axes_of_lengths_change_the_source(base, trace_csv):
    axis(base, "workload.lengths", [{"source": "azure-conv-2023"}, {"prompt_tokens": 7}, {"trace": str(trace_csv)}])
    base["workload"]["requests"] = 4
    workloads = [point[0] for point in expand(load_scenario(base)).points]
    assert [each.lengths.source for each in workloads] == ["azure-conv-2023", "fixed", "trace"]
    assert workloads[1].lengths.parameters == {"prompt_tokens": 7, "output_tokens": 10}


def test_required_keys_may_be_there_only_in_the_sweep(base):
    del base["deployment"]["model"], base["workload"]["arrivals"]
    base["sweep"] = {
        "deployment.model": ["llama-3.1-8b"],
        RATE: [3],
        "workload.arrivals.process": ["poisson", "uniform"],
    }
    grid = expand(load_scenario(base))
    assert grid.shape == (1, 1, 2)
    assert [point[0].arrivals.process for point in grid.points] == ["poisson", "uniform"]


def test_defaults_follow_what_is_swept(base, tmp_path, trace_csv):
    read = axis(base, "workload.requests", [100, 2000])
    assert [change["workload.warmup_requests"] for change in read.changes] == [10, 200]
    assert [point[0].warmup_requests for point in expand(load_scenario(base)).points] == [10, 200]
    shorter = tmp_path / "shorter.csv"
    shorter.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,2,2\n")
    base["workload"] = {"arrivals": {"process": "trace"}}
    axis(base, "workload.arrivals.file", [str(trace_csv), str(shorter)])
    workloads = [point[0] for point in expand(load_scenario(base)).points]
    assert [each.requests for each in workloads] == [4, 2]
    assert [each.lengths.file for each in workloads] == [str(trace_csv), str(shorter)]


BAD = {
    "unknown key": (
        {"deployment.tensor_paralel": [1]},
        r"deployment\.tensor_paralel \(sweep\.deployment\.tensor_paralel, "
        r"value 1 of 1\): unknown key \(did you mean tensor_parallel\?\)",
    ),
    "unknown section": (
        {"deploymnet.replicas": [1]},
        r"sweep\.deploymnet\.replicas: an axis is a key path below "
        r"workload, deployment, pipeline, slo \(did you mean deployment\?\)",
    ),
    "unknown key below": (
        {"deployment.batching.polcy": ["static"]},
        r"deployment\.batching\.polcy .*did you mean policy",
    ),
    "below a value": (
        {"deployment.replicas.x": [1]},
        r"deployment\.replicas holds a value, so nothing can be set below",
    ),
    "bad value": (
        {TP: [1, 2, 0]},
        r"deployment\.tensor_parallel \(sweep\.deployment\.tensor_parallel, value 3 of 3\): "
        r"must be an integer from 1 to 4096, got 0",
    ),
    "nan": ({RATE: [1, float("nan")]}, r"rate_rps \(sweep.*value 2 of 2\): nan is not a finite number"),
    "model": ({"deployment.model": ["llama-3.1-7b"]}, r"deployment\.model \(sweep.*unknown model 'llama-3\.1-7b'"),
    "router": ({"deployment.router": ["random", "least_kw"]}, r"'least_kw' is not one of .*did you mean least_kv"),
    "pools": (
        {"deployment.pools": [{"a": 1}]},
        r"deployment\.pools\.a.*: expected a section with the keys role, model",
    ),
    "empty": ({TP: []}, r"sweep\.deployment\.tensor_parallel: the axis is empty"),
    "empty zip": ({BATCHING: {"zip": []}}, r"sweep\.deployment\.batching: the axis is empty"),
    "empty entry": (
        {BATCHING: {"zip": [{}]}},
        r"sweep\.deployment\.batching\[0\]: expected a value .* sweep the section around",
    ),
    "nested list": ({TP: [[1, 2]]}, r"sweep\.deployment\.tensor_parallel\[0\]: expected a value or a section"),
    "scalar": (
        {TP: 4},
        r"expected a list or one of linspace, logspace, geomspace, range, zip, between with its arguments, got 4",
    ),
    "form": ({TP: {"linspce": [1, 2, 3]}}, r"expected a list or one of .*\(did you mean linspace\?\)"),
    "two forms": ({TP: {"linspace": [1, 2, 3], "range": [1, 2, 1]}}, r"expected a list or one of"),
    "arguments": ({TP: {"linspace": [1, 2]}}, r"parallel\.linspace: expected \[first, last, how many\], got \[1, 2\]"),
    "range": ({TP: {"range": 3}}, r"range: expected \[first, last, step\], got 3"),
    "twice": (
        {RATE: [0.5, 2, "30 1/min"]},
        r"\(sweep\.workload\.arrivals\.rate_rps, value 3 of 3\): "
        r"workload\.arrivals\.rate_rps is the same as value 1: 0\.5; keep one",
    ),
    "section twice": (
        {BATCHING: [{"policy": "static", "max_num_seqs": 8}, {"max_num_seqs": 8, "policy": "static"}]},
        r"value 2 of 2\): deployment\.batching is the same as value 1: max_num_seqs=8,policy=static; keep one",
    ),
    "seeds inside": ({"workload": [{"seeds": [0]}, {"seeds": [1]}]}, r"sweep\.workload: seeds are repetitions"),
    "step": ({TP: {"range": [1, 8, 0]}}, r"the step must lead from the first to the last"),
    "backwards": ({TP: {"range": [1, 8, -1]}}, r"the step must lead from the first to the last"),
    "too many": ({RATE: {"range": [1, 2, 1e-12]}}, r"too many values; the limit is 10,000,000"),
    "count": ({TP: {"linspace": [1, 2, 0]}}, r"linspace\[2\]: must be an integer from 1"),
    "logarithm of 0": ({RATE: {"logspace": [0, 2, 3]}}, r"both ends must be greater than 0"),
    "text": ({RATE: {"linspace": ["a", "b", 3]}}, r"expected finite numbers, got 'a'"),
    "infinite": ({RATE: {"linspace": [1, float("inf"), 3]}}, r"expected finite numbers, got inf"),
    "two units": ({"slo.ttft.p90": {"linspace": ["500ms", "2s", 3]}}, r"write all ends in the same unit"),
    "not whole": ({TP: {"linspace": [1, 2, 3]}}, r"value 2 of 3\): expected an integer, got 1\.5"),
    "zip of values": ({BATCHING: {"zip": [1]}}, r"batching\.zip: expected a list of sections such as"),
    "seeds": (
        {"workload.seeds": [0, 1]},
        r"seeds are repetitions of one design, not designs: list them in workload\.seeds",
    ),
    "figures": (
        {"deployment.hardware.memory_bandwidth": ["3TB/s", 1]},
        r"value 2 of 2\): 1 byte/s is no figure of a device; write its unit, as 3\.35TB/s",
    ),
    "figures below": (
        {"deployment.hardware": [{"memory_bandwidth": "3TB/s"}]},
        r"deployment\.hardware\.peak_flops \(.*value 1 of 1\): missing; or say which device .* {like: h100-sxm",
    ),
    "figures on top": (
        {"hardware.memory_bandwidth": ["3TB/s"]},
        r"an axis is a whole key path: write deployment\.hardware\.memory_bandwidth",
    ),
    "same key twice": (
        {BATCHING: [{"policy": "static"}], f"{BATCHING}.policy": ["mixed"]},
        r"sweep\.deployment\.batching\."
        r"policy: sets deployment\.batching\.policy, which the axis deployment\.batching sets too",
    ),
    "warm-up": (
        {"workload.warmup_requests": [10, 1000]},
        r"warmup_requests \(sweep.*value 2.*must be less than requests",
    ),
    "cached": ({"workload.cached_tokens": [10, 100]}, r"cached_tokens \(sweep.*value 2.*must be less than the prompt"),
    "not a mapping": ([1], r"sweep: expected axes such as workload\.arrivals\.rate_rps"),
    "huge": ({TP: {"range": [1, 4000, 1]}, RATE: {"linspace": [1, 2, 4000]}}, r"sweep: 16,000,000 points are too many"),
}


@pytest.mark.parametrize(("sweep", "message"), BAD.values(), ids=BAD.keys())
def test_messages(base, sweep, message):
    base["sweep"] = sweep
    with pytest.raises(InputError, match=message):
        load_scenario(base)


def test_axes_that_exclude_each_other_are_named_when_they_meet(base):
    base["sweep"] = {
        "workload.arrivals": [{"process": "poisson"}, {"process": "closed_loop", "users": 3}],
        RATE: [1, 2],
    }
    with pytest.raises(
        InputError, match=r"rate_rps \(sweep: .*users=3, .*rate_rps = 1\.0\): not a key of process closed"
    ):
        expand(load_scenario(base))


def test_points_are_in_c_order_and_share_what_they_can(base):
    base["sweep"] = {
        RATE: [1, 2],
        TP: [1, 2, 4],
        "slo.ttft.p90": ["1s", "2s"],
        "deployment.batching.max_num_seqs": [8, 16],
        "workload.cached_tokens": [0, 5],
    }
    grid = expand(load_scenario(base))
    assert grid.shape == (2, 3, 2, 2, 2)
    expected = list(itertools.product([1.0, 2.0], [1, 2, 4], [1.0, 2.0], [8, 16], [0, 5]))
    found = [
        (w.arrivals.rate_rps, d.tensor_parallel, slo[0].bound_s, d.batching.max_num_seqs, w.cached_tokens)
        for w, d, slo in grid.points
    ]
    assert found == expected
    assert len({id(point[0]) for point in grid.points}) == 4
    assert len({id(point[1]) for point in grid.points}) == 6


def test_without_a_sweep_there_is_one_point(base):
    scenario = load_scenario(base)
    assert expand(scenario).points == [(scenario.workload, scenario.deployment, scenario.slo)]
    assert expand(scenario).shape == ()


def test_expand_starts_from_the_scenario_as_it_is_now(base):
    base["sweep"] = {TP: [1, 2]}
    scenario = load_scenario(base)
    changed = dataclasses.replace(scenario, deployment=dataclasses.replace(scenario.deployment, replicas=7))
    assert {point[1].replicas for point in expand(changed).points} == {7}


def test_a_large_grid_reads_each_value_once(base, monkeypatch):
    """100,000 points without reading 100,000 values: what makes it quick, without timing it."""
    from evaluator.scenario import grid

    base["sweep"] = {RATE: {"linspace": [1, 9, 1000]}, TP: {"range": [1, 100, 1]}}
    scenario = load_scenario(base)
    calls = []
    read = grid.read_field
    monkeypatch.setattr(grid, "read_field", lambda *arguments: calls.append(1) or read(*arguments))
    points = expand(scenario).points
    assert len(points) == 100_000
    assert len(calls) == 2 + 100  # of the rates the least and the greatest alone
    monkeypatch.setattr(grid, "MANY", 1001)  # each of them is read
    assert [workload for workload, *_ in points[::100]] == [workload for workload, *_ in expand(scenario).points[::100]]
    assert len(calls) == 2 + 100 + 1000 + 100


def test_a_large_grid_of_figures_reads_their_extremes(base, monkeypatch):
    """Each figure has an axis, and what one may be does not hang on the other."""
    from evaluator.catalog.what_if import HERE, device, read_device
    from evaluator.scenario import grid

    figures = {"memory_bandwidth": [2e12, 4e12, 30], "memory_bytes": [4e10, 9e10, 40]}
    base["sweep"] = {f"deployment.hardware.{name}": {"linspace": space} for name, space in figures.items()}
    scenario = load_scenario(base)
    calls = []
    read = grid.read_field
    monkeypatch.setattr(grid, "read_field", lambda *arguments: calls.append(1) or read(*arguments))
    few = [deployment.hardware for _, deployment, _ in expand(scenario).points]
    assert len(few) == 1200 and len(calls) <= 4
    monkeypatch.setattr(grid, "MANY", 1201)  # each of them is read
    every = [deployment.hardware for _, deployment, _ in expand(scenario).points]
    assert few == every and len(calls) > 1200
    assert [device(of) for of in few[::77]] == [read_device(of.parameters, HERE) for of in few[::77]]


_names = st.sampled_from(["a", "b", "p99.9", "c-3.1"])
_trees = st.recursive(st.integers(), lambda inner: st.dictionaries(_names, inner, min_size=1, max_size=3), max_leaves=8)


@given(_trees.filter(lambda tree: isinstance(tree, dict)))
def test_leaves_rebuild_the_tree(tree):
    built = {}
    for path, value in leaves(tree, ""):
        built = put(built, split_path(path), value)
    if all("3" not in path for path, _ in leaves(tree, "")):  # a name may hold a dot only before a digit
        assert built == tree


def test_dataclass_defaults_and_table_defaults_are_the_same(base):
    named = {"model": "llama-3.1-70b", "hardware": "l40s", "engine_version": "0.15"}
    base["deployment"] = {**named, "kv": {"admission": "reserve"}}
    read = load_scenario(base).deployment
    assert with_engine_defaults(read) == Deployment(**named)
    assert read.precision == Precision()


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), "fast"])
def test_a_long_axis_of_rates_is_read_by_its_extremes(base, wrong, monkeypatch):
    """All that a rate may be is above 0: the least and the largest tell of all. What is none is told at its place."""
    rates = [1 + number / 8 for number in range(1200)]
    base["sweep"] = {"workload.arrivals.rate_rps": rates}
    read = []
    plain = sweep.read_field
    monkeypatch.setattr(sweep, "read_field", lambda *given: read.append(given) or plain(*given))
    (axis,) = load_scenario(base).sweep
    assert list(axis.values) == rates and len(read) == 2
    assert axis.changes[7] == {"workload.arrivals.rate_rps": rates[7]}
    base["sweep"] = {"workload.arrivals.rate_rps": [*rates, wrong, 3.03]}
    with pytest.raises(InputError, match=r"value 1201 of 1202"):
        load_scenario(base)
    base["sweep"] = {"workload.arrivals": [{"process": "poisson", "rate_rps": rate} for rate in rates]}
    assert [change["workload.arrivals.rate_rps"] for change in load_scenario(base).sweep[0].changes] == rates


def test_devices_that_say_their_name_are_told_by_it(base):
    described = {"name": "mine", "like": "h100-sxm", "memory_bandwidth": "4TB/s"}
    base["sweep"] = {"deployment.hardware": ["h100-sxm", described]}
    (axis,) = load_scenario(base).sweep
    assert axis.values == ("h100-sxm", "mine")
