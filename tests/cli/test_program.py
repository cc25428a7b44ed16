import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.scenario import Arrivals, Axis, Deployment, Lengths, Scenario, Workload
from tests.forked import Forked

AXES = (
    Axis("deployment.tensor_parallel", (2, 4), tuple({"deployment.tensor_parallel": n} for n in (2, 4))),
    Axis("deployment.hardware", ("h100-sxm", "l40s"), tuple({"deployment.hardware": n} for n in ("h100-sxm", "l40s"))),
)
SCENARIO = Scenario(
    name="small",
    workload=Workload(Arrivals("poisson", 2.0), Lengths("fixed"), requests=10, warmup_requests=0, seeds=(0, 1)),
    deployment=Deployment("llama-3.1-8b", "h100-sxm"),
    sweep=AXES,
)


@pytest.fixture
def scenario_file(tmp_path, monkeypatch):
    """A file whose contents are SCENARIO whatever it holds; the overrides are noted in ``seen``."""
    seen = []

    def load_scenario(path, overrides=()):
        seen.append((path, tuple(overrides)))
        return SCENARIO

    monkeypatch.setattr("evaluator.scenario.load_scenario", load_scenario, raising=False)
    path = tmp_path / "small.yaml"
    path.touch()
    return SimpleNamespace(path=path, seen=seen)


@pytest.fixture
def chain(monkeypatch):
    """What the commands call, replaced: ``calls`` notes the arguments, ``fail`` is raised by a run."""
    noted = SimpleNamespace(calls={}, fail=None)

    def note(name, result=None):
        def call(*arguments, **options):
            noted.calls[name] = (arguments, options)
            if noted.fail is not None and name in ("sweep", "simulate", "estimate"):
                raise noted.fail
            if options.get("progress") is not None:
                options["progress"].advance(4)
            return result

        return call

    import numpy as np
    import xarray as xr

    summary = xr.Dataset(
        {"ttft_s": (("config", "quantile"), [[0.25, 1.5]], {"units": "s"}), "status": ("config", np.array(["ok"]))},
        coords={"quantile": [0.5, 0.9], "tensor_parallel": ("config", [4])},
    )
    simulated = SimpleNamespace(requests=[1, 2, 3], summary=summary)
    parts = {
        "evaluator.run": {"sweep": summary, "simulate": simulated},
        "evaluator.estimation": {"estimate": SimpleNamespace(status="ok")},
        "evaluator.report.estimate": {"format_estimate": "the breakdown"},
    }
    for module, functions in parts.items():
        fake = SimpleNamespace(**{name: note(name, result) for name, result in functions.items()})
        monkeypatch.setitem(sys.modules, module, fake)
    for name, result in {
        "evaluator.report.ranked_table": "the table",
        "evaluator.report.plot": None,
        "evaluator.results.write_requests": None,
    }.items():
        monkeypatch.setattr(name, note(name.rpartition(".")[2], result))
    return noted


# --- the program itself


def test_help_names_the_commands_that_there_are(evaluator):
    code, out, _ = evaluator("--help")
    assert code == 0
    commands = "estimate sweep gather optimize simulate validate measure calibrate compare catalog"
    for command in commands.split():
        assert f"  {command} " in out


def test_version_needs_no_command(evaluator):
    from evaluator import __version__

    assert evaluator("--version") == (0, f"evaluator {__version__}\n", "")


def test_help_loads_nothing_heavy():
    heavy = ("jax", "numpy", "pandas", "xarray", "scipy", "yaml", "rich", "matplotlib")
    program = f"import sys, evaluator.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_python_m_runs_it_and_a_closed_pipe_is_quiet():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        command = [sys.executable, "-m", "evaluator", "catalog", "show", "h100-sxm"]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweeep"], "Did you mean 'sweep'"),
        (["sweep"], "Missing argument"),
        (["sweep", "a.yaml", "--top", "-1"], "--top"),
        (["estimate", "--model", "m", "--hardware", "h", "--tp", "0"], "--tp"),
        (["sweep", "a.yaml", "--outt", "x.nc"], "No such option"),
    ],
)
def test_usage_errors_leave_with_2(evaluator, arguments, message):
    code, out, err = evaluator(*arguments)
    assert (code, out) == (2, "")
    assert message in err


# --- failures


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("a.yaml: workload.rate:\n  is negative"), 2, "error: a.yaml: workload.rate: is negative\n"),
        (FileNotFoundError(2, "No such file or directory", "t.csv"), 2, "error: t.csv: No such file or directory\n"),
        (KeyboardInterrupt(), 130, "interrupted; nothing is kept without --out\n"),
    ],
)
def test_what_a_failure_becomes(evaluator, scenario_file, chain, error, code, message):
    chain.fail = error
    assert evaluator("sweep", scenario_file.path, "--quiet") == (code, "", message)


def test_an_interrupted_sweep_tells_how_to_go_on(evaluator, scenario_file, chain, tmp_path):
    chain.fail = KeyboardInterrupt()
    code, _, err = evaluator("sweep", scenario_file.path, "--out", tmp_path / "a.nc")
    assert code == 130
    assert err.splitlines()[-1] == "interrupted; finished chunks are kept, the same command goes on with them"


def test_our_own_fault_is_short_and_says_how_to_see_more(evaluator, scenario_file, chain, monkeypatch):
    chain.fail = ZeroDivisionError("division by zero")
    code, out, err = evaluator("sweep", scenario_file.path, "-q")
    assert (code, out) == (1, "")
    assert err.startswith("internal error: ZeroDivisionError: division by zero\n")
    assert "EVALUATOR_DEBUG=1" in err and "Traceback" not in err
    monkeypatch.setenv("EVALUATOR_DEBUG", "1")
    code, _, err = evaluator("sweep", scenario_file.path, "-q")
    assert code == 1 and "Traceback" in err and "ZeroDivisionError" in err


# --- sweep


def test_sweep_runs_prints_and_draws(evaluator, scenario_file, chain, tmp_path):
    out, plot = tmp_path / "new" / "a.nc", tmp_path / "a.png"
    options = ["--set", "a.b=1", "--set", "c=[1, 2]", "--top", "3", "--resume"]
    code, printed, err = evaluator("sweep", scenario_file.path, "--out", out, "--plot", plot, *options)
    assert (code, printed) == (0, "the table\n")
    assert scenario_file.seen == [(scenario_file.path, ("a.b=1", "c=[1, 2]"))]
    arguments, given = chain.calls["sweep"]
    progress = given.pop("progress")
    assert arguments == (SCENARIO,)
    plain = {"fresh": False, "simulator": "auto", "sensitivity": False, "by_seed": False, "cluster": None}
    assert given == {"out": out, **plain}
    assert (progress.total, progress.requests_per_unit) == (4, 20)
    (ranked, top), (drawn, path) = chain.calls["ranked_table"][0], chain.calls["plot"][0]
    assert ranked is drawn and "status" in ranked and (top, path) == (3, plot)
    assert out.parent.is_dir()
    assert "4/4 configurations" in err and err.endswith(f"wrote {out} and {plot}\n")


def test_a_quiet_sweep_says_nothing_on_stderr(evaluator, scenario_file, chain):
    assert evaluator("sweep", scenario_file.path, "--quiet", "--top", "0") == (0, "", "")
    assert chain.calls["sweep"][1]["progress"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--simulator", "tokn"],
            "error: --simulator tokn: is not a simulator; allowed: auto, iteration, request, token",
        ),
        (["--out", "a.csv"], "error: a.csv: unknown kind of result file '.csv'; use .nc"),
        (["--plot", "a.gif"], "error: --plot a.gif: the name must end in .png or .svg or .pdf"),
        (["--plot", "/proc/a.png"], "error: --plot /proc/a.png: the folder cannot be written"),
        (["--out", "/proc/a.nc"], "error: --out /proc/a.nc: the folder cannot be written"),
        (["--resume"], "error: --resume needs --out"),
        (["--shard", "3/16"], "error: --shard needs --out NAME.zarr: every shard writes its rows of one Zarr store"),
        (["--shard", "3/16", "--out", "a.nc"], "error: --shard needs --out NAME.zarr"),
        (["--shard", "third"], "error: --shard third: NUMBER/COUNT is wanted, such as 3/16"),
        (["--shard", "0/16"], "error: --shard 0/16: shards are counted from 1 to 16"),
        (["--shard", "17/16"], "error: --shard 17/16: shards are counted from 1 to 16"),
        (["--shard", "1/0"], "error: --shard 1/0: there can be 1 to 10,000 shards"),
        (
            ["--shard", "1/2", "--out", "a.zarr", "--plot", "a.png"],
            "error: --plot draws whole sweeps; gather the shards",
        ),
    ],
)
def test_sweep_refuses_before_it_runs(evaluator, scenario_file, chain, options, message):
    code, out, err = evaluator("sweep", scenario_file.path, *options)
    assert (code, out) == (2, "")
    assert err.startswith(message) and err.count("\n") == 1
    assert not chain.calls


def test_a_picture_without_matplotlib_is_refused_with_what_to_install(evaluator, scenario_file, chain, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, err = evaluator("sweep", scenario_file.path, "--plot", "a.png")
    assert (code, out, err) == (2, "", "error: --plot needs matplotlib: pip install matplotlib\n")
    assert not chain.calls


def test_help_says_how_axes_are_changed(evaluator):
    code, out, _ = evaluator("sweep", "--help")
    text = " ".join(out.split())
    assert code == 0
    assert "'sweep={KEY: VALUES}' is merged with the axes of the file; sweep.KEY=null takes an axis away" in text


@pytest.mark.parametrize("name", ["nowhere.yaml", "some/folder"])
def test_a_scenario_that_is_not_there(evaluator, name):
    code, _, err = evaluator("sweep", name)
    assert code == 2
    assert err.startswith(f"error: there is no scenario file {name}")


def test_a_scenario_name_that_is_not_there(evaluator):
    code, _, err = evaluator("sweep", "quickstrat")
    assert code == 2
    assert err.startswith("error: unknown scenario 'quickstrat'")


def test_a_scenario_with_an_unknown_key(evaluator, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("worklod: {}\n")
    code, out, err = evaluator("sweep", path)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {path}") and "worklod" in err and err.count("\n") == 1


# --- simulate


def test_simulate_selects_runs_and_writes(evaluator, scenario_file, chain, tmp_path):
    table = tmp_path / "r.csv"
    code, out, err = evaluator("simulate", scenario_file.path, "--select", "tp=4,hardware=l40s", "--requests", table)
    assert code == 0
    assert out.splitlines() == [
        "tensor_parallel  4",
        "ttft_s           p50 0.25 s   p90 1.5 s",
        "status           ok",
    ]
    arguments, given = chain.calls["simulate"]
    assert arguments == (SCENARIO,) and given["select"] == {"tp": "4", "hardware": "l40s"}
    assert chain.calls["write_requests"] == (([1, 2, 3], table), {})
    assert err.endswith(f"wrote 3 requests to {table}\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            [],
            "error: 4 configurations remain; choose one with --select NAME=VALUE on deployment.tensor_parallel: 2, 4;",
        ),
        (["--select", "tp=3"], "error: --select tp=3: not in the sweep; deployment.tensor_parallel is 2, 4"),
        (["--select", "tp"], "error: --select 'tp': NAME=VALUE is wanted"),
        (["--requests", "r.xlsx"], "error: --requests r.xlsx: the name must end in .csv or .parquet"),
        (["--requests", "/proc/x.csv"], "error: --requests /proc/x.csv: the folder cannot be written"),
    ],
)
def test_simulate_refuses_before_it_runs(evaluator, scenario_file, chain, options, message):
    code, out, err = evaluator("simulate", scenario_file.path, *options)
    assert (code, out) == (2, "")
    assert err.startswith(message) and err.count("\n") == 1
    assert not chain.calls


# --- estimate


def test_estimate_hands_over_the_design(evaluator, chain):
    options = ["--tp", "4", "--prompt", "512", "--batch", "8", "--rate", "2.5", "--weights", "fp8", "--kv", "fp8"]
    code, out, err = evaluator("estimate", "--model", "llama-3.1-70b", "--hardware", "h100-sxm", *options)
    assert (code, out, err) == (0, "the breakdown\n", "")
    (model, hardware), given = chain.calls["estimate"]
    assert (model.name, hardware.name) == ("llama-3.1-70b", "h100-sxm")
    assert (given["tensor_parallel"], given["pipeline_parallel"], given["expert_parallel"]) == (4, 1, 1)
    assert (given["prompt_tokens"], given["output_tokens"], given["batch"], given["rate_rps"]) == (512, 256, 8, 2.5)
    assert given["precision"] == Precision("fp8", "bf16", "fp8")
    assert given["calibration"].name == "h100-sxm-vllm.serving"
    options += ["--attention-weights", "checkpoint"]
    evaluator("estimate", "--model", "llama-3.1-70b", "--hardware", "h100-sxm", *options)
    assert chain.calls["estimate"][1]["precision"] == Precision("fp8", "bf16", "fp8", "checkpoint")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--attention-weights", "fp9"], "error: --attention-weights fp9: is no dtype; allowed: checkpoint, fp32"),
        (["--kv", "fp9"], "error: --kv fp9: is no dtype; allowed: fp32, bf16"),
        (["--kv", "checkpoint"], "error: --kv checkpoint: is no dtype"),
        (["--calibration", "none-such"], "error: unknown calibration 'none-such'"),
        (["--lora-rank", "8"], "error: --lora-rank needs --max-loras"),
        (["--adapters", "8"], "error: --adapters needs --max-loras"),
    ],
)
def test_estimate_refuses(evaluator, chain, options, message):
    code, out, err = evaluator("estimate", "--model", "llama-3.1-70b", "--hardware", "h100-sxm", *options)
    assert (code, out) == (2, "")
    assert err.startswith(message) and err.count("\n") == 1


def test_estimate_tells_near_names(evaluator, chain):
    code, _, err = evaluator("estimate", "--model", "llama-3.1-70b", "--hardware", "h100-smx")
    assert code == 2 and err.startswith("error: unknown hardware 'h100-smx'; did you mean h100-sxm")


def test_what_takes_long_is_said(capsys, monkeypatch):
    """Not at once, and not where quiet was asked for."""
    import time

    from evaluator.cli import notes

    monkeypatch.setattr(notes, "FIRST_S", 0.05)
    with notes.waiting_for("reading it", quiet=True):
        time.sleep(0.2)
    with notes.waiting_for("reading that"):
        pass
    assert capsys.readouterr().err == ""
    with notes.waiting_for("reading it"):
        time.sleep(0.3)
    assert capsys.readouterr().err == "reading it ...\n"


LIBRARY = """
import gc
gc.set_threshold(700, 11, 12)
import evaluator
from evaluator.device import configure
configure()
print(evaluator.iteration_time.__name__, gc.get_threshold())
"""
COMMAND = """
import gc
gc.set_threshold(700, 11, 12)
from evaluator.cli import main
try:
    main()
finally:
    print(gc.get_threshold())
"""


@pytest.mark.parametrize(("program", "threshold"), [(LIBRARY, "(700, 11, 12)"), (COMMAND, "(50000, 11, 12)")])
def test_the_command_sets_how_often_python_looks_for_cycles_and_the_library_leaves_it(program, threshold):
    process = Forked(program, ["--version"])
    printed, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert printed.splitlines()[-1].endswith(threshold)
