"""What tests of several commands run."""

import pytest

SCENARIO = """
name: small
workload:
  arrivals: {process: poisson, rate_rps: 4}
  lengths: {source: azure-conv-2023}
  requests: 40
deployment:
  model: llama-3.1-8b
  hardware: h100-sxm
slo: {ttft: {p90: 1s}}
sweep:
  deployment.hardware: [h100-sxm, l40s]
  workload.arrivals.rate_rps: [1, 4]
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    return path
