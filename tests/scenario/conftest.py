import copy

import pytest

_BASE = {
    "workload": {
        "arrivals": {"process": "poisson", "rate_rps": 4},
        "lengths": {"source": "fixed", "prompt_tokens": 100, "output_tokens": 10},
    },
    "deployment": {"model": "llama-3.1-70b", "hardware": "h100-sxm"},
}


@pytest.fixture
def base() -> dict:
    """A small scenario that is right, to change."""
    return copy.deepcopy(_BASE)


@pytest.fixture
def trace_csv(tmp_path):
    """A trace of four requests."""
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,20,6\n2.5,7,3\n2.5,9,1\n")
    return path
