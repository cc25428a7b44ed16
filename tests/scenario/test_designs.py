"""Designs in every form in which people have them: tables, zips over sections, samples; and conditions on points."""

import math
from decimal import Decimal

import numpy as np
import pytest

from evaluator.errors import InputError, InputWarning
from evaluator.results.coordinates import axis_coordinates
from evaluator.scenario import expand, load_scenario, size
from evaluator.scenario.conditions import LONGEST
from evaluator.scenario.short_names import key_readers

TP = "deployment.tensor_parallel"
RATE = "workload.arrivals.rate_rps"
SEQS = "deployment.batching.max_num_seqs"


def table(tmp_path, text, **more):
    path = tmp_path / "designs.csv"
    path.write_text(text)
    return {"table": str(path), **more}


def swept(base, sweep):
    base["sweep"] = sweep
    return expand(load_scenario(base))


# ---- tables


def test_a_row_of_a_table_is_a_design(base, tmp_path):
    text = """tensor_parallel, deployment.hardware, workload.requests,ttft_p90,swap_bandwidth
4,h100-sxm,100,500ms,25GB/s
8,l40s,,1s,

2,,2000,,
"""
    grid = swept(base, table(tmp_path, text))
    assert grid.shape == (3,)
    (axis,) = grid.axes
    assert (axis.name, axis.values) == ("design", (1, 2, 3))
    found = [
        (w.requests, w.warmup_requests, d.tensor_parallel, d.hardware, d.kv.swap_bandwidth, [o.bound_s for o in slo])
        for w, d, slo in grid.points
    ]
    assert found == [
        (100, 10, 4, "h100-sxm", 25e9, [0.5]),
        (1000, 100, 8, "l40s", None, [1.0]),
        (2000, 200, 2, "h100-sxm", None, []),
    ]
    (columns,) = axis_coordinates(grid.axes)
    names = ["design", "tensor_parallel", "hardware", "requests", "ttft_p90", "swap_bandwidth"]
    assert list(columns) == names
    np.testing.assert_array_equal(columns["requests"][1], [100, 1000, 2000])
    np.testing.assert_array_equal(columns["ttft_p90"][1], [0.5, 1.0, np.nan])


def test_a_table_is_one_axis_beside_others(base, tmp_path):
    sweep = table(tmp_path, "design,tensor_parallel,max_num_seqs\nsmall,1,8\nlarge,8,64\nwide,8,8\n")
    grid = swept(base, sweep | {RATE: [1, 2]})
    assert grid.shape == (3, 2)
    assert grid.axes[0].values == ("small", "large", "wide")
    found = [(d.tensor_parallel, d.batching.max_num_seqs, w.arrivals.rate_rps) for w, d, _ in grid.points]
    assert found == [(1, 8, 1), (1, 8, 2), (8, 64, 1), (8, 64, 2), (8, 8, 1), (8, 8, 2)]
    assert len({id(w) for w, _, _ in grid.points}) == 2
    assert len({id(d.batching) for _, d, _ in grid.points}) == 2


def test_a_table_may_have_any_name_and_stand_beside_the_scenario(base, tmp_path):
    (tmp_path / "machines.csv").write_text("hardware\nl40s\nh100-sxm\n")
    base["sweep"] = {"machines": {"table": "machines.csv"}}
    path = tmp_path / "s.yaml"
    path.write_text(load_scenario({**base, "sweep": None}).text.replace("sweep: null", "") + "\n")
    with path.open("a") as file:
        file.write("sweep: {machines: {table: machines.csv}}\n")
    scenario = load_scenario(path)
    assert scenario.sweep[0].name == "machines"
    assert [point[1].hardware for point in expand(scenario).points] == ["l40s", "h100-sxm"]


def test_parquet(base, tmp_path):
    pandas = pytest.importorskip("pandas")
    rows = {"tensor_parallel": [1.0, np.nan], "hardware": ["l40s", None], "swap_bytes": ["8GB", "1e9"]}
    pandas.DataFrame(rows).to_parquet(tmp_path / "designs.parquet")
    grid = swept(base, {"table": str(tmp_path / "designs.parquet")})
    found = [(d.tensor_parallel, d.hardware, d.kv.swap_bytes) for _, d, _ in grid.points]
    assert found == [(1, "l40s", 8e9), (1, "h100-sxm", 1e9)]


def test_values_that_rows_repeat_are_read_once(base, tmp_path, monkeypatch):
    from evaluator.scenario import grid

    asked = []
    read = grid.read_field
    monkeypatch.setattr(grid, "read_field", lambda *a: asked.append(a[2]) or read(*a))
    rows = "".join(f"{tp},{rate}\n" for tp in (1, 2) for rate in range(1, 51))
    points = swept(base, table(tmp_path, f"tensor_parallel,rate_rps\n{rows}")).points
    assert len(points) == 100 and len(asked) == 2 + 50
    assert len({id(deployment) for _, deployment, _ in points}) == 2


def test_columns_of_the_same_name_in_parquet_are_refused(base, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "designs.parquet"
    parquet.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["replicas"] * 2), path)
    with pytest.raises(InputError, match=r"the columns replicas and replicas are the same key deployment\.replicas"):
        swept(base, {"table": str(path)})


def test_parquet_as_databases_and_pandas_write_it(base, tmp_path):
    pandas = pytest.importorskip("pandas")
    rows = pandas.DataFrame({"tensor_parallel": [Decimal("1"), Decimal("2")], "rate_rps": [Decimal("1.5")] * 2})
    path = tmp_path / "designs.parquet"
    rows.to_parquet(path)
    found = swept(base, {"table": str(path)}).points
    assert [(w.arrivals.rate_rps, d.tensor_parallel) for w, d, _ in found] == [(1.5, 1), (1.5, 2)]
    rows.set_index(pandas.Index(["a", "b"])).to_parquet(path)
    with pytest.raises(InputError, match=r"column __index_level_0__: this is the index of pandas.*index=False"):
        swept(base, {"table": str(path)})


BAD_TABLES = {
    "cell": (
        "hardware,tensor_parallel\nl40s,1\nl40s,0\n",
        r"designs\.csv, line 3: deployment\.tensor_parallel \(column tensor_parallel\): must be an integer from 1",
    ),
    "unit": (
        "swap_bytes\n8GB\n8Gb/s\n",
        r"line 3: deployment\.kv\.swap_bytes \(column swap_bytes\): unknown unit 'Gb/s'",
    ),
    "name": ("hardware\nh100\n", r"line 2: deployment\.hardware \(column hardware\): unknown hardware"),
    "column": (
        "tensor_paralel\n1\n",
        r"column tensor_paralel: tensor_paralel is no key .*did you mean tensor_parallel\?",
    ),
    "ambiguous": ("kv,min\n1,2\n", r"column min: min is no key of a scenario"),
    "full path": ("deployment.tp\n1\n", r"line 2: deployment\.tp \(column deployment\.tp\): unknown key"),
    "column twice": (
        "tensor_parallel,deployment.tensor_parallel\n1,2\n",
        r"the columns tensor_parallel and deployment\.tensor_parallel are the same key",
    ),
    "ragged": ("hardware,replicas\nl40s\n", r"designs\.csv, line 2: 1 values for 2 columns"),
    "no rows": ("hardware\n", r"designs\.csv: the table has no rows; a row is a design"),
    "empty": ("", r"expected a header with a key in every column"),
    "same rows": (
        "hardware,replicas\nl40s,1\nl40s,2\nl40s,1.0\n",
        r"designs\.csv, line 4: design is the same as line 2: hardware=l40s,replicas=1; keep one",
    ),
    "same names": ("design,replicas\na,1\na,2\n", r"line 3: the design a is there already, on line 2"),
    "no name": ("design,replicas\na,1\n,2\n", r"line 3: the design has no name"),
    "semicolons": ("hardware;replicas\nl40s;1\n", r"designs\.csv: columns are separated by commas .*, not by ';'"),
    "tabs": ("hardware\treplicas\nl40s\t1\n", r"designs\.csv: columns are separated by commas .*, not by '\\t'"),
    "index": (",replicas\n0,1\n", r"without a name is the index of pandas: write with index=False"),
    "seeds": ("workload.seeds\n1\n2\n", r"seeds are repetitions of one design"),
    "bound": ("ttft_p90\n1000\n", r"line 2: slo\.ttft\.p90 \(column ttft_p90\): 1000 is 1,000 s; write '1000s'"),
}


@pytest.mark.parametrize(("text", "message"), BAD_TABLES.values(), ids=BAD_TABLES.keys())
def test_messages_of_tables(base, tmp_path, text, message):
    base["sweep"] = table(tmp_path, text)
    with pytest.raises(InputError, match=message):
        load_scenario(base)


def test_a_table_and_an_axis_of_the_same_key(base, tmp_path):
    base["sweep"] = table(tmp_path, "replicas\n1\n2\n") | {"deployment.replicas": [1, 2]}
    with pytest.raises(InputError, match=r"sets deployment\.replicas, which the axis design sets too"):
        load_scenario(base)


def test_a_large_table_reads_equal_cells_once(base, tmp_path, monkeypatch):
    from evaluator.scenario import grid

    rows = "\n".join(f"{1 + n % 4},{8 * (1 + n // 4 % 5)},{1 + n / 1000}" for n in range(2000))
    base["sweep"] = table(tmp_path, f"tensor_parallel,max_num_seqs,rate_rps\n{rows}\n")
    scenario = load_scenario(base)
    calls, read = [], grid.read_field
    monkeypatch.setattr(grid, "read_field", lambda *arguments: calls.append(arguments[1]) or read(*arguments))
    points = expand(scenario).points
    assert len({id(d) for _, d, _ in points}) == 20
    assert len({id(w) for w, _, _ in points}) == 2000


# ---- zips over sections


def test_a_zip_over_several_sections(base):
    entries = [
        {"workload.arrivals": {"process": "closed_loop", "users": 8}, "tensor_parallel": 2},
        {"workload.arrivals.rate_rps": 3, "deployment": {"replicas": 2}},
    ]
    grid = swept(base, {"pairs": {"zip": entries}, SEQS: [8, 16]})
    assert grid.shape == (2, 2)
    assert grid.axes[0].values[0] == "process=closed_loop,users=8,tensor_parallel=2"
    found = [(w.arrivals.process, w.arrivals.users, d.tensor_parallel, d.replicas) for w, d, _ in grid.points]
    assert found == [("closed_loop", 8, 2, 1)] * 2 + [("poisson", None, 1, 2)] * 2
    columns, _ = axis_coordinates(grid.axes)
    assert next(iter(columns)) == "pairs" and {"users", "tensor_parallel", "rate_rps", "replicas"} < set(columns)


def test_messages_of_zips(base):
    for sweep, message in (
        ({"pairs": [1, 2]}, r"sweep\.pairs: an axis is a key path below .*, or a name for designs in a zip or a table"),
        ({"pairs": {"zip": []}}, r"sweep\.pairs: the axis is empty"),
        ({"pairs": {"zip": [{}]}}, r"sweep\.pairs\.zip\[0\]: expected a value or a section"),
        ({"pairs": {"zip": [{"tp": 1}]}}, r"sweep\.pairs\.zip\[0\]: tp is no key of a scenario"),
        ({"pairs": {"zip": [{TP: 0}]}}, r"tensor_parallel \(sweep\.pairs, value 1 of 1\): must be an integer"),
        ({"pairs": {"zip": [{TP: 1}, {TP: 1}]}}, r"value 2 of 2\): pairs is the same as value 1: tensor_parallel=1"),
    ):
        base["sweep"] = sweep
        with pytest.raises(InputError, match=message):
            load_scenario(base)


# ---- samples


@pytest.mark.parametrize("method", ["sobol", "latin_hypercube", "halton", "random"])
def test_a_sample_covers_bounds_and_choices(base, method):
    sweep = {
        "sample": {"method": method, "size": 256, "seed": 3},
        TP: {"between": [1, 8], "log": True},
        SEQS: {"between": [1, 4]},
        "deployment.kv.swap_bytes": {"between": ["1GB", "3GB"]},
        "deployment.hardware": ["h100-sxm", "l40s"],
        RATE: {"between": [0.5, 8.5]},
    }
    grid = swept(base, sweep)
    assert grid.shape == (256,)
    assert grid.axes[0].values == tuple(range(1, 257))
    deployments = [d for _, d, _ in grid.points]
    assert {d.tensor_parallel for d in deployments} == set(range(1, 9))
    seqs = [d.batching.max_num_seqs for d in deployments]
    assert all(40 < seqs.count(number) < 90 for number in (1, 2, 3, 4))
    assert 90 < sum(d.hardware == "l40s" for d in deployments) < 166
    assert all(1e9 <= d.kv.swap_bytes <= 3e9 for d in deployments)
    rates = np.array([w.arrivals.rate_rps for w, _, _ in grid.points])
    assert 0.5 <= rates.min() < 0.8 and 8.2 < rates.max() <= 8.5
    below = sum(d.tensor_parallel <= 2 for d in deployments) / 256  # a third of the way from log 1 to log 9, twice
    assert abs(below - math.log(3) / math.log(9)) < 0.1


def test_a_sample_is_the_same_for_the_same_seed(base):
    def rates(seed, size=8):
        sample = {"method": "sobol", "size": size, "seed": seed}
        return [w.arrivals.rate_rps for w, _, _ in swept(base, {"sample": sample, RATE: {"between": [1, 2]}}).points]

    assert rates(1) == rates(1)
    assert rates(1) != rates(2)
    assert rates(1, 8) == rates(1, 11)[:8]
    assert len(rates(1, 1)) == 1


def test_axes_beside_a_sample_are_taken_whole(base):
    sample = {"size": 4, "beside": [RATE]}
    grid = swept(base, {"sample": sample, RATE: {"linspace": [1, 3, 3]}, SEQS: {"between": [1, 100]}, TP: [1, 2]})
    assert [axis.name for axis in grid.axes] == [RATE, "design"]
    assert grid.shape == (3, 4)


def test_messages_of_samples(base):
    between = {SEQS: {"between": [1, 4]}}
    for sweep, message in (
        (between, r"max_num_seqs: between is to be sampled from: add sweep\.sample: \{size: 256\}"),
        ({"sample": {"size": 4}}, r"sweep\.sample: there is no axis to sample from"),
        ({"sample": {}, **between}, r"sweep\.sample\.size: is required"),
        ({"sample": {"size": 4, "method": "sobel"}, **between}, r"sample\.method: 'sobel' is not one of sobol"),
        ({"sample": {"size": 4, "beside": ["x"]}, **between}, r"sample\.beside: x is no axis with values of its own"),
        ({"sample": {"size": 4}, SEQS: {"between": [4, 1]}}, r"the lowest must be less than the highest"),
        ({"sample": {"size": 4}, SEQS: {"between": [0, 4], "log": True}}, r"both must be greater than 0"),
        ({"sample": {"size": 4}, SEQS: {"between": [1, 4], "lg": True}}, r"unknown key \(did you mean log\?\)"),
        ({"sample": {"size": 4}, SEQS: {"between": [1, "4GB"]}}, r"write all ends in the same unit"),
        ({"sample": {"size": 4}, SEQS: {"between": 4}}, r"expected \[lowest, highest\], got 4"),
        (
            {"sample": {"size": 4}, TP: {"between": [0, 1]}},
            r"tensor_parallel \(sweep\.sample, design \d of 4\): must be",
        ),
        ({"sample": {"size": 4, "seed": -1}, **between}, r"sample\.seed: must be an integer from 0"),
    ):
        base["sweep"] = sweep
        with pytest.raises(InputError, match=message):
            load_scenario(base)


def test_every_key_that_counts_is_drawn_as_an_integer():
    readers = key_readers()
    assert readers[TP].whole and readers["workload.arrivals.users"].whole and readers[SEQS].whole
    assert not readers[RATE].whole and not readers["deployment.kv.watermark"].whole


# ---- conditions

AXES = {TP: [1, 2, 4, 8], "deployment.replicas": [1, 2, 4], "deployment.hardware": ["h100-sxm", "l40s"]}
CONDITIONS = {
    "tensor_parallel * replicas <= 8": lambda t, r, h: t * r <= 8,
    "deployment.tensor_parallel == 4 and replicas > 1": lambda t, r, h: t == 4 and r > 1,
    "hardware == 'l40s' or not tensor_parallel > 2": lambda t, r, h: h == "l40s" or not t > 2,
    "1 < tensor_parallel <= 4": lambda t, r, h: 1 < t <= 4,
    "tensor_parallel in (1, 8) and hardware not in ['l40s']": lambda t, r, h: t in (1, 8) and h != "l40s",
    "max(tensor_parallel, replicas, 2) - min(tensor_parallel, replicas) < 2": lambda t, r, h: (
        max(t, r, 2) - min(t, r) < 2
    ),
    "tensor_parallel % 2 == 0 and tensor_parallel // 2 + -replicas ** 2 / 4 > +0.5": lambda t, r, h: (
        t % 2 == 0 and t // 2 - r**2 / 4 > 0.5
    ),
    "max_num_seqs * tensor_parallel >= 1024": lambda t, r, h: 256 * t >= 1024,  # not swept: the scenario's
}


@pytest.mark.parametrize(("condition", "holds"), CONDITIONS.items(), ids=CONDITIONS.keys())
def test_conditions(base, condition, holds):
    base["deployment"]["batching"] = {"max_num_seqs": 256}
    everything = swept(base, AXES)
    wanted = [
        (row, point)
        for row, point in enumerate(everything.points)
        if holds(point[1].tensor_parallel, point[1].replicas, point[1].hardware)
    ]
    grid = swept(base, AXES | {"where": condition})
    assert (grid.shape, grid.rows.tolist()) == (everything.shape, [row for row, _ in wanted])
    assert [point[1] for point in grid.points] == [point[1] for _, point in wanted]
    assert size(load_scenario(base)) == len(wanted)
    for config, (row, _) in enumerate(wanted):
        assert grid.config(grid.steps(config)) == config
        assert grid.numbers(np.array([config])).tolist() == [row]


def test_conditions_filter_before_anything_is_read(base):
    """Points that exclude each other are no error where a condition takes them away."""
    arrivals = {"zip": [{"process": "poisson"}, {"process": "closed_loop", "users": 3}]}
    sweep = {"workload.arrivals": arrivals, RATE: [1, 2], "where": ["process == 'poisson'", "rate_rps > 1"]}
    grid = swept(base, sweep)
    assert [(w.arrivals.process, w.arrivals.rate_rps) for w, _, _ in grid.points] == [("poisson", 2.0)]
    with pytest.raises(
        InputError, match=r"the sweep's conditions \(where\) exclude workload\.arrivals = process=closed"
    ):
        grid.config((1, 0))


def test_what_a_step_does_not_set_fulfils_no_comparison(base):
    entries = [{"max_num_batched_tokens": 512}, {"max_num_batched_tokens": 4096}, {"max_num_seqs": 8}]
    grid = swept(base, {"deployment.batching": entries, "where": "max_num_batched_tokens > 1000"})
    assert [d.batching.max_num_batched_tokens for _, d, _ in grid.points] == [4096]


CACHING = "deployment.kv.prefix_caching"


@pytest.mark.parametrize(
    ("condition", "left"),
    {
        "prefix_caching": [True],
        "not prefix_caching": [False],
        "prefix_caching == True": [True],
        "prefix_caching == false": [False],
        "prefix_caching in [true, false]": [False, True],
        "prefix_caching or tensor_parallel == 1": [False, True],
    }.items(),
)
def test_flags_are_true_or_false(base, condition, left):
    grid = swept(base, {CACHING: [False, True], TP: [1], "where": condition})
    assert [d.kv.prefix_caching for _, d, _ in grid.points] == left
    assert len(swept(base, {TP: [1, 2], "where": "not prefix_caching"}).points) == 2  # not swept


def test_a_section_that_says_nothing_is_a_value(base):
    """Sessions with all defaults are others than none: the label of an empty section had no end."""
    grid = swept(base, {"designs": {"zip": [{"workload.sessions": {}}, {"workload.sessions": None}]}})
    assert len(grid.points) == 2


def test_axes_over_designs_have_names_of_their_own(base, tmp_path):
    sweep = table(tmp_path, "tensor_parallel,replicas\n1,1\n2,1\n")
    with pytest.raises(InputError, match=r"sweep\.design: the designs of sweep\.table are called so already"):
        swept(base, sweep | {"design": {"zip": [{RATE: 1}, {RATE: 2}]}})
    drawn = {"sample": {"size": 2, "beside": ["design"]}, RATE: {"between": [1, 8]}, SEQS: {"between": [8, 64]}}
    grid = swept(base, sweep | drawn)
    assert [axis.name for axis in grid.axes] == ["design", "sample"] and grid.shape == (2, 2)


def test_conditions_combine_with_tables_and_samples(base, tmp_path):
    sweep = table(tmp_path, "tensor_parallel,replicas\n1,1\n2,8\n4,2\n", where="tensor_parallel * replicas <= 8")
    assert [d.tensor_parallel for _, d, _ in swept(base, sweep).points] == [1, 4]
    sample = {"sample": {"size": 64}, TP: {"between": [1, 8]}, RATE: {"between": [1, 8]}}
    grid = swept(base, sample | {"where": "tensor_parallel > rate_rps"})
    assert 10 < len(grid.points) < 54
    assert all(d.tensor_parallel > w.arrivals.rate_rps for w, d, _ in grid.points)


BAD_CONDITIONS = {
    "nothing left": ("replicas > 8", r"sweep\.where: leaves none of the 24 points"),
    "unknown": ("tensor_paralel < 2", r"sweep\.where: tensor_paralel is no key .*did you mean tensor_parallel\?"),
    "no condition": ("tensor_parallel + 1", r"where: tensor_parallel \+ 1 is neither true nor false; compare it"),
    "syntax": ("tensor_parallel <", r"where: 'tensor_parallel <' is not a condition: invalid syntax"),
    "text": ("hardware + 1 > 2", r"hardware is no number"),
    "a text without quotes": (
        "hardware != h100-sxm",
        r"h100 is no key of a scenario; a text stands in quotes, such as hardware == 'h100-sxm'",
    ),
    "flag": ("replicas == True", r"cannot compare: replicas is a number and True is true or false"),
    "quotes": ("'x' + 'y' == 'xy'", r"'x' is no number"),
    "mixed": ("hardware == 1", r"cannot compare: hardware is a text and 1 is a number"),
    "order": ("hardware < 'x'", r"hardware is a text, which is compared with == or != or in only"),
    "call": ("__import__('os').system('true') == 0", r"__import__\(.*is not allowed in a condition"),
    "attribute": ("(1).__class__ == 2", r"is not allowed in a condition"),
    "lambda": ("(lambda: 1)() == 1", r"functions are min\(a, b\), max\(a, b\)"),
    "comprehension": ("[x for x in (1,)] == 1", r"is not allowed in a condition"),
    "subscript": ("replicas[0] == 1", r"replicas\[0\] is not allowed"),
    "walrus": ("(x := 1) == 1", r"is not allowed"),
    "is": ("replicas is 1", r"'is' is not allowed in a condition; use =="),
    "in": ("replicas in 3", r"after in there is a list"),
    "null": ("replicas == None", r"None is not allowed"),
    "long": ("1 < 2 and " * 300 + "1 < 2", rf"the limit is {LONGEST:,}"),
    "deep": ("-" * 100 + "replicas < 1", r"nested more than 50 levels deep"),
    "deeper": ("(" * 900 + "1" + ")" * 900, r"is not a condition"),
    "not a value": ("deployment.batching == 1", r"deployment\.batching has no value here"),
    "not set": ("max_num_batched_tokens > 1", r"max_num_batched_tokens has no value here"),
    "type": (3, r"expected a condition such as tensor_parallel \* replicas <= 8, or a list of such, got 3"),
}


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize(("condition", "message"), BAD_CONDITIONS.values(), ids=BAD_CONDITIONS.keys())
def test_messages_of_conditions(base, condition, message):
    base["sweep"] = AXES | {"where": condition}
    with pytest.raises(InputError, match=message):
        load_scenario(base)


@pytest.mark.parametrize(
    "condition",
    [
        "1 / (tensor_parallel - 1) > 0",
        "1 // (tensor_parallel - 1) < 2",
        "tensor_parallel % (tensor_parallel - 1) >= 0",
        "(tensor_parallel - 1) ** -1 > 0",
    ],
)
def test_what_is_divided_by_zero_fulfils_nothing(base, condition):
    with pytest.warns(InputWarning, match=r"sweep\.where: .* has no value at 1 of 3 points") as told:
        grid = swept(base, {TP: [1, 2, 4], "where": condition})
    assert [deployment.tensor_parallel for _, deployment, _ in grid.points] == [2, 4]
    (warning,) = told  # once, though the points are asked for several times
    assert f"the first with {TP} = 1 " in str(warning.message) and "they are left out" in str(warning.message)
    with pytest.warns(InputWarning, match="0 of them are left out"):
        assert len(swept(base, {TP: [1, 2, 4], "where": f"tensor_parallel == 1 or {condition}"}).points) == 3


def test_only_the_axes_that_make_a_quotient_fail_are_named(base):
    replicas = "deployment.replicas"
    with pytest.warns(InputWarning, match=rf"at 2 of 6 points, the first with {replicas} = 2 \("):
        swept(base, {TP: [1, 2], replicas: [1, 2, 3], "where": "1 / (replicas - 2) < 5"})
