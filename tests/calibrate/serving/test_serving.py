"""The fit of serving experiments through the engine: what it finds, what is kept aside, what it writes."""

import re
from dataclasses import astuple, replace

import pytest

from evaluator.calibrate.serving import PARTITIONS, FitResult, campaign, fit_all, fit_serving, held_out
from evaluator.calibrate.serving.campaign import parts
from evaluator.calibrate.serving.fit import renamed
from evaluator.calibrate.serving.parameters import active, adjusted, as_vllm
from evaluator.calibrate.serving.write import calibration_text
from evaluator.catalog import load_calibration
from evaluator.catalog.calibration import read_calibration
from evaluator.compare import compare_experiments, headline
from evaluator.errors import InputError
from evaluator.experiments import MeasuredMetrics, read_experiments
from evaluator.yaml import loads_yaml


@pytest.fixture
def experiments(small):
    return read_experiments(*small)


def measured_by(experiments, calibration):
    """The experiments as a world of this calibration would measure them."""
    found = []
    for experiment in experiments[:2]:
        rows = compare_experiments([experiment], calibration, seeds=(0,))
        means = rows[rows["metric"].isin(["ttft_mean", "itl_mean", "e2e_mean"])]
        measured = tuple(
            MeasuredMetrics(stage, {each.metric: each.predicted * 1e-3 for each in part.itertuples()}, 39.5)
            for stage, part in means.groupby("stage_index")
        )
        found.append(replace(experiment, measured=measured))
    return found


def test_a_fit_explains_what_a_known_set_has_made(experiments):
    base = load_calibration("datasheet", "any")
    truth = adjusted(base, {"weight_bandwidth": 0.9, "step_overhead_s": 2e-3, "frontend_s": 8e-3})
    world = measured_by(experiments, truth)
    before = headline(compare_experiments(world, base, seeds=(0,)))
    fitted = fit_serving(world, {"h100-sxm": base})
    after = headline(compare_experiments(world, adjusted(base, fitted.values), seeds=(0,)))
    assert after["itl_mean"] < 1 < 10 < before["itl_mean"]
    assert after["ttft_mean"] < 8 < 20 < before["ttft_mean"]
    assert set(fitted.values) == {parameter.name for parameter in active(base, 2)}
    assert all(0 <= share <= 1 for share in fitted.prior_share.values())
    assert fitted.prior_share["expert_bandwidth"] > 0.99  # a dense model says nothing of experts


def test_a_prediction_held_out_has_not_seen_the_experiment(experiments, monkeypatch):
    seen = []

    def fit(kept, *_, **__):
        seen.append([each.id for each in kept])
        return FitResult({}, experiments=tuple(seen[-1]))

    monkeypatch.setattr(campaign, "fit_serving", fit)
    table = held_out(experiments[:2], "fold")
    assert list(dict.fromkeys(table["exp_id"])) == ["a", "b"]
    assert seen == [["b"], ["a"]]
    with pytest.raises(InputError, match="nothing is left to fit where one model is kept aside"):
        held_out(experiments[:2], "model")


def test_nothing_to_fit_is_told(experiments):
    with pytest.raises(InputError, match="nothing to fit: no experiment has measurements and can run"):
        fit_all(experiments[2:])


def test_runs_of_one_gpu_make_no_sets_for_others(experiments, monkeypatch):
    monkeypatch.setattr(campaign, "fit_serving", lambda *_, **__: FitResult({}))
    monkeypatch.setattr(campaign, "compare_experiments", lambda *_: None)
    gpus = {each.gpu for each in experiments[:2]}
    assert len(gpus) == 1
    (found,) = fit_all(experiments[:2])
    assert found.hardware == campaign.hardware_name(gpus.pop())


def test_all_experiments_are_kept_aside_once(experiments):
    for partition in PARTITIONS:
        aside = [each.id for group in parts(experiments[:2], partition) for each in group]
        assert sorted(aside) == ["a", "b"]


def test_layouts_are_kept_aside_where_the_model_ran_in_others(experiments):
    one = experiments[0]
    wider = replace(one, id="c", tensor_parallel=2)
    elsewhere = replace(one, id="d", tensor_parallel=4, gpu="L40S")  # alone on its device: nothing near it is left
    assert [[each.id for each in group] for group in parts([one, wider, elsewhere], "layout")] == [["a"], ["c"]]
    assert campaign.serving_runs([wider, one, elsewhere]) == {
        campaign.hardware_name(one.gpu): {campaign.model_name(one.model): (1, 2)},
        "l40s": {campaign.model_name(one.model): (4,)},
    }
    with pytest.raises(InputError, match="no model of the experiments ran in several layouts on one GPU"):
        held_out([one], "layout")


def test_a_fitted_set_reads_back_equal(experiments):
    base = load_calibration("datasheet", "any")
    values = {"weight_bandwidth": 1.1, "launch": 1.25, "sort_start_s": 3e-4, "expert_skew": 0.5, "frontend_s": 5e-3,
              "lookahead_steps": 1.25}  # fmt: skip
    some = dict.fromkeys(values, 0.1)
    set_ = renamed(adjusted(as_vllm(base), values), "mine", "l40s")
    text = calibration_text(set_, FitResult(values, some, some), base, "two\nlines")
    assert text.startswith("# two\n# lines\nname: mine\n")
    again = read_calibration(loads_yaml(text), "mine.yaml")
    assert again.efficiencies["gemm"].bandwidth_efficiency == pytest.approx(0.82 * 1.1)
    for name, one in set_.efficiencies.items():
        *read, groups = astuple(again.efficiencies[name])
        *written, expected = astuple(one)
        assert read == pytest.approx(written, rel=1e-5) and groups == expected
    assert (again.frontend_s, again.lookahead_steps, again.hardware) == (5e-3, 1.25, "l40s")
    assert (again.expert_skew, again.graph_tokens, again.of("sort").launch_s) == (0.5, 8.0, 3e-4)
    assert "launch 1.25 +- 10 %" in again.sources["elementwise"]
    assert again.sources["p2p"] == "as in the set datasheet"


def test_a_fit_has_what_is_known_of_servers_beside_its_runs():
    """Which no run of the campaigns tells: the values that the shipped set was fitted with give that set again."""
    base, shipped = (load_calibration(f"b200-sxm-vllm{ending}", "b200-sxm") for ending in ("", ".serving"))
    told = re.findall(r"(\w+) ([0-9.e-]+) \+- ([0-9]+) %", " ".join(shipped.sources.values()))
    values = {name: float(value) for name, value, _ in told}
    errors = {name: float(error) / 100 for name, _, error in told}
    set_ = renamed(adjusted(as_vllm(base), values), shipped.name, "b200-sxm")
    text = calibration_text(set_, FitResult(values, errors, dict.fromkeys(values, 0.1)), base, "")
    again = read_calibration(loads_yaml(text), "b200-sxm-vllm.serving.yaml")
    for name, efficiency in shipped.efficiencies.items():
        *figures, groups = astuple(again.efficiencies[name])
        *expected, expected_groups = astuple(efficiency)
        assert figures == pytest.approx(expected, rel=2e-3), name
        assert groups.keys() == expected_groups.keys()
        assert all(group == pytest.approx(expected_groups[size], rel=2e-3) for size, group in groups.items()), name
    assert again.efficiencies["attention_decode"].beside_walk_s == 4.16e-9
    for name in ("attention_decode", "all_reduce"):
        assert again.sources[name] == shipped.sources[name]
