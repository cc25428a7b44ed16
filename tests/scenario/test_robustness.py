"""Texts that no careful person writes: each loads, or is refused by one message; none is a traceback or takes long."""

import math
import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluator.errors import InputError
from evaluator.keys import Place, split_path
from evaluator.scenario import expand, load_scenario
from evaluator.scenario.key_paths import put
from evaluator.scenario.set_keys import apply
from evaluator.scenario.short_names import key_readers
from evaluator.yaml import DEEPEST, dumps_yaml, loads_yaml, plain_scalar

LONGEST_S = 20.0  # far above what any of them takes: a guard against hanging, not a time to keep

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
TEXTS = {
    "bomb": (BOMB, r"line \d+: more than 2,000,000 values, those repeated by aliases included"),
    "endless": ("a: &a [*a]", r"line 1: sections and lists are nested more than 64 levels"),
    "lists": ("a: " + "[" * 200_000, rf"nested more than {DEEPEST} levels deep"),
    "mappings": ("{a: " * 100_000, rf"nested more than {DEEPEST} levels deep"),
    "dashes": ("- " * 100_000 + "1", rf"nested more than {DEEPEST} levels deep"),
    "few": ("[" * 65 + "]" * 65, rf"nested more than {DEEPEST} levels deep"),
    "twice": ("workload: {}\nname: a\nworkload: {}", r"line 3: the key 'workload' is there twice \(first on line 1\)"),
    "list as key": ("? [1, 2]\n: 3", r"a key must be a name or a number"),
    "number as key": ("1: 2", r"1: unknown key"),
    "huge number": ("name: " + "9" * 10_000, r"name: expected a name, got inf"),
    "huge hexadecimal": ("name: 0x" + "f" * 10_000, r"name: expected a name, got inf"),
}


@pytest.mark.parametrize(("text", "message"), TEXTS.values(), ids=TEXTS.keys())
def test_texts_that_break_parsers(tmp_path, text, message):
    path = tmp_path / "s.yaml"
    path.write_text(text)
    start = time.perf_counter()
    with pytest.raises(InputError, match=message) as error:
        load_scenario(path)
    assert time.perf_counter() - start < LONGEST_S
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(("path", "longest"), [("ttft.p90", 60), ("tpot.mean", 5), ("itl.p99", 5), ("e2e.p90", 600)])
def test_a_bound_that_nobody_waits_for_needs_its_unit(base, path, longest):
    metric, statistic = path.split(".")
    base["slo"] = {metric: {statistic: 1000}}
    message = rf"scenario: slo\.{path}: 1000 is 1,000 s; write '1000s' if you mean it, or '1000ms'"
    with pytest.raises(InputError, match=message):
        load_scenario(base)
    for written, read in (("1000s", 1000.0), ("1000ms", 1.0), (longest, longest)):
        base["slo"] = {metric: {statistic: written}}
        assert load_scenario(base).slo[0].bound_s == read
    base["slo"] = {metric: {statistic: longest + 1}}
    with pytest.raises(InputError, match=rf"{longest + 1} is {longest + 1} s; write '{longest + 1}s' if you mean it"):
        load_scenario(base)
    base |= {"slo": {}, "sweep": {f"slo.{path}": [1, 1000]}}
    with pytest.raises(InputError, match=rf"slo\.{path} \(sweep\.slo\.{path}, value 2 of 2\): 1000 is 1,000 s"):
        load_scenario(base)
    base["sweep"] = {f"slo.{path}": ["1s", "1000s"]}
    assert [point[2][0].bound_s for point in expand(load_scenario(base)).points] == [1.0, 1000.0]


def test_a_sweep_beside_a_bound_above_the_limit(base):
    base |= {"slo": {"ttft": {"p90": "1000s"}}, "sweep": {"slo.tpot.p90": ["1s"]}}
    ((_, _, slo),) = expand(load_scenario(base)).points
    assert sorted(one.bound_s for one in slo) == [1.0, 1000.0]


@pytest.mark.parametrize(
    ("text", "value"),
    [("4", 4), ("0x1F", 31), ("-1.5e3", -1500.0), ("null", None), ("True", True), ("no", "no"), ("80GB", "80GB"),
     ("1_000", "1_000"), (".inf", math.inf), ("", None), ("9" * 101, math.inf)],
)  # fmt: skip
def test_plain_scalars_are_what_yaml_makes_of_them(text, value):
    read = plain_scalar(text)
    assert (type(read), read) == (type(value), value)
    assert loads_yaml(text) == value


_KEYS = [
    *key_readers(),
    "slo.ttft.p90",
    "slo",
    "workload",
    "deployment",
    "deployment.batching",
    "deployment.kv",
    "name",
]
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(10**30), max_value=10**30),
    st.sampled_from([0, 1, 2, 8, 1000, 10**9, 10**400, math.inf, -math.inf, math.nan, 1e308, 5e-324, -0.0]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["80GB", "1s", "1e400s", "poisson", "closed_loop", "trace", "fixed", "zipf", "l40s", "/dev/null", ".."]
    ),
)
_TREES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.sampled_from(["zip", "users", "p90", "policy", "table"]), _SCALARS), inner, max_size=3
        ),
    ),
    max_leaves=6,
)
_AXES = st.one_of(
    _TREES,
    st.lists(_SCALARS, max_size=3),
    st.builds(
        lambda form, of: {form: of}, st.sampled_from(["linspace", "logspace", "range", "between", "zip"]), _TREES
    ),
    st.builds(lambda ends: {"linspace": [*ends, 3]}, st.tuples(_SCALARS, _SCALARS)),
    st.builds(lambda ends: {"between": list(ends)}, st.tuples(_SCALARS, _SCALARS)),
)
_SWEEPS = st.dictionaries(
    st.one_of(st.sampled_from([*_KEYS, "table", "sample", "where", "designs"]), st.text(max_size=5)), _AXES, max_size=2
)
_BUDGET = settings(
    max_examples=80, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


def _loads(tree):
    start = time.perf_counter()
    try:
        scenario = load_scenario(tree)
        if math.prod(len(axis.values) for axis in scenario.sweep) < 1000:
            expand(scenario)
    except InputError as error:
        assert len(str(error)) < 5000
    assert time.perf_counter() - start < LONGEST_S


@_BUDGET
@given(path=st.sampled_from(_KEYS), value=_TREES)
def test_any_value_of_any_key(base, path, value):
    keys = split_path(path)
    _loads(apply(put(base, keys, None) if len(keys) < 3 else base, {path: value}, Place("--set")))


@_BUDGET
@given(sweep=_SWEEPS)
def test_any_sweep(base, sweep):
    _loads(base | {"sweep": sweep})


@_BUDGET
@given(condition=st.one_of(st.text(max_size=20), st.builds(lambda left, sign, right: f"{left} {sign} {right}",
    st.sampled_from(["replicas", "hardware", "tensor_parallel * 1e308 * 1e308", "1 / 0", "-replicas", "'x'"]),
    st.sampled_from(["<", "==", "in", "and", "not in", "**", "%", "//", ":="]),
    st.sampled_from(["replicas", "0", "(1, 2)", "'x'", "10 ** 1000", "1e999", "true", "{}", "lambda: 0"]),
)))  # fmt: skip
@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::evaluator.errors.InputWarning")
def test_any_condition(base, condition):
    _loads(base | {"sweep": {"deployment.replicas": [1, 2], "where": condition}})


@_BUDGET
@given(seed=st.integers(min_value=0, max_value=10**6))
def test_any_damage_to_a_text(tmp_path, base, seed):
    rng = random.Random(seed)
    base["sweep"] = {"deployment.replicas": [1, 2], "where": "replicas < 3", "slo.ttft.p90": ["1s"]}
    text = list(dumps_yaml(base))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text))
        text[at : at + rng.randint(0, 3)] = rng.choice(
            ["", "\n", ":", "[", "]", "{", "}", "&a ", "*a", "- ", "#", "'", "\t", "é", "\x00", "!!x "]
        )
    path = tmp_path / "s.yaml"
    path.write_text("".join(text))
    _loads(path)


@_BUDGET
@given(text=st.text(alphabet=st.sampled_from("a1,.\";\n\r 'hardwe-replics\x00é"), max_size=40))
def test_any_table(tmp_path, base, text):
    (tmp_path / "designs.csv").write_text(text, newline="")
    _loads(base | {"sweep": {"table": str(tmp_path / "designs.csv")}})
