"""One server through the engine: as the reference has it, also where KV is short and in a pipeline."""

import numpy as np
import pytest

from evaluator.compare import read_experiments
from evaluator.compare.servers import server
from evaluator.compare.simulate import simulate_server
from evaluator.compare.traffic import requests
from evaluator.cost.memory import kv_units
from evaluator.reference import Limits, Request, simulate
from tests.compare.conftest import entry, row


@pytest.mark.parametrize(
    ("more", "preempts"),
    [({}, False), ({"total_kv_blocks": 60}, True), ({"pipeline_parallel_size": 2}, False)],
    ids=["KV for all", "KV is short", "pipeline"],
)
def test_kv_is_taken_on_demand(campaign, more, preempts):
    (only,) = read_experiments(*campaign([entry("a", rates=(20.0,)) | more], [row("a", 0)]))
    replica, load = server(only, "datasheet"), requests(only, 0)
    units = kv_units(replica.kv, load.prompt_tokens + load.output_tokens - 1)
    columns = (load.arrival_s, load.compute_tokens, load.prompt_tokens, load.output_tokens, units)
    limits = Limits(
        only.max_num_seqs, only.max_num_batched_tokens, replica.kv_capacity,
        admission="on_demand", block_tokens=only.block_tokens,
    )  # fmt: skip
    served = [Request(number, *one) for number, one in enumerate(zip(*map(np.ndarray.tolist, columns), strict=True))]
    expected = simulate(replica.stages, "chunked", limits, served)
    assert (expected.preemptions > 0) == preempts
    times = simulate_server(replica, load)
    e2e_s = [request.last_token_s - request.arrival_s for request in served]
    np.testing.assert_allclose(times.e2e_s, e2e_s, rtol=1e-9)
    np.testing.assert_allclose(times.ttft_s, [one.first_token_s - one.arrival_s for one in served], rtol=1e-9)
