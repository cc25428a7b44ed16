"""What the annotations say of dtypes and shapes is so: of all that a lane is given, carries, and gives back."""

from __future__ import annotations

from typing import Any, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evaluator.device import configure
from evaluator.metrics.use import PoolTotals
from evaluator.routing import COUNTERS
from evaluator.stations.engine import LaneResult, Requests, fcfs_reserved, joint, preemptive
from evaluator.stations.engine.common.arrays import Float, Int, Peaks
from evaluator.stations.engine.common.columns import Columns
from evaluator.stations.engine.common.histogram import BINS
from evaluator.stations.engine.fcfs_reserved import state as in_order_state
from evaluator.stations.engine.fcfs_reserved.lane import Given as InOrderGiven
from evaluator.stations.engine.joint import state as coupled_state
from evaluator.stations.engine.preemptive import state as preemptive_state
from evaluator.stations.engine.preemptive.lane import Given as AnyOrderGiven
from tests.stations.engine.fcfs_reserved import build as in_order_build
from tests.stations.engine.fcfs_reserved import on_demand
from tests.stations.engine.fcfs_reserved.build import LANES, RING, SLOTS
from tests.stations.engine.joint import build as coupled_build
from tests.stations.engine.preemptive import build as preemptive_build
from tests.stations.engine.preemptive.build import CACHE, SOURCES, Kind
from tests.thorough import THOROUGH

KINDS = [
    Kind(windowed=True, experts=True, peaks=True),
    Kind(windowed=True, experts=True, cached=True),
    Kind(windowed=True, pipeline_ranks=2, speculating=True),
    *([Kind(windowed=True, pipeline_ranks=2)] if THOROUGH else []),
]
ALONE = [
    Kind(windowed=True, experts=True, asynchronous=True),
    Kind(windowed=True, experts=True, peaks=True, swapping=True),
]
"""Of a replica with a loop of its own. Most are kinds of other tests, and of the shape of their calls, so that JAX has
traced them once for both."""


TOTALS = dict.fromkeys(PoolTotals._fields, Float) | {"preemptions": Int, "peaks": Peaks}
"""Of a lane; in metrics these are tables of a chunk."""


AFTER_THE_LOOP = ("tate.totals.decoded", "tate.totals.decoded_tokens")
"""What neither ``State`` nor the ``state`` of a cluster carries of the totals: ``result_of`` puts them together."""


def mismatches(value: Any, hint: Any, axes: dict[str, int], place: str) -> list[str]:
    """The places below ``value`` where dtype or shape are not what the annotation ``hint`` says."""
    if value is None and place.endswith(AFTER_THE_LOOP):
        return []  # counted from what others hold, once the loop has ended
    if hasattr(hint, "__metadata__"):
        dtype, *shape = hint.__metadata__
        expected = (np.dtype(dtype), tuple(eval(size, {}, axes) for size in shape))
        found = (np.dtype(value.dtype), value.shape)
        return [] if found == expected else [f"{place} is {found}, not {expected}"]
    if not isinstance(value, tuple | Columns) or not hasattr(value, "_fields"):
        return []  # costs, which the cost model describes
    hints = TOTALS if isinstance(value, PoolTotals) else get_type_hints(type(value), include_extras=True)
    fields = ((getattr(value, name), hints[name], axes, f"{place}.{name}") for name in value._fields)
    return [text for field in fields for text in mismatches(*field)]


def axes_of(structure: Any) -> dict[str, int]:
    """Lengths of the axes that ``common.arrays`` names."""
    ranks = getattr(structure, "pipeline_ranks", 1)
    decode_groups = structure.decode_groups() if isinstance(structure, preemptive.Structure) else 1
    axes = {"request": SLOTS, "ring": RING, "group": decode_groups, "rank": ranks, "bin": BINS, "peak": 0}
    axes["draft"] = in_order_build.MOST_DRAFTS
    cache = {"text": CACHE.texts, "block": CACHE.blocks, "source": SOURCES}
    cache["event"] = coupled_build.EVENTS
    return axes | cache | {"replica": getattr(structure, "replicas", 1)}


def with_chains_of_requests(cache: Any, state: Any, replicas: int) -> Any:
    """A prefix cache whose chains, which have other cells, are as long as chains of requests."""
    blocks = (CACHE.blocks + 1) * replicas
    assert cache.runs.same.newer.shape == cache.runs.idle.newer.shape == (blocks,)
    assert cache.due.newer.shape == (SLOTS + 1 + CACHE.due * replicas,)
    return cache._replace(runs=cache.runs._replace(same=state.running, idle=state.running), due=state.running)


def lane_local(batch: Any) -> Any:
    """The first lane of a batch, as JAX arrays."""
    return jax.tree.map(lambda values: jnp.asarray(values[0]), batch)


def result_of(program: Any, lanes: Any, requests: Requests, structure: Any) -> LaneResult:
    """Dtypes and shapes of one lane's result."""
    found = program.run_lanes.eval_shape(lanes, requests, structure=structure, vectorise=False)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), found)


# States are made by ``jax.eval_shape``, of dtypes and shapes alone: JAX would compile each operation on arrays.
IN_ORDER_CASES = (in_order_build.random_case, in_order_build.random_branched, in_order_build.random_speculating)


@pytest.mark.parametrize("case", IN_ORDER_CASES)
def test_in_order(case):
    configure()
    structure = fcfs_reserved.Structure(RING, True)
    lanes, requests = in_order_build.stacked([case(seed, True, True) for seed in range(2)])
    lane, given_requests = lane_local((lanes, requests))
    given = InOrderGiven((lane.cost,), lane.limits, given_requests, structure, lane.branches, lane.speculation)
    axes = axes_of(structure) | {"branch": given.cells}
    state = jax.eval_shape(lambda: in_order_state.initial_state(given))
    result = result_of(fcfs_reserved, lanes, requests, structure)
    for value in (given, state, result):
        assert mismatches(value, type(value), axes, type(value).__name__) == []


def test_in_order_on_demand():
    configure()
    structure = fcfs_reserved.Structure(RING, True, on_demand.LARGEST_BLOCK)
    lanes, requests = on_demand.lanes_of(on_demand.in_order_cases(Kind(windowed=True), 20))
    lane, given_requests = lane_local((lanes, requests))
    given = InOrderGiven((lane.cost,), lane.limits, given_requests, structure, on_demand=lane.on_demand)
    state = jax.eval_shape(lambda: in_order_state.initial_state(given))
    result = result_of(fcfs_reserved, lanes, requests, structure)
    for value in (given, state, result):
        assert mismatches(value, type(value), axes_of(structure) | {"branch": 1}, type(value).__name__) == []


@pytest.mark.parametrize("kind", [*KINDS, *ALONE], ids=str)
def test_preemptive(kind):
    configure()
    lanes, requests = preemptive_build.stacked(preemptive_build.random_cases(kind, LANES))
    given = AnyOrderGiven(*lane_local(lanes), lane_local(requests), kind.structure)
    axes = axes_of(kind.structure)
    state = jax.eval_shape(lambda: preemptive_state.initial_state(given))
    if not kind.peaks:
        state = state._replace(by_end=state.running)  # a chain without cells
    if kind.cached:
        state = state._replace(cache=with_chains_of_requests(state.cache, state, 1))
    result = result_of(preemptive, lanes, requests, kind.structure)
    for value in (given, state, result):
        assert mismatches(value, type(value), axes, type(value).__name__) == []


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_joint(kind):
    configure()
    structure = coupled_build.structure_of(kind)
    pools, requests = coupled_build.stacked(coupled_build.random_cases(kind, LANES))
    pool, of_lane = lane_local(pools), lane_local(requests)
    given = AnyOrderGiven(*pool, of_lane, structure)
    cluster = jax.eval_shape(lambda: coupled_state.initial_cluster(given))
    result = result_of(joint, pools, requests, structure)
    chains = ("running", "prompts", *(["by_end"] if kind.peaks else []))  # with a sentinel for each replica
    assert all(getattr(cluster.state, chain).newer.shape == (SLOTS + structure.replicas,) for chain in chains)
    one = jax.eval_shape(lambda: preemptive_state.initial_state(given._replace(structure=kind.structure)))
    same = {chain: getattr(one, chain) for chain in chains} | ({} if kind.peaks else {"by_end": one.running})
    cluster = cluster._replace(state=cluster.state._replace(replica=one.replica, batch=one.batch, **same))
    if kind.cached:
        cache = with_chains_of_requests(cluster.state.cache, cluster.state, structure.replicas)
        cluster = cluster._replace(state=cluster.state._replace(cache=cache))
    assert {column.shape[0] for column in jax.tree.leaves(cluster.replicas)} == {structure.replicas}
    replica = jax.tree.map(lambda column: jax.ShapeDtypeStruct(column.shape[1:], column.dtype), cluster.replicas)
    cluster = cluster._replace(replicas=replica._replace(number=one.replica.number, sentinel=one.replica.sentinel))
    axes = axes_of(structure) | {"replica": structure.replicas, "counter": len(COUNTERS)}
    for value in (given, cluster, result):
        assert mismatches(value, type(value), axes, type(value).__name__) == []


def test_a_wrong_shape_is_found():
    requests = Requests(jnp.zeros(5), *jnp.zeros((4, 5), jnp.int32))._replace(kv_units=jnp.zeros(4))
    (text,) = mismatches(requests, Requests, {"request": 4}, "requests")
    assert text == "requests.kv_units is (dtype('float64'), (4,)), not (dtype('int32'), (5,))"
