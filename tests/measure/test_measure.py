"""From this machine's device to a calibration set that predicts shapes of it that the fit has not seen."""

import math
import os
import subprocess
import sys

import pandas as pd
import pytest

from evaluator.catalog import load_calibration
from evaluator.measure.device import Device
from evaluator.measure.points import MeasuredCall, gemm
from evaluator.measure.rows import MeasuredRows
from evaluator.measure.run import Ends, Host, MeasureOutcome, measure, measure_host
from evaluator.measure.timing import Effort, Timing

CPU = Device("CPU", "cpu", 1, 4e9, 1e6, "0")
HASTIEST = Effort(1e-4, 3, 1e-4, 0.1)
SMALL = ("--model", "qwen3-0.6b", "--tp", "2", "--operators", "gemm", "--quick", "--quiet")


def held_out_error(evaluator, seconds):
    """Measure for so long, calibrate: how many shapes are kept aside, and the median error on them."""
    code, out, err = evaluator("measure", "--out", "box.csv", *SMALL, "--seconds", seconds)
    assert (code, err) == (0, "")
    assert "gemm " in out and "us to start a program" in out
    code, out, _ = evaluator("calibrate", "box.csv", "--hardware", "box.yaml", "--out", "fitted.yaml")
    assert code == 0 and "gemm" in out
    # Of few shapes none is kept aside, as where others leave this machine no time.
    aside = (
        load_calibration("fitted.yaml", "box").fit["errors"]["gemm"].get("held_out", {"rows": 0, "median": math.inf})
    )
    return aside["rows"], aside["median"]


def test_measure_calibrate_predict_estimate(evaluator, tmp_path, monkeypatch):
    for seconds in (5, 12, 24, 48):  # others may use this machine too
        folder = tmp_path / str(seconds)
        folder.mkdir()
        monkeypatch.chdir(folder)
        rows, error = held_out_error(evaluator, seconds)
        if rows > 5 and error < 0.6:
            break
    assert rows > 5 and error < 0.6
    table = pd.read_csv("box.csv")
    assert set(table["op_class"]) == {"gemm", "elementwise"} and (table["hardware"] == "box").all()
    assert (table["time_s"] > 0).all() and table["spread_s"].notna().all() and (table["samples"] >= 3).all()

    dtypes = [text for option in ("weights", "activations", "kv") for text in (f"--{option}", "fp32")]
    asked = ("--model", "qwen3-0.6b", "--hardware", "box.yaml", "--calibration", "fitted.yaml", "--prompt", 128)
    code, out, _ = evaluator("estimate", *asked, *dtypes)
    assert code == 0 and "efficiencies: fitted (calibrated)" in out


def test_resume_measures_what_is_missing(evaluator, tmp_path):
    path = tmp_path / "box.csv"
    (first, second) = points = [gemm(8, 256, 256, "fp32"), gemm(16, 256, 256, "fp32")]
    measure(points[:1], CPU, MeasuredRows(path, "CPU", "box"), effort=HASTIEST, seconds=60)
    written = path.read_text()
    outcome = measure(points, CPU, MeasuredRows(path, "CPU", "box", resume=True), effort=HASTIEST, seconds=60)
    assert (outcome.measured, outcome.kept) == (1, 1)
    assert path.read_text().startswith(written)
    assert set(MeasuredRows(path, "CPU", "box", resume=True).times()) == {first.key, second.key}


def test_time_that_is_up_leaves_the_rest(tmp_path):
    clock = iter(range(0, 1000, 10))
    points = [gemm(size, 256, 256, "fp32") for size in (1, 2, 3, 4, 5)]
    rows = MeasuredRows(tmp_path / "t.csv", "CPU", "box")
    outcome = measure(points, CPU, rows, effort=HASTIEST, seconds=25, clock=lambda: next(clock))
    assert outcome.measured == 2 and outcome.left == {"not reached in the time given": 3}


def test_what_does_not_fit_or_takes_too_long_is_left_out(tmp_path):
    small = Device("CPU", "cpu", 1, 1e4, 1e3, "0")
    rows = MeasuredRows(tmp_path / "t.csv", "CPU", "box")
    outcome = measure([gemm(64, 64, 64, "fp32"), gemm(10**5, 10**5, 10**5, "fp32")], small, rows,
                      effort=HASTIEST, seconds=60)  # fmt: skip
    assert outcome.left == {"more than half of the memory": 1, "longer than 0.1 s a call": 1}
    assert outcome.measured == 0


def test_classes_that_stay_below_the_ends_are_expected_to_take_longer():
    ends, slow = Ends(), MeasuredCall("attention_prefill", {}, flops=1e12, operand_bytes=1.0, held_bytes=0.0)
    ends.see(gemm(1000, 1000, 1000, "fp32"), 1e-3)
    assert ends.expected(slow) == pytest.approx(1e12 / 2e12)
    ends.see(slow, 5.0)
    assert ends.expected(slow) == pytest.approx(5.0)
    assert ends.expected(gemm(2000, 1000, 1000, "fp32")) == pytest.approx(2e-3)


GPU = Device("GPU", "gpu", 1, 4e9, 1e6, "0")


def test_programs_of_many_calls_where_host_and_device_are_apart(tmp_path, monkeypatch):
    """As on a GPU, here with the CPU's programs: short calls share a program, and cuDNN is not there.

    The programs run; the times are made up, because this machine's decide how many calls share a program.
    """

    def timed(run, effort):
        run(2)
        return Timing(1e-3, 1e-5, 3, 1)

    monkeypatch.setattr("evaluator.measure.run.measure_host", lambda *_: Host(1e-4, 1e-4, 0.0))
    monkeypatch.setattr("evaluator.measure.run.time_programs", timed)
    path = tmp_path / "t.csv"
    heads = {"heads": 8, "kv_heads": 4, "head_dim": 64, "window": 0, "dtype": "bf16", "kv_dtype": "bf16"}
    decode = MeasuredCall("attention_decode", {"batch": 8, "past_tokens": 512, **heads}, 1e6, 2e6, 2e6)
    points = [gemm(64, 1024, 1024, "bf16"), decode, gemm(64, 256, 512, "bf16")]
    outcome = measure(points, GPU, MeasuredRows(path, "GPU", "box"), effort=HASTIEST, seconds=1e6)
    assert (outcome.measured, outcome.left) == (3, {})
    table = pd.read_csv(path)
    assert table["kernel"].tolist() == ["dot", "products", "dot"]
    assert table["calls"].iloc[-1] > 1
    assert table["time_s"].tolist() == pytest.approx((1e-3 / table["calls"]).tolist(), rel=1e-5)


def test_what_the_host_adds_is_not_negative():
    host = measure_host(GPU, HASTIEST)
    assert min(host.program_s, host.round_trip_s) > 0 and host.link_s >= 0


def test_a_failure_on_the_device_is_one_row_less(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nmore")

    rows = MeasuredRows(tmp_path / "t.csv", "CPU", "box")
    monkeypatch.setattr("evaluator.measure.run.measure_host", lambda *_: Host(1e-6, 1e-6, 0.0))
    monkeypatch.setattr("evaluator.measure.run.time_best", fail)
    outcome = measure([gemm(8, 16, 16, "fp32")], CPU, rows, effort=HASTIEST, seconds=60)
    assert outcome.left == {"gemm failed on this device (RESOURCE_EXHAUSTED: out of memory)": 1}


REDUCES = """
from pathlib import Path
from evaluator.catalog import load_model
from evaluator.measure import QUICK, Effort, MeasuredRows, find_device, measure, points
device = find_device()
found = points(["all_reduce"], [load_model("qwen3-0.6b")], [1], "fp32", device.count, QUICK)
small = [each for each in found if each.op_class == "all_reduce" and each.columns["message_bytes"] <= 2**16]
measure(small, device, MeasuredRows(Path("box.csv"), device.name, "box"), effort=Effort(0.0, 3, 0.0, 0.1), seconds=60)
"""


def test_all_reduces_of_several_devices(tmp_path):
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    command = [sys.executable, "-c", REDUCES]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | flags, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "box.csv")
    assert sorted(zip(table["devices"], table["message_bytes"], strict=True)) == [
        (2, 4096), (2, 65536), (4, 4096), (4, 65536)
    ]  # fmt: skip
    assert set(table["kernel"]) == {"psum"} and (table["time_s"] > 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--operators", "gem"], "unknown operator class 'gem'; did you mean gemm?"),
        (["--dtype", "fp8"], "--dtype fp8: cannot be measured; allowed: bf16, fp16, fp32"),
        (["--model", "llama-9"], "unknown model 'llama-9'"),
        (["--operators", "all_reduce"], "nothing to measure of all_reduce: it needs several devices"),
        (["--describe", "box.txt"], "--describe box.txt: the name must end in .yaml"),
        (["--seconds", "0"], "nothing was measured"),
    ],
)
def test_bad_input(evaluator, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = evaluator("measure", "--out", "box.csv", "--quiet", *arguments)
    assert code == 2 and message in err
    assert not (tmp_path / "box.csv").exists() and not (tmp_path / "box.yaml").exists()


def test_bad_output(evaluator, tmp_path):
    assert "the name must end in .csv" in evaluator("measure", "--out", tmp_path / "box.parquet")[2]
    assert "the folder cannot be" in evaluator("measure", "--out", "/proc/box.csv")[2]
    (tmp_path / "box.yaml").touch()
    code, _, err = evaluator("measure", "--out", tmp_path / "box.csv")
    assert code == 2 and "is there already, and would be overwritten" in err


def test_an_interrupted_run_tells_how_to_go_on(evaluator, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("evaluator.measure.measure", interrupt)
    code, _, err = evaluator("measure", "--out", tmp_path / "box.csv", "--quiet")
    assert (code, err) == (130, "interrupted; what was measured is kept, go on with --resume\n")


def test_a_known_device_is_named_and_needs_no_description(evaluator, tmp_path, monkeypatch):
    known = Device("NVIDIA H200", "gpu", 1, 1e11, 50e6, "0")
    monkeypatch.setattr("evaluator.measure.find_device", lambda: known)

    def note(points, device, rows, **_):
        rows.add({"op_class": "gemm", "m": 1, "n": 2, "k": 3, "dtype": "bf16", "time_s": 1.0, "spread_s": 0.1})
        return MeasureOutcome(Host(1e-6, 2e-6, 0.0), measured=1)

    monkeypatch.setattr("evaluator.measure.measure", note)
    path = tmp_path / "t.csv"
    code, out, err = evaluator("measure", "--out", path)
    assert code == 0 and out.startswith("NVIDIA H200")
    assert f"evaluator calibrate {path} --hardware h200-sxm --out t-jax.yaml" in err
    assert pd.read_csv(path)["hardware"].tolist() == ["h200-sxm"] and not (tmp_path / "t.yaml").exists()
