"""The steps of a retrieval: what is embedded, searched, re-ranked and sent, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.cost import Parallel, fold, iteration_time, model_window, operators
from evaluator.cost.batch import prefill_batch
from evaluator.cost.precision import Precision
from evaluator.cost.vector_search import VectorIndex, search_time
from evaluator.errors import InputError
from evaluator.plan import plan
from evaluator.reference.serve.network import run_network
from evaluator.run import sweep
from evaluator.scenario import load_scenario
from evaluator.simulation import stations_of
from evaluator.simulation.chain import chain_result_of, run_chain
from evaluator.stages import Batched, Pass, Shipped, StagePool, StageRequests
from evaluator.stages.retrieve import Index, Retrieve, work
from tests.thorough import tried

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
INDEX = Index(centroids=4_000_000, probes=50, points_per_probe=5000.0, pq_bytes=32.0)
ASKED = Retrieve(INDEX, documents=20, tokens_per_document=512, embedding="e5-base")
CPU = replace(load_hardware("cpu-grace"), memory_bytes=1e12)
ONE = StagePool("cpu", CPU, 1, 1)


def visit(prompt=(100, 2_000), pool: StagePool | None = ONE) -> StageRequests:
    tokens = np.array(prompt, dtype=np.int64)
    nothing = np.zeros_like(tokens)
    return StageRequests("retrieve", tokens, nothing + 1, nothing, 0, load_model("llama-3.1-8b"), Precision(), pool)


def steps(asked: Retrieve, **changes) -> dict:
    return {step.name: step for step in work(asked, visit(**changes)).steps}


def told(asked: Retrieve, **changes) -> str:
    """Why nothing can be retrieved."""
    return str(work(asked, visit(**changes)).problem)


def test_steps_of_a_retrieval():
    asked = replace(ASKED, reranker="bge-reranker-v2-m3", reranker_pool="gpu", candidates=100, link="pcie-gen4-x4")
    found = steps(asked)
    assert list(found) == ["embed", "search", "rerank", "transfer"]
    assert [type(step) for step in found.values()] == [Pass, Batched, Pass, Shipped]
    assert (found["embed"].model, found["embed"].pool) == ("e5-base", None)
    np.testing.assert_array_equal(found["embed"].tokens, [100, 511])  # cut to the positions of the encoder
    assert (found["rerank"].model, found["rerank"].pool, found["rerank"].sequences) == (asked.reranker, "gpu", 100)
    np.testing.assert_array_equal(found["rerank"].tokens, [612, 2512])
    assert (found["transfer"].bytes, found["transfer"].bandwidth) == (20 * 512 * 4, 8e9)
    assert work(asked, visit()).adds_tokens == 20 * 512


def test_a_search_is_the_cost_model_by_batch_size():
    """Vectors of the embedder's 768 dimensions in fp32; PQ codes of a byte for 8 dimensions unless said otherwise."""
    search = steps(replace(ASKED, max_batch=16, max_wait_s=0.01))["search"]
    index = VectorIndex(4e6, 50, 5000, 32, 3072, vector_bytes=3072)
    wanted = search_time(index, np.arange(1.0, 17.0), 72.0, 512e9)
    np.testing.assert_allclose(search.seconds, wanted, rtol=1e-12)
    assert (search.max_wait_s, search.servers) == (0.01, None)
    assert Index(10, 1, 10.0).vectors(768).pq_bytes == 96.0


def test_devices_of_a_server_share_the_index():
    one, two = (steps(ASKED, pool=StagePool("cpu", CPU, 1, devices))["search"].seconds for devices in (1, 2))
    np.testing.assert_allclose(two, one / 2, rtol=0.01)
    large = replace(ASKED, index=replace(INDEX, pq_bytes=96.0))
    assert "1,932 GB" in told(large) and "exceeds the 1,000 GB of 1 x cpu-grace; use smaller pq_bytes" in told(large)
    assert steps(large, pool=StagePool("cpu", CPU, 1, 2))["search"].seconds[0] > 0


def test_a_search_needs_cores():
    assert "a search needs a CPU; add deployment.pools.cpu" in told(ASKED, pool=None)
    gpu = StagePool("gpu", load_hardware("l4"), 1, 1)
    assert "pool gpu: a search needs a CPU, and l4 has no cores" in told(ASKED, pool=gpu)
    assert work(ASKED, visit()).problem is None


FIXED = {"source": "fixed", "prompt_tokens": 100, "output_tokens": 5}


def scenario(retrieve, rate_rps=None, lengths=FIXED, requests=10, llm=None, more=(), **pools):
    """Requests of 100 tokens, with a stage of these keys; evenly sent, or by chance where there are many."""
    process = "uniform" if requests == 10 else "poisson"
    stage_pools = {"cpu": {"role": "stage", "hardware": "cpu-grace"}, **pools}
    return load_scenario(
        {
            "name": "rag",
            "workload": {
                "arrivals": {"process": process, "rate_rps": rate_rps or 1.0},
                "lengths": lengths,
                "requests": requests,
            },
            "deployment": {
                "model": "llama-3.1-8b",
                "hardware": "h100-sxm",
                "pools": {"llm": llm or {"role": "mixed"}, **stage_pools},
            },
            "pipeline": [retrieve, *more, "prefill", "decode"],
        }
    )


GOOD = {
    "stage": "retrieve",
    "pool": "cpu",
    "embedding": "e5-base",
    "index": {"centroids": 1000, "probes": 10, "points_per_probe": 100},
    "documents": 5,
    "tokens_per_document": 100,
}
REFUSED = {
    "more probes than centroids": (
        {"index": {"centroids": 10, "probes": 50, "points_per_probe": 100}},
        r"pipeline\.retrieve\.index\.probes: 50 probes are more than the 10 centroids",
    ),
    "no documents": ({"documents": 0}, r"pipeline\.retrieve\.documents: must be an integer from 1"),
    "documents below zero": ({"documents": -3}, r"pipeline\.retrieve\.documents: must be an integer from 1"),
    "tokens below zero": ({"tokens_per_document": -1}, r"tokens_per_document: must be an integer from 1"),
    "points below zero": (
        {"index": {"centroids": 10, "probes": 5, "points_per_probe": -1}},
        r"index\.points_per_probe: must be greater than 0, got -1",
    ),
    "an index of nothing": ({"index": None}, r"pipeline\.retrieve\.index: is required"),
    "another index": (
        {"index": {"kind": "hnsw", "centroids": 10, "probes": 5, "points_per_probe": 1}},
        r"index\.kind: 'hnsw' is not one of ivf_pq",
    ),
    "too many to compare again": (
        {"index": {"centroids": 10, "probes": 2, "points_per_probe": 3, "rescored": 7}},
        r"index\.rescored: 7 vectors are more than the 6 of all probes",
    ),
    "no dimensions": ({"embedding": None}, r"index\.dimensions: must be there where there is no embedding model"),
    "an unknown model": ({"embedding": "e5-bse"}, r"pipeline\.retrieve\.embedding: .*did you mean e5-base"),
    "an unknown link": ({"link": "pcie"}, r"pipeline\.retrieve\.link: unknown link 'pcie'"),
    "candidates for nobody": ({"candidates": 9}, r"candidates: there is no reranker to read them"),
    "a pool for nobody": ({"reranker_pool": "cpu"}, r"reranker_pool: there is no reranker to run on it"),
    "fewer candidates than documents": (
        {"reranker": "bge-reranker-v2-m3", "candidates": 2},
        r"candidates: 2 are fewer than the 5 documents that are kept of them",
    ),
    "a batch of none": ({"max_batch": 0}, r"max_batch: must be an integer from 1"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_has_one_message_with_its_place(changes, message):
    scenario(GOOD)
    with pytest.raises(InputError, match=message):
        scenario(GOOD | changes)


# --- through the simulation


def one_by_one(**keys) -> float:
    """TTFT of requests that never meet, with a stage of these keys: seconds."""
    found = scenario(
        GOOD | keys,
        rate_rps=0.01,
        llm={"role": "mixed", "calibration": "datasheet"},
        cpu={**ENCODING, "hardware": "cpu-grace"},
        gpu={**ENCODING, "hardware": "l4"},
    )
    return float(sweep(found)["ttft_s_mean"].values[0])


LIKE = {"index": {**GOOD["index"], "dimensions": 768}}
ENCODING = {"role": "stage", "calibration": "datasheet", "batching": {"policy": "continuous"}}


def pass_s(model: str, hardware: str, tokens: int, sequences: int = 1) -> float:
    """Of so many sequences of so many tokens together."""
    built = load_model(model)
    cost = fold(operators(built, Precision(), Parallel()), load_hardware(hardware),
                load_calibration("datasheet", hardware))  # fmt: skip
    return float(iteration_time(cost, prefill_batch(float(sequences), tokens, model_window(built))))


def test_the_first_token_is_the_sum_of_the_steps():
    """Embedding of 100 tokens, search, eight candidates of 200 tokens in one batch, 5 x 100 tokens of 4 bytes over
    8 GB/s, a prompt of 600."""
    keys = {"reranker": "bge-reranker-v2-m3", "candidates": 8, "link": "pcie-gen4-x4"}
    index = Index(**GOOD["index"]).vectors(768)
    wanted_s = (
        pass_s("e5-base", "cpu-grace", 100)
        + float(search_time(index, 1.0, 72.0, 512e9))
        + pass_s("bge-reranker-v2-m3", "l4", 200, 8)
        + 5 * 100 * 4 / 8e9
        + pass_s("llama-3.1-8b", "h100-sxm", 600)
    )
    found_s = one_by_one(**keys, embedding_pool="cpu", reranker_pool="gpu")
    assert found_s == pytest.approx(wanted_s, rel=1e-9)


def test_an_encoder_is_as_fast_as_its_hardware():
    """An embedder on a CPU and a re-ranker on a GPU change places, and all else is as it was."""
    of = {"embedding": "e5-mistral-7b", "reranker": "bge-reranker-v2-m3"}
    cpu_s = one_by_one(**of, embedding_pool="cpu", reranker_pool="gpu")
    gpu_s = one_by_one(**of, embedding_pool="gpu", reranker_pool="cpu")
    rerank_s = {name: pass_s("bge-reranker-v2-m3", name, 200, 5) for name in ("cpu-grace", "l4")}
    embed_s = {name: pass_s("e5-mistral-7b", name, 100) for name in ("cpu-grace", "l4")}
    wanted_s = embed_s["cpu-grace"] + rerank_s["l4"] - embed_s["l4"] - rerank_s["cpu-grace"]
    assert cpu_s - gpu_s == pytest.approx(wanted_s, rel=1e-9)


def test_statuses_of_pools_that_cannot():
    """A search where there are no cores, and an encoder in chunks: rows with a reason."""
    nowhere = sweep(scenario(GOOD | {"pool": "gpu"}, cpu=None, gpu={**ENCODING, "hardware": "l4"}))
    assert "infeasible: pipeline.retrieve: pool gpu: a search needs a CPU" in str(nowhere["status"].values[0])
    chunked = sweep(scenario(GOOD, cpu={**ENCODING, "hardware": "cpu-grace", "batching": {"policy": "chunked"}}))
    assert "pipeline.retrieve.embed: policy chunked cuts prompts into chunks" in str(chunked["status"].values[0])
    assert sweep(scenario(GOOD))["status"].values[0] == "ok"  # where no policy is said, one for whole texts
    both = sweep(scenario(GOOD | {"reranker": "bge-reranker-v2-m3"}, cpu={**ENCODING, "hardware": "cpu-grace"}))
    assert "pool cpu computes e5-base for retrieve.embed" in str(both["status"].values[0])
    twice = sweep(scenario(GOOD, cpu={**ENCODING, "hardware": "cpu-grace"}, more=[GOOD | {"embedding": None, **LIKE}]))
    assert "pool cpu serves retrieve.search in batches, and no others fit" in str(twice["status"].values[0])


def test_placements_of_a_retrieval():
    """Designs whose embedding is on one pool or another, in one sweep: every pool is paid for, once; and the findings
    of the study: a large model on a small CPU decides over the first token, and sending the documents is nothing."""
    found = sweep(load_scenario(SCENARIOS / "rag-placement.yaml", ["workload.requests=50"]))
    np.testing.assert_array_equal(found["devices"].values, [2, 2, 3, 2] * 2)
    seconds = found["stage_service_s_mean"]
    share = {name: seconds.sel(stage=name).values for name in seconds["stage"].values}
    small_s = share["retrieve.embed"][5]
    assert small_s == max(share["retrieve.embed"]) and small_s > 0.8 * found["ttft_s_mean"].values[5]
    assert (share["retrieve.transfer"] < 0.01 * found["e2e_s_mean"].values).all()
    assert (share["retrieve.embed"][:4] < share["prefill"][:4]).all()


@pytest.mark.parametrize("seed", range(tried(12, 1 / 3)))
def test_chain_and_reference_are_equal(seed):
    """Random retrievals under load, whose searches come in batches, several in one pass of the re-ranker."""
    rng = np.random.default_rng(seed)
    keys = {
        "index": {"centroids": 4e5, "probes": 10, "points_per_probe": float(rng.integers(100, 5_000))},
        "max_batch": int(rng.integers(1, 9)),
        "max_wait_s": float(rng.choice([0.0, 0.01, 0.1])),
        "documents": int(rng.integers(1, 4)),
        "link": "pcie-gen4-x4",
    }
    if rng.random() < 0.5:
        keys |= {"reranker": "bge-reranker-v2-m3", "reranker_pool": "gpu", "candidates": 4}
    pools = {"cpu": {**ENCODING, "hardware": "cpu-grace", "replicas": int(rng.integers(1, 3))}}
    if "reranker" in keys:
        pools["gpu"] = {**ENCODING, "hardware": "l4", "replicas": int(rng.integers(1, 3))}
    lengths = {
        "source": "lognormal",
        "prompt_mean": 200,
        "prompt_cv": 0.5,
        "output_mean": 4,
        "output_cv": 0.5,
    }
    asked = scenario(GOOD | keys, rate_rps=float(rng.uniform(5, 80)), lengths=lengths, requests=120, **pools)
    one, other = (sweep(asked, simulator=simulator) for simulator in ("iteration", "token"))
    assert one["engine"].values[0] == "iteration" and other["engine"].values[0] == "token"
    for name in ("ttft_s", "e2e_s", "queue_wait_s", "stage_wait_s", "stage_service_s", "stage_utilisation"):
        np.testing.assert_allclose(one[name].values, other[name].values, rtol=1e-9, atol=1e-12, err_msg=name)
    whole = plan(asked, simulator="token")
    (group,) = whole.groups
    jobs = [whole.jobs(configuration) for configuration in group.configurations]
    chain, loop = (
        run_chain(stations_of(whole, group.configurations), jobs),
        chain_result_of(run_network(whole, group.configurations, jobs)),
    )
    for stage, same in zip(chain.stages, loop.stages, strict=True):
        for name in ("wait_s", "service_s", "utilisation"):
            told = f"{name} of {stage.name}"
            np.testing.assert_allclose(getattr(stage, name), getattr(same, name), rtol=1e-9, atol=1e-9, err_msg=told)
