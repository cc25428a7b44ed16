"""Command lines, files and surroundings that nobody means: a readable refusal and its exit code, never a traceback."""

import locale
import os
import random
import shutil
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluator import results
from evaluator.errors import InputError
from tests.forked import Forked
from tests.results.build import same
from tests.thorough import tried

LONGEST_S = 20.0  # far above what any of them takes: a guard against hanging, not a time to keep
GOOD = {0, 2, 3}
SCENARIO = """name: small
workload:
  arrivals: {process: poisson, rate_rps: 4}
  lengths: {source: fixed, prompt_tokens: 100, output_tokens: 8}
  requests: 12
  warmup_requests: 2
deployment: {model: llama-3.1-8b, hardware: h100-sxm}
slo: {ttft: {p90: 1s}}
sweep: {deployment.replicas: [1, 2]}
"""
REPLAY = """workload: {arrivals: {process: trace, file: FILE}, seeds: [0]}
deployment: {model: llama-3.1-8b, hardware: h100-sxm}
"""
TRACE = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i / 2},{10 + i},5\n" for i in range(15))
JSONL = "".join(f'{{"timestamp": {500 * i}, "input_length": 100, "output_length": 4}}\n' for i in range(12))
_BUDGET = settings(
    deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


def refused_or_done(evaluator, *arguments):
    start = time.perf_counter()
    code, _, err = evaluator(*arguments)
    assert code in GOOD, (arguments, err)
    assert "Traceback" not in err and "internal error" not in err, (arguments, err)
    if code == 2:
        assert "rror" in err or "Usage" in err
    assert time.perf_counter() - start < LONGEST_S
    return code


# --- command lines

_COMMANDS = ["sweep", "gather", "optimize", "report", "simulate", "calibrate", "compare", "validate", "estimate",
             "catalog", "catalog show", "catalog import", "catalog schema"]  # fmt: skip
_WORDS = """--out --shard --cluster --set --engine --top --plot --resume --fresh --dry-run -q --select --requests
--trace --rate --bracket --rank-by --sample --tolerance --model --hardware --tp --pp --prompt --output --batch
--kv --weights --calibration --like --name --form --scenario --held-out --fail-above --help --version -- -x""".split()
_VALUES = st.one_of(
    st.sampled_from(
        ["closed-loop", "small.yaml", "llama-3.1-8b", "h100-sxm", "a.nc", "a.zarr", "r.csv", "x.json", "page.html", "",
         ".", "/", "/dev/null", "/proc/a.nc", "nowhere/none.yaml", "1/2", "0/0", "9/3", "token", "iteration", "0", "-1",
         "3", "1e400", "nan", "10000000000000000000000", "tp=4", "a=b", "sweep=null", "workload.requests=[", "dask",
         "workload.seeds=[0]", "deployment.replicas=0", "tcp://", "\x00", "größe", "*", "~", "usd", "--"]
    ),
    st.text(max_size=6),
    st.integers().map(str),
    st.floats().map(str),
)  # fmt: skip
_LINES = st.tuples(
    st.sampled_from(_COMMANDS), st.lists(st.one_of(_VALUES, st.sampled_from(_WORDS), _VALUES), max_size=6)
)


@pytest.fixture
def nothing_runs(monkeypatch, tmp_path):
    """Whatever would take long says so instead; files go to a folder of their own."""

    def would_run(*_, **__):
        raise InputError("it would run")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO)
    for name in ("run.sweep", "run.sweep_shard", "run.simulate", "search.optimize", "validation.validate"):
        monkeypatch.setattr(f"evaluator.{name}", would_run)


@settings(_BUDGET, max_examples=tried(200))
@given(line=_LINES)
def test_any_command_line(nothing_runs, evaluator, line):
    command, words = line
    refused_or_done(evaluator, *command.split(), *words)


# --- files


def damaged(content: bytes, rng: random.Random, text: bool) -> bytes:
    """Some bytes changed, inserted, lost or repeated, or the rest lost; of texts mostly by other text."""
    found = bytearray(content)
    if rng.random() < 0.15:
        return bytes(found[: rng.randrange(len(found))])
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(found))
        how = rng.choice(["other", "other", "more", "less", "again"])
        if how == "other":
            found[at] = rng.choice(b"ab19.,:;-[]{}\"'# \n") if text and rng.random() < 0.9 else rng.randrange(256)
        elif how == "more":
            found[at:at] = rng.choice(
                [b"\x00", b"\xff", b"\n", b",", b"{", b"nan", b"1e400", b"-", b"9" * 400, b'"', b"null"]
            )
        elif how == "less":
            del found[at : at + rng.randint(1, 30)]
        else:
            found[at:at] = found[at : at + rng.randint(1, 100)]
    return bytes(found)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Every kind of file, undamaged."""
    from evaluator.run import sweep

    folder = tmp_path_factory.mktemp("whole")
    (folder / "small.yaml").write_text(SCENARIO)
    (folder / "t.csv").write_text(TRACE)
    (folder / "t.jsonl").write_text(JSONL)
    trace = pd.read_csv(folder / "t.csv")
    trace.to_parquet(folder / "t.parquet", index=False)
    pd.DataFrame({"tensor_parallel": [1, 2], "deployment.replicas": [1, 2]}).to_parquet(
        folder / "d.parquet", index=False
    )
    found = sweep(folder / "small.yaml", simulator="token")
    # Of each type and shape one or two: a file of all 60 variables takes five times as long to write and to read.
    found = found[["ttft_s", "ttft_s_mean", "slo_met", "devices", "status", "calibration_set"]]
    results.write(found, folder / "r.nc")
    results.write(found, folder / "r.zarr")
    return folder


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet", "d.parquet"])
def test_any_damage_to_a_table(whole, tmp_path, name):
    from evaluator.scenario import load_scenario

    rng = random.Random(name)
    for number in range(tried(60)):
        path = tmp_path / f"{number}{name}"
        path.write_bytes(damaged((whole / name).read_bytes(), rng, "parquet" not in name))
        if name.startswith("t"):
            text = REPLAY.replace("FILE", str(path))
        else:
            text = SCENARIO.replace("{deployment.replicas: [1, 2]}", f"{{table: {path}}}")
        (tmp_path / "s.yaml").write_text(text)
        try:
            load_scenario(tmp_path / "s.yaml")
        except InputError as error:
            assert len(str(error)) < 2000


def test_any_damage_to_a_result(whole, tmp_path):
    rng = random.Random(99)
    for number in range(tried(40)):
        path = tmp_path / f"{number}.nc"
        path.write_bytes(damaged((whole / "r.nc").read_bytes(), rng, False))
        try:
            results.read(path)
        except InputError as error:
            assert "not a readable result file" in str(error) or "written with schema" in str(error)


@pytest.mark.parametrize("name", ["ttft_s/zarr.json", "ttft_s/c/0/0", "status/c/0", "zarr.json"])
@pytest.mark.parametrize("how", ["gone", "empty", "noise", "brackets"])
@pytest.mark.filterwarnings("ignore")
def test_damage_to_a_store(whole, tmp_path, name, how):
    path = shutil.copytree(whole / "r.zarr", tmp_path / "a.zarr")
    file = path / name
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes({"empty": b"", "noise": os.urandom(64), "brackets": b"[" * 100_000}[how])
    try:
        results.read(path)
    except InputError as error:
        assert "not a readable result file" in str(error)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ds: ds.assign_attrs(objectives="{"), "its attribute objectives is damaged"),
        (lambda ds: ds.assign_attrs(objectives='[{"metric": "ttft"}]'), "its attribute objectives is damaged"),
        (lambda ds: ds.assign_attrs(coordinates_of="[1]"), "its attribute coordinates_of is damaged"),
        (lambda ds: ds.assign_attrs(grid="null"), "its attribute grid is damaged"),
        (lambda ds: ds.assign_attrs(search="NaN"), "its attribute search is damaged"),
        (lambda ds: ds.assign_attrs(search='{"rate_rps": null}'), "its attribute search is damaged"),  # of a sweep
        (lambda ds: ds.drop_vars("replicas"), "the swept coordinate replicas is missing"),
        (lambda ds: ds.assign(status=("config", np.ones(ds.sizes["config"]))), "status holds no texts"),
        (lambda ds: ds.assign(ttft_s_mean=ds["ttft_s_mean"].astype(str)), "ttft_s_mean holds no numbers"),
    ],
)
def test_a_result_that_is_not_one(whole, tmp_path, change, message):
    change(results.read(whole / "r.nc")).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    with pytest.raises(InputError, match=rf"a\.nc: not a readable result file \({message}\)"):
        results.read(tmp_path / "a.nc")


# --- surroundings


def program(*arguments, before="", cwd=None):
    """Exit code and stderr of a command in a process of its own, after some Python."""
    process = Forked(f"{before}\nfrom evaluator.cli import main; main()", arguments, cwd=cwd)
    _, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    return process.returncode, err


def started(*arguments, before="", cwd, **environment):
    """The same in a Python that starts for it: for what it does when it starts or ends."""
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\nfrom evaluator.cli import main; main()", *arguments],
        capture_output=True, encoding="utf-8", errors="replace", timeout=120, cwd=cwd, env={**os.environ, **environment}
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


SWEEP = ("sweep", "small.yaml", "--simulator", "token", "--top", "1")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "small.yaml").write_text(SCENARIO)
    return tmp_path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the sweep gives in a process of its own, which nothing is the matter with."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "small.yaml").write_text(SCENARIO)
    assert program(*SWEEP, "--out", "b.nc", cwd=folder)[0] == 0
    return results.read(folder / "b.nc")


def test_a_full_disk_costs_no_chunk_and_no_crash(folder):
    """A limit on the size of files stands for the disk: chunks fit, the result does not."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))"
    code, err = program(*SWEEP, "--out", "a.nc", before=limit, cwd=folder)
    assert code == 2
    assert "error: cannot write a.nc: File too large; all finished chunks are kept in a.chunks/" in err
    code, err = program(*SWEEP, "--out", "a.nc", cwd=folder)
    assert code == 0 and "going on with 2 configurations" in err
    assert sorted(path.name for path in folder.iterdir()) == ["a.nc", "small.yaml"]


def test_a_disk_too_full_for_chunks(folder):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))"
    code, err = program(*SWEEP, "--out", "a.nc", before=limit, cwd=folder)
    assert code == 2 and "chunk-000000.npz: File too large" in err
    assert not (folder / "a.nc").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_behind_stdout(folder):
    before = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
    code, err = started(*SWEEP, before=before, cwd=folder)
    assert code == 2 and err.splitlines()[-1].endswith("cannot write the output: No space left on device")


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"},
        {"PYTHONIOENCODING": "ascii", "LC_ALL": "de_DE.UTF-8", "LC_NUMERIC": "de_DE.UTF-8"},
    ],
)
def test_terminals_and_locales_of_others(folder, environment):
    code, err = started(*SWEEP, "--sensitivity", "--out", "größe.nc", cwd=folder, **environment)
    assert code == 0, err
    assert results.read(folder / "größe.nc").sizes["config"] == 2


def _commas():
    """A locale of this machine whose numbers have commas."""
    for name in ("de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "nl_NL.UTF-8"):
        try:
            locale.setlocale(locale.LC_NUMERIC, name)
        except locale.Error:
            continue
        locale.setlocale(locale.LC_NUMERIC, "C")
        return name
    return None


@pytest.mark.skipif(_commas() is None, reason="no locale with a decimal comma here")
def test_a_locale_with_a_decimal_comma(folder, undisturbed):
    """Python's own numbers do not follow the locale; those of C, with which HDF5 and Arrow are written, do."""
    before = f"import locale; locale.setlocale(locale.LC_ALL, {_commas()!r})"
    assert program(*SWEEP, "--out", "a.nc", before=before, cwd=folder)[0] == 0
    same(results.read(folder / "a.nc"), undisturbed)


def test_a_clock_that_jumps_changes_nothing(folder, undisturbed):
    jump = "import time, itertools; days = itertools.count(); time.time = lambda: 1e9 - 86400.0 * next(days)"
    assert program(*SWEEP, "--out", "a.nc", before=jump, cwd=folder)[0] == 0
    same(results.read(folder / "a.nc"), undisturbed)


def test_a_folder_that_cannot_be_written(folder):
    code, err = program(*SWEEP, "--out", "/proc/self/a.nc", cwd=folder)
    assert code == 2 and "error: --out /proc/self/a.nc: the folder cannot be written" in err
    code, err = program("gather", "/proc/self/a.zarr", cwd=folder)
    assert code == 2 and "error: cannot write /proc/self/.a.zarr.lock" in err
