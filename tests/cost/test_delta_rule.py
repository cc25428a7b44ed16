"""Prompts through layers with the gated delta rule: which kernel an engine runs, and what it takes."""

import numpy as np
import pytest

import evaluator
from evaluator.catalog.delta_rule import delta_rule_kernel
from evaluator.cost.batch import prefill_batch, together
from evaluator.cost.host import with_layers
from evaluator.cost.iteration import DeltaRuleRows, delta_rule_time, iteration_time
from evaluator.cost.lanes import pad_rows, row_counts, stack
from evaluator.cost.parallel import Parallel
from evaluator.errors import InputError
from evaluator.replica import ReplicaSpec, build
from tests.benchmarks import delta_rule

HYBRID = "qwen3.5-35b-a3b"  # 30 of 40 layers have a state, of 32 heads
ROW = DeltaRuleRows(start_s=20.0, walk_s=0.5, token_s=0.01, share=0.25)


@pytest.mark.parametrize(
    ("tokens", "prompts", "seconds"),
    [
        (0.0, 0.0, 0.0),
        (100.0, 1.0, 20 + 50 + 1),
        (200.0, 1.0, 20 + 100 + 2),
        (200.0, 2.0, 20 + 50 + 2),  # side by side
        (400.0, 4.0, 20 + 50 + 4),  # as many heads as walk at a time
        (500.0, 5.0, 2 * (20 + 50) + 5),  # a second round
        (50.0, 0.5, 0.5 * 20 + 25 + 0.5),  # one such prompt in every other iteration
    ],
)
def test_heads_walk_along_their_prompts_in_rounds(tokens, prompts, seconds):
    assert delta_rule_time(ROW, tokens, prompts) == pytest.approx(seconds)


def hybrid(**more):
    return build(ReplicaSpec(HYBRID, **({"hardware": "b300-sxm", "engine_version": "0.24"} | more)))


def test_the_release_and_the_architecture_choose_the_kernel():
    flash, triton = (delta_rule_kernel("vllm", "blackwell", release) for release in ((0, 22), (0, 21, 1)))
    assert flash is delta_rule_kernel("vllm", "hopper", (0, 20)) and triton is delta_rule_kernel("vllm", "ada", (0, 24))
    assert flash is not triton and delta_rule_kernel("mine", "hopper", (0, 5)) is None
    assert hybrid().calibration.delta_rule == flash.devices["b300-sxm"]
    assert hybrid(engine_version="0.20").calibration.delta_rule == triton.devices["b300-sxm"]
    assert hybrid(hardware="gh200").calibration.delta_rule == flash.devices["h200-sxm"]  # the nearest Hopper
    for engine in ("sglang", "trtllm"):
        others = hybrid(hardware="h100-sxm", engine=engine, engine_version=None).calibration
        assert (
            others.delta_rule
            == delta_rule_kernel(engine, "hopper", ()).devices["h100-sxm"]
            != flash.devices["h100-sxm"]
        )
    for none in ({"hardware": "a100-sxm"}, {"calibration": "datasheet"}, {"calibration": "h100-sxm-trtllm"}):
        assert hybrid(**none).calibration.delta_rule is None
    # Models without such layers keep the very object, by which costings are shared.
    assert build(ReplicaSpec("llama-3.1-8b", "h100-sxm")).calibration.delta_rule is None


def test_an_iteration_takes_the_walk_of_its_layers_on_top():
    with_walk, figures = hybrid(parallel=Parallel(2)), hybrid().calibration.delta_rule
    (cost,) = with_walk.replica.pipeline_ranks
    without = cost._replace(delta_rule_rows=DeltaRuleRows(*(np.zeros(0),) * 4))
    for prompts, tokens, heads in ((1, 8192, 16), (4, 2048, 64), (16, 512, 256)):
        batch = prefill_batch(prompts, tokens, None)
        rounds = max(1, -(-heads // figures.heads))
        more = 30 * (
            rounds * (figures.start_s + tokens * figures.walk_s) + 16 * prompts * tokens * figures.head_token_s
        )
        # 41 ms of launches hide a part of neither: the device takes longer.
        device = [iteration_time(each._replace(pieces_s=0.0, between_s=0.0), batch) for each in (cost, without)]
        assert device[0] - device[1] == pytest.approx(more)
    decodes = together(batch, batch)._replace(prefill_tokens=0.0, prefill_sequences=0.0, decodes=8.0)
    assert iteration_time(cost, decodes) == iteration_time(without, decodes)


def test_lanes_and_devices_cost_the_same():
    (cost,), (other,) = (build(ReplicaSpec(model, "b300-sxm", engine_version="0.24")).replica.pipeline_ranks
                         for model in (HYBRID, "qwen3-32b"))  # fmt: skip
    batch = prefill_batch(np.array([3.0, 3.0]), 700.0, None)
    lanes = iteration_time(stack([cost, other]), batch)
    alone = [iteration_time(each, prefill_batch(3.0, 700.0, None)) for each in (cost, other)]
    np.testing.assert_allclose(lanes, alone, rtol=1e-14)
    padded = pad_rows(cost, row_counts(cost)._replace(delta_rule_rows=3))
    assert iteration_time(padded, prefill_batch(3.0, 700.0, None)) == pytest.approx(alone[0], rel=1e-14)
    built = hybrid()
    split = built.model, built.calibration, Parallel()
    wide = with_layers(cost._replace(iteration_s=np.zeros(4), delta_rule_rows=DeltaRuleRows(*((),) * 4)), *split)
    assert wide.delta_rule_rows.walk_s.shape == (1, 4)
    np.testing.assert_array_equal(wide.delta_rule_rows.walk_s[0], cost.delta_rule_rows.walk_s[0])


def test_shares_of_layers_on_pipeline_ranks_add_up():
    whole, split = hybrid().replica, hybrid(parallel=Parallel(1, 2)).replica
    walks = [rank.delta_rule_rows.walk_s[0] for rank in split.pipeline_ranks]
    assert sum(walks) == pytest.approx(whole.pipeline_ranks[0].delta_rule_rows.walk_s[0])


def test_long_prompts_take_longer_by_the_earlier_kernel():
    seconds = [
        evaluator.iteration_time(HYBRID, "b300-sxm", prompt_tokens=8192, engine_version=release)
        for release in ("0.20", "0.24")
    ]
    assert seconds[0] - seconds[1] == pytest.approx(9.3e-3, rel=0.05)


@pytest.mark.parametrize(
    ("engine", "kernel", "device", "within"),
    [
        ("vllm", "flashinfer", "b200_sxm", 0.02),
        ("vllm", "flashinfer", "h100_sxm", 0.05),
        ("vllm", "triton", "b300_sxm", 0.1),
        ("trtllm", "triton", "b300_sxm", 0.05),
    ],
)
def test_the_figures_are_those_of_the_measured_calls(engine, kernel, device, within, data_folder):
    release = (0, 24) if kernel == "flashinfer" else (0, 16)
    architecture = "hopper" if device.startswith("h") else "blackwell"
    figures = delta_rule_kernel(engine, architecture, release).devices[delta_rule.DEVICES[device]]
    found = delta_rule.calls(data_folder, kernel, device, engine)
    scaled = 1e6 * figures.start_s, 1e9 * figures.walk_s, 1e9 * figures.head_token_s, figures.heads
    errors = delta_rule.predicted_us(found, *scaled) / found["latency_us"] - 1.0
    assert errors[found["latency_us"] > delta_rule.LONG_US].abs().median() < within


FIGURES = "{start_s: 1.0e-5, walk_s: 4.0e-8, head_token_s: 0.0, heads: 148}"


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        ("{mine: {devices: {h100: " + FIGURES + "}}}", "vllm.yaml: kernels.mine.devices.h100: no such device"),
        (
            "{mine: {devices: {h100-sxm: {start_s: 1.0e-5}}}}",
            "vllm.yaml: kernels.mine.devices.h100-sxm.walk_s: missing",
        ),
        (
            "{mine: {since: {hopper: new}, devices: {}}}",
            "vllm.yaml: kernels.mine.since.hopper: expected a release such",
        ),
    ],
)
def test_a_list_that_cannot_be_read_says_so(kernels, message, tmp_path, monkeypatch):
    folder = tmp_path / "models" / "delta_rule"
    folder.mkdir(parents=True)
    (folder / "vllm.yaml").write_text(f"name: vllm\nkernels: {kernels}\nsources: {{mine: me}}\n")
    monkeypatch.setenv("EVALUATOR_PATH", str(tmp_path))
    with pytest.raises(InputError) as error:
        delta_rule_kernel("vllm", "hopper", (0, 24))
    assert message in str(error.value)
