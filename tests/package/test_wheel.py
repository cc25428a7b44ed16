"""The wheel carries the data and works from any directory."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import evaluator
from evaluator.scenario.python_types import python_types

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import evaluator, evaluator.catalog as catalog, sys
from pathlib import Path
assert Path(evaluator.__file__).is_relative_to(sys.argv[1]), evaluator.__file__
assert catalog.load_model("llama-3.1-70b").hidden == 8192
assert catalog.load_hardware("h100-sxm").memory_bytes > 7e10
assert catalog.load_lengths("azure-conv-2023")
assert catalog.load_calibration("datasheet", "h100-sxm")
from evaluator.cli.options import read_scenario
assert read_scenario("quickstart", ()).sweep
"""


def pip(*arguments, cwd):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if find_spec("hatchling") is None:
        pytest.skip("the build backend hatchling is not installed (it is in the dev extra)")
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("evaluator-*.whl")
    return path


def test_the_wheel_holds_all_data_files_and_nothing_else_of_the_repository(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"evaluator/data/{path.relative_to(ROOT).as_posix()}"
        for kind in ("models", "calibration", "scenarios")
        for path in (ROOT / kind).rglob("*.yaml")
    }
    page = {path.relative_to(ROOT).as_posix() for path in (ROOT / "evaluator/report/page/files").iterdir()}
    assert len(wanted) > 40 and len(page) > 10
    wanted |= page
    assert wanted <= held
    assert {name.split("/")[0] for name in held} == {"evaluator", f"evaluator-{evaluator.__version__}.dist-info"}
    assert "evaluator/py.typed" in held


def test_the_wheel_has_the_types_of_the_keys(wheel):
    assert zipfile.ZipFile(wheel).read("evaluator/typed.pyi").decode() == python_types()


def test_an_installation_for_development_writes_the_types_of_the_keys_into_the_checkout(tmp_path):
    pytest.importorskip("hatchling")
    for name in ("evaluator", "models", "calibration"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "typed.pyi"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    program = "from hatchling.build import build_editable; build_editable('.')"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "evaluator" / "typed.pyi").read_text() == python_types()


def test_the_installed_wheel_finds_its_data_from_any_directory(wheel, tmp_path):
    target, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip("install", "--no-deps", "--no-index", "--no-compile", "--target", target, wheel, cwd=elsewhere)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    environment.pop("EVALUATOR_PATH", None)
    command = [sys.executable, "-c", PROGRAM, str(target)]
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_public_names_are_there_and_cost_nothing_to_import():
    program = "import sys, evaluator; print([n for n in ('jax', 'numpy', 'yaml', 'typer') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    for name in evaluator.__all__:
        assert getattr(evaluator, name) is not None
        # else importing the module would put it in the place of the function
        assert find_spec(f"evaluator.{name}") is None, f"a module has the name of the public function {name}"
    with pytest.raises(AttributeError, match="module 'evaluator' has no attribute 'optimise'"):
        evaluator.optimise  # noqa: B018
