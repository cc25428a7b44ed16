"""Parts of one's own: what is registered, what is refused, and that scenarios then know it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from evaluator import parts
from evaluator.errors import InputError
from evaluator.keys import count, key
from evaluator.kv_managers import MANAGERS, KvManager, manager
from evaluator.policies import POLICIES, BatchingPolicy
from evaluator.routing import ROUTERS, Router, Sent, assign, by_turns, stream
from evaluator.run import simulate, sweep
from evaluator.scenario.schema import scenario_schema
from evaluator.stages import KINDS, StageKind, Work
from tests.scenario.build import scenario

REGISTRIES = (POLICIES, ROUTERS, MANAGERS, KINDS)
DOUBLE = KvManager("double", "Twice as much.", units=lambda units: 2 * units)
POLICY = BatchingPolicy("made_up", "nowhere", "this test")


@dataclass(frozen=True)
class Fixed:
    """A router that needs its key."""

    to: int = key(count(least=0), says="The replica.")
    router = "fixed"


FIXED = Router(
    "fixed", "One replica.", by_turns(lambda keys, replicas, draws: lambda prompt, session: keys.to), keys=Fixed
)


@pytest.fixture(autouse=True)
def as_before():
    """What a test registers is gone after it."""
    before = [dict(registry) for registry in REGISTRIES]
    yield
    for registry, parts_before in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(parts_before)


def test_each_kind_of_part_is_registered_where_it_belongs():
    stage = StageKind("nothing", Fixed, lambda parameters, visit: Work(()))
    for part, registry in zip((POLICY, FIXED, DOUBLE, stage), REGISTRIES, strict=True):
        parts.register(part)
        assert registry[part.name] is part
    with pytest.raises(TypeError, match="expected a BatchingPolicy, Router, KvManager or StageKind, got str"):
        parts.register("made_up")


def test_names_of_the_package_are_taken_and_own_ones_replaced():
    parts.register(POLICY)
    again = BatchingPolicy("made_up", "elsewhere", "this test")
    parts.register(again)
    assert POLICIES["made_up"] is again and POLICIES.own == ("made_up",)
    with pytest.raises(ValueError, match="there is a batching policy chunked already; give yours another name"):
        parts.register(BatchingPolicy("chunked", "", ""))
    with pytest.raises(ValueError, match="there is a router random already"):
        parts.register(Router("random", "", counts="requests"))
    for name in ("", "two\nlines", None):
        with pytest.raises(ValueError, match="a router needs a name of one line, not "):
            parts.register(Router(name, "", counts="requests"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="router mine: independent must be an Independent, as of by_turns"):
        Router("mine", "", {})  # type: ignore[arg-type]


def test_all_public_names_are_there():
    assert [name for name in parts.__all__ if getattr(parts, name, None) is None] == []
    assert set(parts.__all__) <= set(dir(parts))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = parts.nothing


def test_a_router_chooses_the_same_at_once_and_in_turn():
    drawn = by_turns(lambda choice, replicas, draws: lambda prompt, session: int(draws.integers(replicas)) + 0 * prompt)
    parts.register(Router("drawn", "By draws.", drawn))
    found = assign("drawn", Sent(np.arange(50), 4, stream(3)))
    in_turn, draws = drawn.in_turn("drawn", 4, stream(3)), range(50)
    assert found.dtype == np.int64 and found.tolist() == [in_turn(prompt, 0) for prompt in draws]
    assert set(found.tolist()) == {0, 1, 2, 3}


def test_a_router_with_keys_is_read_once_it_is_registered():
    text = "deployment={replicas: 2, router: {fixed: {to: 1}}}"
    with pytest.raises(InputError, match="unknown key; allowed here: prefill, decode"):
        scenario(text)
    parts.register(FIXED)
    with pytest.raises(InputError, match=r"fixed needs its keys: \{fixed: \{to\}\}"):
        scenario("deployment={replicas: 2, router: fixed}")
    requests = simulate(scenario(text), simulator="token").requests
    assert set(np.asarray(requests["replica"]).tolist()) == {1}
    assert "fixed" in str(scenario_schema()["properties"]["deployment"])


def test_a_manager_needs_one_form_or_the_other():
    with pytest.raises(ValueError, match="KV manager none needs units, or hooks and reference"):
        KvManager("none", "Nothing.")
    with pytest.raises(ValueError, match="KV manager half needs hooks and reference, which do the same, or neither"):
        KvManager("half", "Half.", reference=object)
    assert manager(None) is None
    with pytest.raises(InputError, match=r"no KV manager 'double' is registered; see docs/parts\.md"):
        manager("double")


def test_a_manager_is_said_by_name_once_it_is_registered():
    with pytest.raises(InputError, match=r"no KV manager 'double' is registered; see docs/parts\.md"):
        scenario("deployment.kv.manager=double")
    parts.register(DOUBLE)
    with pytest.raises(InputError, match="'doubel' is not one of double"):
        scenario("deployment.kv.manager=doubel")


def test_a_request_takes_what_its_manager_says():
    parts.register(DOUBLE)
    plain, doubled = (
        sweep(scenario("workload.requests=200", f"deployment.kv.manager={name}"), simulator="token")
        for name in ("null", "double")
    )
    np.testing.assert_allclose(doubled["kv_used_mean"], 2 * plain["kv_used_mean"], rtol=1e-9)
    np.testing.assert_array_equal(doubled["e2e_s"], plain["e2e_s"])


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("deployment.kv.admission=on_demand", "kv.manager double with kv.admission on_demand; use reserve"),
        ("deployment.kv.prefix_caching=true", "kv.manager double with kv.prefix_caching; leave it out"),
    ],
)
def test_what_a_manager_cannot_keep_is_told(override, told):
    parts.register(DOUBLE)
    assert sweep(scenario("deployment.kv.manager=double", override))["status"].item() == f"unsupported: {told}"


def test_the_largest_request_must_fit_as_its_manager_takes_it():
    parts.register(KvManager("huge", "Much more than there is.", units=lambda units: units * 10**7))
    status = sweep(scenario("deployment.kv.manager=huge"))["status"].item()
    assert status.startswith("infeasible: a request of ") and "exceeds the KV cache" in status
