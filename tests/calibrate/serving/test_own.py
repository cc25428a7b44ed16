"""A user's own server: its set from a few runs, what the runs leave open, and what cannot be fitted."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import yaml

import evaluator as package
from evaluator.accuracy import load_errors
from evaluator.accuracy.basis import Basis
from evaluator.calibrate.serving import own
from evaluator.calibrate.serving.own_runs import own_runs
from evaluator.calibrate.serving.parameters import OWN_PARAMETERS, adjusted
from evaluator.calibrate.serving.write import document_of
from evaluator.catalog import load_calibration
from evaluator.catalog.own_server import ServedLoad
from evaluator.compare.results import predicted
from evaluator.experiments.generators import read_runs
from evaluator.scenario import load_scenario

TRUE = {"step_overhead_s": 1.5e-3, "frontend_s": 2e-2}
"""What the synthetic server's host takes beside the shipped set's 0.04 ms and 5 ms: it is slow."""
LOADS = (2, 12, 40)


def scenario(users=4, model="llama-3.1-8b", **deployment):
    tree = {
        "name": "server",
        "workload": {
            "arrivals": {"process": "closed_loop", "users": users},
            "lengths": {"source": "fixed", "prompt_tokens": 300, "output_tokens": 40},
            "requests": 80,
            "warmup_requests": 0,
            "cooldown_requests": 0,
            "find_warmup": False,
        },
        "deployment": {"model": model, "hardware": "h100-sxm", **deployment},
    }
    return tree


def points(rows):
    """A CSV of points; each row a concurrency and its metrics in ms and 1/s."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(str(row.get(name, "")) for name in names) for row in rows]
    return "\n".join([",".join(names), *lines]) + "\n"


def measured(users, set_file, **changes):
    tree = scenario(users, calibration=str(set_file), **changes)
    values = predicted(package.simulate(load_scenario(tree)))
    return {
        "concurrency": users, "requests": 80, "prompt_tokens": 300, "output_tokens": 40,
        "ttft_mean_ms": 1e3 * values["ttft_mean"], "tpot_mean_ms": 1e3 * values["tpot_mean"],
        "e2e_mean_ms": 1e3 * values["e2e_mean"], "throughput_rps": values["throughput_rps"],
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """``points.csv`` of a server whose host is slow, and ``server.yaml``, which does not know."""
    folder = tmp_path_factory.mktemp("own")
    base = load_calibration("auto", "h100-sxm")
    true = replace(adjusted(base, TRUE, OWN_PARAMETERS), name="true")
    (folder / "true.yaml").write_text(yaml.safe_dump(document_of(true) | {"sources": dict(base.sources)}))
    (folder / "points.csv").write_text(points([measured(users, folder / "true.yaml") for users in LOADS]))
    (folder / "server.yaml").write_text(yaml.safe_dump(scenario()))
    return folder


@pytest.fixture(scope="module")
def fitted(folder):
    """The fit of three points, and its file."""
    from evaluator.calibrate.serving.own_report import set_text
    from evaluator.replica import design
    from evaluator.scenario import with_engine_defaults

    runs = own_runs(read_runs(folder / "points.csv"), load_scenario(folder / "server.yaml"))
    built = design(with_engine_defaults(runs[0].scenario.deployment), 0)
    fit = own.fit_own(runs, built, "mine", folder)
    (folder / "mine.yaml").write_text(set_text(fit))
    return fit


def test_a_slow_host_is_recovered_within_its_standard_errors(fitted):
    by_name = {parameter.name: parameter for parameter in fitted.parameters}
    for name, true in TRUE.items():
        parameter = by_name[name]
        assert not parameter.held and parameter.value > 2 * parameter.base
        assert abs(parameter.value / true - 1.0) < parameter.error < 0.5, parameter
    # Nothing else was changed, and nothing is invented: what is not held stays within its error of the base set.
    for parameter in fitted.parameters:
        if parameter.name not in TRUE:
            assert abs(parameter.value / parameter.base - 1.0) < max(parameter.error, 1e-9), parameter
    assert "lookahead_steps" in [name for name, parameter in by_name.items() if parameter.held]
    assert 2 <= fitted.told_directions <= 6 and fitted.spread < 1.5


def test_three_points_help_where_a_load_is_left_out(fitted):
    errors = {row.metric: row for row in own.summary(fitted.figures)}
    assert {row.points for row in errors.values()} == {3}
    for metric in ("tpot_mean", "e2e_mean", "throughput_rps"):
        assert errors[metric].held_out_pct < 2.0 < 10.0 < errors[metric].base_pct
    assert errors["ttft_mean"].held_out_pct < errors["ttft_mean"].base_pct / 2


def test_what_has_the_same_effect_is_told_as_not_told_apart():
    """Two parameters with one column: together they are known, each keeps half of its prior."""
    jacobian = np.array([[40.0, 40.0, 0.0], [40.0, 40.0, 0.0]])
    covariance, spread = own._covariance(np.zeros(2), jacobian)
    assert np.diag(covariance) == pytest.approx([0.5, 0.5, 1.0], abs=1e-3) and spread == 1.0
    listed = [own.OwnParameter(name, "", 1.0, 1.0, 0.1, 0.5, False) for name in ("a", "b", "c")]
    ((one, other, correlation),) = own._alike(covariance, np.array([True, True, False]), listed)
    assert (one, other) == ("a", "b") and correlation == pytest.approx(-1.0, abs=1e-3)


def test_the_set_is_used_like_any_other_and_rows_say_so(fitted, folder):
    read = load_calibration(str(folder / "mine.yaml"), "h100-sxm")
    assert read.own_server == fitted.own and read.rests_on == "own_server" and read.provenance == "calibrated"
    assert read.fit["base"] == "h100-sxm-vllm.serving" and set(read.fit["parameters"]) >= set(TRUE)
    assert "your server's runs" in read.sources["frontend_s"]
    summary = package.simulate(load_scenario(scenario(16, calibration=str(folder / "mine.yaml")))).summary
    assert str(summary["calibration_set"].item()) == "mine"
    assert str(summary["model_error_basis"].item()).startswith(
        "fitted to your server; error of loads left out of 3 runs"
    )
    errors = dict(fitted.own.errors)
    assert float(summary["tpot_s_model_error"].item()) == pytest.approx(errors["itl"])


def test_expected_errors_grow_with_the_distance_in_load(fitted, folder):
    mine = str(folder / "mine.yaml")
    near, far = (package.simulate(load_scenario(scenario(users, calibration=mine))).summary for users in (40, 79))
    error = dict(fitted.own.errors)["itl"]
    assert float(near["tpot_s_model_error"].item()) == pytest.approx(error)
    nearest = max(fitted.own.runs, key=lambda run: run.concurrency)
    assert fitted.own.growth(nearest) == 1.0
    load = replace(nearest, concurrency=nearest.concurrency * math.exp(3 * fitted.own.spacing))
    assert fitted.own.growth(load) == pytest.approx(3.0)
    assert fitted.own.growth(ServedLoad(nearest.concurrency, 300 * 100.0, 40.0)) == pytest.approx(
        math.log(100) / fitted.own.spacing
    )
    assert float(far["tpot_s_model_error"].item()) >= error
    read = load_calibration(mine, "h100-sxm")
    asked = {"calibration": read, "prompt_tokens": 300, "output_tokens": 40}
    ones = [package.estimate("llama-3.1-8b", "h100-sxm", batch=batch, **asked) for batch in (12, 240)]
    assert ones[0].model_error[1] == pytest.approx(error) and ones[1].model_error[1] > error
    assert ones[1].model_error_basis.startswith("fitted to your server")


def test_another_release_is_not_the_server_that_was_measured(fitted, folder):
    read = load_calibration(str(folder / "mine.yaml"), "h100-sxm")
    assert read.own_server.release is None  # the scenario said none, and any counts
    said = replace(read, own_server=replace(read.own_server, release="0.15"))
    asked = {"calibration": said, "prompt_tokens": 300, "output_tokens": 40, "batch": 12}
    same, other = (
        package.estimate("llama-3.1-8b", "h100-sxm", engine_version=name, **asked) for name in ("0.15.1", "0.28")
    )
    assert same.model_error_basis.startswith("fitted to your server")
    assert "release" in other.model_error_basis and other.model_error[1] > same.model_error[1]


def test_what_was_not_measured_is_no_surer_than_what_was(fitted):
    poor, good = (replace(fitted.own, errors=(("itl", error),)) for error in (0.3, 0.001))
    table = load_errors()
    assert Basis(("own_server",), own=poor).bands(table) == (0.3, 0.3, 0.3)
    ttft, itl, _ = Basis(("own_server",), own=good).bands(table)
    assert (ttft, itl) == (table.of(["runs"], "ttft_mean"), 0.001)


def test_other_designs_rest_on_what_the_base_set_does(fitted, folder):
    mine, errors = str(folder / "mine.yaml"), load_errors()
    simulated = package.simulate(load_scenario(scenario(4, "qwen3-8b", calibration=mine))).summary
    # No release is named, so that it is the newest, and not that of the base set's servers.
    assert "and serving runs of this device, other models" in str(simulated["model_error_basis"].item())
    of_base = errors.of(["other_models", "other_releases"], "itl_mean", concurrency=4)
    assert float(simulated["tpot_s_model_error"].item()) == pytest.approx(of_base)


def test_the_command_fits_writes_and_tells(evaluator, folder, tmp_path, monkeypatch):
    """Two loads of short runs: each fit without one has seen the other alone. Of a few parameters, to be quick."""
    monkeypatch.setattr(own, "OWN_PARAMETERS", [one for one in OWN_PARAMETERS if one.name in (*TRUE, "launch")])
    csv, out = tmp_path / "two.csv", tmp_path / "sets" / "two.yaml"
    csv.write_text(points([measured(users, folder / "true.yaml") for users in (1, 8)]))
    code, told, noted = evaluator(
        "calibrate", csv, "--serving", "--scenario", folder / "server.yaml", "--out", out, "--json"
    )
    assert code == 0, noted
    found = json.loads(told)
    assert found["values"]["base"] == "h100-sxm-vllm.serving" and found["values"]["expected"]["itl"] >= 0.02
    assert {"name", "base", "value", "error", "prior_share", "held"} <= set(found["tables"]["parameters"]["columns"])
    assert len(found["tables"]["figures"]["rows"]) == 8 and "simulations" in noted and f"wrote {out}" in noted
    assert load_calibration(str(out), "h100-sxm").own_server is not None
    row = json.loads(evaluator("compare", csv, "--scenario", folder / "server.yaml", "--calibration", out, "--json")[1])
    assert max(abs(one["error_pct"]) for one in row["tables"]["comparison"]["rows"] if one["metric"] == "tpot_mean") < 2


ROW = {"concurrency": 4, "requests": 60, "prompt_tokens": 300, "output_tokens": 60, "tpot_mean_ms": 9}
VLLM = {
    "model_id": "llama-3.1-8b", "num_prompts": 60, "completed": 60, "max_concurrency": 8, "request_rate": "inf",
    "total_input_tokens": 18000, "total_output_tokens": 3600, "mean_ttft_ms": 30.0, "mean_tpot_ms": 9.0,
    "request_throughput": 9.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([ROW], "1 run at one load (4 users, 300 + 60 tokens) cannot tell"),
        ([ROW, ROW | {"tpot_mean_ms": 9.1}, ROW | {"requests": 80}], "3 runs at one load"),
        ([ROW, ROW | {"concurrency": 8, "tpot_mean_ms": "nan"}], "row 2: tpot_mean_ms must be a number"),
        ([ROW, ROW | {"concurrency": 8, "tpot_mean_ms": 0}], "points.csv row 2: has no mean or median of TTFT"),
        ([ROW, ROW | {"concurrency": 8, "model": "qwen3-14b"}], "measured with model qwen3-14b, and the scenario has"),
        ([ROW, ROW | {"concurrency": 8, "tensor_parallel": 2}], "another deployment than points.csv row 1"),
        ([ROW, ROW | {"concurrency": 8, "prompt_tokens": 900_000}], "row 2: cannot be predicted"),
        ([ROW | {"output_tokens": 1}, ROW | {"concurrency": 8}], "row 1: has a tpot_mean, which the load in it"),
        ([{"rate_rps": 4, "requests": 99, "ttft_mean_ms": 30, "tpot_mean_ms": 9, "throughput_rps": 4},
          {"rate_rps": 40, "requests": 9999, "ttft_mean_ms": 90e3, "tpot_mean_ms": 30, "throughput_rps": 20}],
         "row 2: the server was saturated (20 of 40 requests/s were served)"),
        (VLLM | {"completed": 50}, "10 of 60 requests failed"),
        (VLLM | {"mean_tpot_ms": float("nan"), "mean_ttft_ms": float("nan"), "request_throughput": float("nan")},
         "no latency or throughput"),
        ({"results": []}, "no result of"),
        ("", "no result of"),
    ],
)  # fmt: skip
def test_bad_runs_are_refused_with_a_remedy(evaluator, folder, tmp_path, content, message):
    path = tmp_path / ("points.csv" if isinstance(content, list | str) else "result.json")
    written = points(content) if isinstance(content, list) else content
    path.write_text(written if isinstance(written, str) else json.dumps(written))
    out = tmp_path / "out.yaml"
    code, _, noted = evaluator("calibrate", path, "--serving", "--scenario", folder / "server.yaml", "--out", out, "-q")
    assert code == 2 and message in " ".join(noted.split()) and not out.exists(), noted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "o.yaml"], "there is no run to fit to"),
        (["points.csv"], "--out is missing"),
        (["gone.csv", "--out", "o.yaml"], "there is no file gone.csv"),
        (["points.csv", "--out", "o.yaml"], "says nothing of the model"),
        (["points.csv", "--out", "o.yaml", "--hardware", "h100-sxm"], "--hardware: is not of --serving"),
        (["points.csv", "--out", "o.yaml", "--form", "table"], "--form: is not of --serving"),
        (["points.csv", "--out", "o.yaml", "--start", "h100-sxm"], "--start: is not of --serving"),
        (["points.csv", "--out", "o.yaml", "--scenario", "server.yaml", "--set", "deployment.calibration=table.yaml"],
         "there is no file 'table.yaml'"),
        (["points.csv", "--out", "o.yaml", "--scenario", "server.yaml", "--set", "sweep.workload.requests=[4, 8]"],
         "a comparison takes one deployment, without a sweep"),
    ],
)  # fmt: skip
def test_what_the_command_line_lacks_is_named(evaluator, folder, monkeypatch, options, message):
    monkeypatch.chdir(folder)
    code, _, noted = evaluator("calibrate", "--serving", *options, "-q")
    assert code == 2 and message in " ".join(noted.split()), noted


def test_options_of_a_server_need_serving(evaluator, folder):
    code, _, noted = evaluator(
        "calibrate", folder / "points.csv", "--scenario", folder / "server.yaml", "--out", "o.yaml"
    )
    assert code == 2 and "they go with --serving" in noted


def test_an_interrupted_fit_says_what_is_kept(evaluator, folder, tmp_path, monkeypatch):
    def stop(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(own, "simulated", stop)
    out = tmp_path / "out.yaml"
    code, _, noted = evaluator(
        "calibrate", folder / "points.csv", "--serving", "--scenario", folder / "server.yaml", "--out", out, "-q"
    )
    assert code == 130 and "no set was written" in noted and not out.exists()


def test_a_file_whose_server_is_damaged_is_refused_with_its_place(fitted, folder, tmp_path):
    from evaluator.errors import InputError

    document = yaml.safe_load((folder / "mine.yaml").read_text()) | {"name": "damaged"}
    document["own_server"]["runs"][0]["concurrency"] = -1
    (tmp_path / "damaged.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match=r"own_server.runs\[0\].concurrency: expected a number"):
        load_calibration(str(tmp_path / "damaged.yaml"), "h100-sxm")


def test_three_points_of_a_published_server_help(data_folder, monkeypatch):
    """Batches of vLLM 0.11.1 held full on H100 lose more per sequence than the servers of the shipped sets."""
    from tests.benchmarks.own_server import judged, mlenergy

    few = ("sequence_overhead_s", "step_overhead_s", "weight_bandwidth")
    monkeypatch.setattr(own, "OWN_PARAMETERS", [one for one in OWN_PARAMETERS if one.name in few])
    server = next(one for one in mlenergy(data_folder) if "Qwen3-14B" in one.name)
    errors = judged(server, ["between"]).groupby("slice")[["before", "after"]].agg(lambda each: each.abs().mean())
    assert errors["before"]["between"] > 8 and errors["after"]["between"] < errors["before"]["between"] / 2
