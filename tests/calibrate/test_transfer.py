"""The set of a device that nobody measured: what it is made of, what is to be expected of it, and what it beats."""

import numpy as np
import pytest

from evaluator.accuracy import load_errors
from evaluator.calibrate.devices import PROCESSORS
from evaluator.calibrate.run import judge
from evaluator.calibrate.selection import select
from evaluator.calibrate.table import read_tables
from evaluator.calibrate.transfer import class_errors, known_errors, leave_one_out
from evaluator.catalog import load_calibration, load_hardware
from evaluator.catalog.calibration import HOST
from evaluator.catalog.store import find
from evaluator.catalog.transferred import measured_devices, transferred
from evaluator.cost.rates import rates
from evaluator.errors import InputError

MEASURED = ("a100-sxm", "b200-sxm", "h100-sxm", "h200-sxm", "l40s")
SMALL = ("aic_custom_all_reduce.csv", "aic_context_attention.parquet")


def kernels(*devices):
    return {name: load_calibration(f"{name}-vllm", name) for name in devices}


def test_every_figure_is_the_median():
    sets = list(kernels("a100-sxm", "h100-sxm", "l40s").values())
    found = transferred(sets)
    for op_class in ("gemm", "attention_decode", "grouped_gemm"):
        for figure in ("bandwidth_efficiency", "knee", "launch_s"):
            each = sorted(getattr(one.efficiencies[op_class], figure) for one in sets)
            assert getattr(found.efficiencies[op_class], figure) == each[1]
    assert found.of("gemm").wave_share == 0.0  # tiles of a wave are counts of a device
    assert (found.provenance, found.rests_on, found.hardware) == ("transferred", "transferred", "any")
    with pytest.raises(InputError, match="there is no set of another device to take the median of"):
        transferred([])


def test_what_devices_send_is_that_of_devices_joined_alike():
    sets = kernels("a100-sxm", "h100-sxm", "l40s")
    found = transferred(list(sets.values()), link=["l40s"])
    assert found.of("all_reduce") == transferred([sets["l40s"]]).of("all_reduce")
    assert found.of("gemm") == transferred(list(sets.values())).of("gemm")
    assert found.sources["all_reduce"] == "median of the sets of l40s"


def test_a_gpu_that_nobody_measured_takes_the_kernels_and_the_host_of_others():
    found = load_calibration("auto", "l4")
    assert (found.name, found.provenance, found.hardware) == ("transferred", "transferred", "l4")
    assert found.of("all_reduce") == transferred([load_calibration("l40s-vllm", "l40s")]).of("all_reduce")
    host = load_calibration("l40s-vllm.serving", "l40s")  # the only one of its architecture
    assert all(getattr(found, figure) == getattr(host, figure) for figure in HOST)
    for op_class in ("gemm", "attention_decode", "grouped_gemm"):
        assert found.of(op_class).bandwidth_efficiency == host.of(op_class).bandwidth_efficiency
    own = load_calibration("transferred", "h100-sxm")  # its own kernels are not among them
    others = transferred([one for name, one in kernels(*MEASURED).items() if name != "h100-sxm"])
    assert own.of("gemm") == others.of("gemm")
    hosts = [load_calibration(f"{name}-vllm.serving", name) for name in MEASURED if name != "h100-sxm"]
    for figure in HOST:
        figures = [getattr(host, figure) for host in hosts]
        whole = figure in ("launches", "api_server_times")  # sections, of which there is no median
        assert getattr(own, figure) == (figures[0] if whole else np.median(figures))
    for other in ("gaudi3", "tpu-v5e", "cpu-grace"):  # of these architectures nothing is known
        assert load_calibration("auto", other).name == "datasheet"


def test_a_device_of_a_users_own_file_takes_them_too(tmp_path):
    """The L4 under another name; its links say whose collectives it has."""
    text = find("hardware", "l4").read_text().replace("name: l4\n", "name: box\n")
    (tmp_path / "box.yaml").write_text(text)
    found, known = load_calibration("auto", load_hardware(str(tmp_path / "box.yaml"))), load_calibration("auto", "l4")
    assert (found.provenance, found.hardware) == ("transferred", "box")
    assert found.efficiencies == known.efficiencies and found.frontend_s == known.frontend_s


def test_sets_of_a_users_own_do_not_get_into_the_median(tmp_path, monkeypatch):
    """Under a name that is no device's, of whole iterations, or of another device than the name says."""
    before = load_calibration("auto", "l4")
    folder = tmp_path / "calibration"
    folder.mkdir()
    text = find("calibrations", "h100-sxm-vllm").read_text()
    for name in ("my-h100-vllm", "a30-vllm"):
        (folder / f"{name}.yaml").write_text(text.replace("name: h100-sxm-vllm", f"name: {name}"))
    monkeypatch.setenv("EVALUATOR_PATH", str(tmp_path))
    assert measured_devices("vllm") == list(MEASURED)
    assert load_calibration("auto", "l4").efficiencies == before.efficiencies


def test_it_is_expected_to_be_better_than_the_data_sheet():
    """Servers on devices left out in turn: what lets ``auto`` take it."""
    errors = load_errors()
    for statistic in ("ttft_mean", "ttft_p90", "itl_mean", "e2e_mean", "e2e_p90"):
        assert errors.of(("transferred",), statistic) < errors.of(("datasheet",), statistic), statistic


def test_kernels_of_a_device_left_out_are_nearer_than_by_the_data_sheet(data_folder):
    tables = read_tables([data_folder / name for name in SMALL])
    sets, sheet = kernels(*MEASURED), load_calibration("datasheet", "any")
    found = leave_one_out(tables, sets)
    better = []
    for name in MEASURED:
        device = load_hardware(name)
        for part in select(tables, name, PROCESSORS[name])[0]:
            judged = judge(part, rates(device, sheet), device)
            by_sheet = (judged["predicted_s"] / judged["time_s"] - 1)[judged["time_s"] >= 2e-5].abs().median()
            row = found[(found["hardware"] == name) & (found["class"] == part.label)]
            better.append(row["median"].item() < by_sheet)
    assert np.mean(better) >= 0.7


def test_errors_of_one_engine_say_nothing_of_another(evaluator, tmp_path):
    assert known_errors("vllm") and known_errors("trtllm") == {}
    out = tmp_path / "mine.yaml"
    code, told, _ = evaluator("calibrate", "--transfer", "--hardware", "l4", "--engine", "trtllm", "--out", str(out))
    assert code == 0 and "of TensorRT-LLM the errors of such sets are not known; `evaluator calibrate DATA..." in told
    assert load_calibration(str(out), "l4").fit == {}


def test_devices_of_other_makers_are_told_whose_errors_these_are(evaluator, tmp_path):
    code, told, _ = evaluator("calibrate", "--transfer", "--hardware", "mi300x", "--out", str(tmp_path / "mine.yaml"))
    assert code == 0 and told.rstrip().endswith("mi300x is no GPU of NVIDIA, as all of these are: expect more")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "kernels.yaml: expected a mapping of keys to values"),
        ("{derived: a, command: b, source: c, engine: vllm}", "kernels.yaml: classes: missing"),
        (
            "{derived: a, command: b, source: c, engine: vllm, classes: {gemm: {median: 0.1, p90: 0.2, "
            "devices: {l4: 3}}}}",
            "kernels.yaml: classes.gemm.devices.l4: expected [median, 90th percentile], got 3",
        ),
    ],
)
def test_a_table_of_another_make_is_refused(text, message, tmp_path, monkeypatch):
    folder = tmp_path / "calibration" / "errors"
    folder.mkdir(parents=True)
    (folder / "kernels.yaml").write_text(text)
    monkeypatch.setenv("EVALUATOR_PATH", str(tmp_path))
    with pytest.raises(InputError) as error:
        known_errors()
    assert message in str(error.value)


def test_the_table_that_is_shipped_is_what_the_tables_say(data_folder):
    table = class_errors([data_folder / "aic_custom_all_reduce.csv"], "vllm")
    shipped = known_errors()
    assert table["classes"]["all_reduce"]["devices"].keys() == shipped["all_reduce"]["devices"].keys()
    for device, figures in table["classes"]["all_reduce"]["devices"].items():
        np.testing.assert_allclose(figures, shipped["all_reduce"]["devices"][device], atol=0.01)


def test_the_command_writes_a_set_that_is_read_again(evaluator, tmp_path):
    out = tmp_path / "mine.yaml"
    code, told, _ = evaluator("calibrate", "--transfer", "--hardware", "l4", "--out", str(out))
    assert code == 0 and "gemm" in told and "worst device left out" in told
    found = load_calibration(str(out), "l4")
    assert (found.name, found.provenance, found.rests_on) == ("mine", "transferred", "transferred")
    others = load_calibration("transferred", "l4")
    assert found.of("gemm").bandwidth_efficiency == pytest.approx(others.of("gemm").bandwidth_efficiency, rel=1e-5)
    assert found.frontend_s == pytest.approx(others.frontend_s, rel=1e-5)
    expected = found.fit["errors_of_devices_left_out"]
    assert expected["gemm"]["median"] == known_errors()["gemm"]["median"]
    code, told, _ = evaluator("estimate", "--model", "llama-3.1-8b", "--weights", "fp8", "--hardware", "l4",
                              "--calibration", str(out))  # fmt: skip
    assert code == 0 and "kernels and host of other devices" in told


@pytest.mark.parametrize(
    "options",
    [
        ("--transfer",),
        ("--transfer", "--hardware", "l4"),
        ("--transfer", "--hardware", "l4", "--out", "a.yaml", "x.csv"),
        ("--transfer", "--errors", "a.yaml"),
    ],
)
def test_what_transfer_takes(evaluator, options):
    code, _, error = evaluator("calibrate", *options)
    assert code == 2
    assert "calibrate --transfer takes --hardware NAME --out FILE.yaml, or DATA... --errors FILE.yaml" in error


def test_without_transfer_data_are_needed(evaluator):
    code, _, error = evaluator("calibrate", "--hardware", "l4", "--out", "a.yaml")
    assert code == 2 and "calibrate takes DATA... --hardware NAME --out FILE.yaml" in error
