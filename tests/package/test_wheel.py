"""The wheel carries the data and works from any directory."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import evaluator
from evaluator import version
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
    if find_spec("hatchling") is None or find_spec("hatch_vcs") is None:
        pytest.skip("the build backend hatchling, or hatch-vcs, is not installed (they are in the dev extra)")
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
    built = zipfile.ZipFile(wheel).read("evaluator/version.txt").decode().strip()
    assert wheel.name.startswith(f"evaluator-{built}-")
    assert {name.split("/")[0] for name in held} == {"evaluator", f"evaluator-{built}.dist-info"}
    assert {"evaluator/py.typed", f"evaluator-{built}.dist-info/licenses/LICENSE"} <= held


def test_the_wheel_is_ready_for_an_index(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = archive.read(name).decode()
    for line in ("License-Expression: Apache-2.0", "License-File: LICENSE", "Description-Content-Type: text/markdown"):
        assert f"\n{line}\n" in metadata
    assert "Requires-Python: >=3.11" in metadata and "Classifier: Typing :: Typed" in metadata
    assert (ROOT / "README.md").read_text(encoding="utf-8").strip() in metadata


def test_sources_without_a_build_and_builds_without_git_have_one_version():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["tool"]["hatch"]["version"]["fallback-version"] == version.OF_SOURCES
    assert re.fullmatch(r"\d+\.\d+\.\d+\.dev0", version.OF_SOURCES)
    written = ROOT / "evaluator" / "version.txt"
    assert evaluator.__version__ == (written.read_text().strip() if written.exists() else version.OF_SOURCES)


def test_the_wheel_has_the_types_of_the_keys(wheel):
    assert zipfile.ZipFile(wheel).read("evaluator/typed.pyi").decode() == python_types()


def test_an_installation_for_development_writes_the_types_of_the_keys_into_the_checkout(tmp_path):
    pytest.importorskip("hatchling")
    pytest.importorskip("hatch_vcs")
    for name in ("evaluator", "models", "calibration"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "typed.pyi", "version.txt")
        )
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    program = "from hatchling.build import build_editable; build_editable('.')"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "evaluator" / "typed.pyi").read_text() == python_types()
    assert (tmp_path / "evaluator" / "version.txt").read_text() == f"{version.OF_SOURCES}\n"  # there is no git


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
