"""One server through the engine: as the reference has it, also where KV is short and in a pipeline."""

import numpy as np
import pytest

from evaluator.compare.servers import server
from evaluator.compare.simulate import kept_units, simulate_server, whole_blocks
from evaluator.cost.memory import kv_units
from evaluator.experiments import read_experiments
from evaluator.experiments.traffic import requests
from evaluator.reference import Limits, Request, simulate
from tests.campaign import entry, row
from tests.thorough import THOROUGH

MIXTRAL = {"model": "mistralai/Mixtral-8x7B-v0.1"}


SERVERS: dict[str, tuple[float, dict, bool]] = {
    "KV for all": (20.0, {}, False),
    "KV is short": (20.0, {"total_kv_blocks": 60}, True),
    # Of few seconds, since it then shares the program of those before it, whose lanes have as many slots.
    "prompts are shared": (150.0, {"duration_s": 3, "total_kv_blocks": 200}, True),
    "pipeline": (20.0, {"pipeline_parallel_size": 2}, False),
    "lockstep": (60.0, MIXTRAL | {"data_parallel_size": 2, "enable_expert_parallel": True}, False),
    "lockstep, KV is short": (
        60.0, MIXTRAL | {"data_parallel_size": 2, "total_kv_blocks": 80, "prefix_caching": False}, True
    ),
}  # fmt: skip
if THOROUGH:  # a program of its own, whose parts the one for ranks in lockstep has
    SERVERS["ranks"] = (20.0, {"data_parallel_size": 2}, False)


@pytest.mark.parametrize(("rate", "more", "preempts"), SERVERS.values(), ids=list(SERVERS))
def test_kv_is_taken_on_demand(campaign, rate, more, preempts):
    (only,) = read_experiments(*campaign([entry("a", rates=(rate,), **more)], [row("a", 0)]))
    ran, load = server(only, "datasheet"), requests(only, 0)
    kept = kept_units(ran, load)
    shared = kv_units(ran.replica.kv, (kept is not None) * whole_blocks(load, only.block_tokens))
    units = kv_units(ran.replica.kv, load.prompt_tokens + load.output_tokens - 1) - shared
    columns = (load.arrival_s, load.compute_tokens, load.prompt_tokens, load.output_tokens, units)
    limits = Limits(
        only.max_num_seqs, only.max_num_batched_tokens, ran.replica.kv.capacity_units - (kept or 0),
        admission="on_demand", block_tokens=only.block_tokens,
    )  # fmt: skip
    rows = enumerate(zip(*map(np.ndarray.tolist, columns), strict=True))
    served = [Request(number, *one, shared_units=int(shared[number])) for number, one in rows]
    ranks = {"replicas": only.data_parallel, "lockstep": ran.design.lockstep, "router": "least_outstanding"}
    expected = simulate(ran.replica.pipeline_ranks, "chunked", limits, served, **ranks)
    assert (expected.preemptions > 0) == preempts
    (times,) = simulate_server(ran, [load])
    e2e_s = [request.last_token_s - request.arrival_s for request in served]
    np.testing.assert_allclose(times.e2e_s, e2e_s, rtol=1e-9)
    np.testing.assert_allclose(times.ttft_s, [one.first_token_s - one.arrival_s for one in served], rtol=1e-9)


def test_the_prompts_of_a_group_lie_in_the_cache_once(campaign):
    """6 prompts of some 315 tokens, 19 whole blocks of 16, of which 6 are the system prompt of a group of two."""
    (only, small) = read_experiments(
        *campaign([entry("a") | {"total_kv_blocks": 300}, entry("b") | {"total_kv_blocks": 150}], [row("a", 0)])
    )
    ran, load = server(only, "datasheet"), requests(only, 0)
    shared = kv_units(ran.replica.kv, whole_blocks(load, only.block_tokens))
    assert set(shared.tolist()) <= {18, 19, 20}
    assert kept_units(ran, load) == shared[:6].sum() - 3 * 6
    assert kept_units(server(small, "datasheet"), load) is None  # they would not stay
