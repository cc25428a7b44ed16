"""A sweep as it runs on accelerators: all lanes in step, shared out among several devices, to the same results."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SWEEP = """
import json, sys
import jax
from evaluator import device, sweep
from evaluator.execution import schedule
from evaluator.simulation import lanes

def ran(accelerated):
    for module in (schedule, lanes):
        module.accelerated = lambda: accelerated
    return sweep(json.loads(sys.argv[1]), simulator="iteration")

shared, sizes, share_out, size_of = [], [], jax.shard_map, lanes.lanes_per_call
lanes.lanes_per_call = lambda *given: sizes.append(size_of(*given)) or sizes[-1]
jax.shard_map = lambda *given, mesh, **others: shared.append(mesh.size) or share_out(*given, mesh=mesh, **others)
plain, in_step = ran(False), ran(True)
assert (in_step["status"] == "ok").all() and set(in_step["engine"].values.ravel()) == {"iteration"}
apart = {
    name: float(abs(in_step[name] / plain[name].where(plain[name] != 0, 1) - (plain[name] != 0)).max())
    for name in ("ttft_s", "tpot_s", "e2e_s", "throughput_rps", "utilisation")
}
print(json.dumps({"shared": shared, "lanes": sizes[-1], "apart": apart}))
"""


def test_lanes_that_two_devices_share_give_what_processors_do():
    """Of processors, of which JAX can be told that there are two, since no accelerator is here: the same code."""
    scenario = {
        "name": "in step",
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 4},
            "lengths": {"source": "fixed", "prompt_tokens": 300, "output_tokens": 20},
            "requests": 30,
        },
        "deployment": {
            "model": "llama-3.1-8b",
            "hardware": "h100-sxm",
            "kv": {"admission": "reserve", "capacity_tokens": 4096},
        },
        "sweep": {"workload.arrivals.rate_rps": [1, 5, 20, 80, 200]},
    }
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    done = subprocess.run(
        [sys.executable, "-c", SWEEP, json.dumps(scenario)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["shared"] == [2] and found["lanes"] == 6  # three for each: the last is filled up
    assert found["apart"] and all(difference <= 1e-9 for difference in found["apart"].values())
