"""Axes of a grid say what a step has, also where its entry leaves it out."""

from evaluator.scenario import expand, load_scenario

SCENARIO = {
    "name": "zip",
    "workload": {
        "arrivals": {"process": "poisson", "rate_rps": 4},
        "lengths": {"source": "fixed", "prompt_tokens": 10, "output_tokens": 5},
    },
    "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", "batching": {"max_num_seqs": 64}},
}


def axis_of(path, entries, **changes):
    grid = expand(load_scenario(SCENARIO | {"sweep": {path: {"zip": entries}}} | changes))
    return grid.axes[0].changes


def test_a_key_left_out_is_as_in_the_base():
    first, second = axis_of("deployment.batching", [{"policy": "static", "max_num_seqs": 8}, {"policy": "chunked"}])
    assert first["deployment.batching.max_num_seqs"] == 8
    assert second["deployment.batching.max_num_seqs"] == 64


def test_a_default_left_out_is_the_default():
    first, second = axis_of("deployment.precision", [{"kv": "fp8"}, {"weights": "fp8"}])
    assert first["deployment.precision.weights"] == "checkpoint"
    assert second["deployment.precision.kv"] == "bf16"


def test_what_does_not_apply_stays_out():
    entries = [{"process": "poisson", "rate_rps": 2}, {"process": "closed_loop", "users": 8}]
    first, second = axis_of("workload.arrivals", entries)
    assert "workload.arrivals.users" not in first and first["workload.arrivals.rate_rps"] == 2
    assert "workload.arrivals.rate_rps" not in second


def test_formula_parameters_and_objectives():
    entries = [{"prompt_tokens": 20}, {"output_tokens": 9}]
    first, second = axis_of("workload.lengths", entries)
    assert (first["workload.lengths.output_tokens"], second["workload.lengths.prompt_tokens"]) == (5, 10)
    slos = [{"ttft": {"p90": 1.0}}, {"tpot": {"p90": 0.1}}]
    first, second = axis_of("slo", slos, slo={"ttft": {"p90": 2.0}})
    assert second["slo.ttft.p90"] == 2.0 and "slo.tpot.p90" not in first
