"""The site is whole: every page has its place, the reference holds all that there is, and a fault ends the build."""

import re
import types
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.site import generated
from docs.site.__main__ import build, config, linked, pages, stage
from docs.site.generated import GENERATED, undocumented
from evaluator.cli.app import app
from evaluator.metrics.variables import VARIABLES
from evaluator.scenario.short_names import key_readers

ROOT = Path(__file__).resolve().parents[2]
NAV = list(pages(config()["nav"]))
WRITTEN = [
    path
    for folder in ("", "docs", "scenarios", "models", "calibration", "results")
    for path in (ROOT / folder).glob("*.md")
]


def test_every_page_has_one_place_in_the_navigation():
    assert len(NAV) == len(set(NAV))
    assert set(NAV) == {path.relative_to(ROOT).as_posix() for path in WRITTEN} | set(GENERATED)


def test_pages_bring_the_files_that_they_link_to(tmp_path, monkeypatch):
    monkeypatch.setattr("docs.site.__main__.GENERATED", dict.fromkeys(GENERATED, lambda: "# Nothing\n"))
    assert stage(tmp_path) == []
    for path in sorted(tmp_path.rglob("*.md")):
        for target in linked(path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.relative_to(tmp_path)}: {target}"
    monkeypatch.setattr("docs.site.__main__.linked", lambda text: ["nowhere.png"])
    assert f"{NAV[0]}: nowhere.png" in stage(tmp_path)
    gallery = {path.name for pattern in ("*.yaml", "*.ipynb", "*.png") for path in (ROOT / "scenarios").glob(pattern)}
    assert gallery <= {path.name for path in (tmp_path / "scenarios").iterdir()}


def test_every_command_is_in_the_reference():
    import typer

    page = generated.commands()
    root = typer.main.get_command(app)
    names = [name for name in root.commands if name != "catalog"]
    names += [f"catalog {name}" for name in root.commands["catalog"].commands]
    assert len(names) > 20
    for name in names:
        assert f"## evaluator {name}\n" in page
    assert "| `--simulator auto|iteration|request|token` |" in page  # with no sign that escapes


def test_every_key_and_every_link_between_sections_is_in_the_reference():
    page = generated.keys()
    anchors = re.findall(r"\{ #([^ ]+) \}", page)
    assert len(anchors) == len(set(anchors)) > 40
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= set(anchors)
    for path in key_readers():
        assert f"| `{path.rpartition('.')[2]}` |" in page or f"| `{path}` |" in page, path
    assert "| `rate_rps` | Mean rate of the arrivals, requests per second. | a quantity | required |" in page
    assert "| `find_warmup` |" in page and "| `true` |" in page


def test_every_variable_is_in_the_reference():
    page = generated.variables()
    for name in VARIABLES:
        pattern = re.sub(r".*(_model_error|_by_seed|_elasticity.*|_stderr)$", r"NAME\1", name)
        assert f"`{pattern.replace('NAME_elasticity_stderr', 'NAME_elasticity')}`" in page, name


def test_every_slice_of_the_errors_is_in_the_reference():
    page = generated.errors()
    rows = [
        row for path in (ROOT / "calibration/errors/slices").glob("*.csv") for row in path.read_text().splitlines()[2:]
    ]
    assert len(rows) > 100 and page.count("\n|") > len(rows)
    assert "| serving runs of this device and model | " in page and "nan" not in page


def test_every_public_name_has_a_docstring(monkeypatch):
    assert undocumented() == []
    module = types.ModuleType("evaluator.nothing_said")

    class Said:
        """Says what it is."""

        def method(self):
            pass

    module.Said, module.silent, module.__all__ = Said, lambda: None, ["Said", "silent"]
    monkeypatch.setitem(generated.PUBLIC, "evaluator.nothing_said", "")
    monkeypatch.setattr(generated.importlib, "import_module", {"evaluator.nothing_said": module}.get)
    monkeypatch.setattr(generated, "PUBLIC", {"evaluator.nothing_said": ""})
    monkeypatch.setattr(generated, "ACCESSOR", "evaluator.nothing_said.Said")
    assert undocumented()[:2] == ["evaluator.nothing_said.Said.method", "evaluator.nothing_said.silent"]


@pytest.mark.skipif(find_spec("zensical") is None, reason="needs the extra docs")
def test_the_site_is_built_and_a_broken_link_ends_the_build(tmp_path, capfd):
    stage(tmp_path / "pages")
    assert build(tmp_path) == 0
    assert "The designs that no other beats" in (tmp_path / "site/reference/python.html").read_text()
    for path in (tmp_path / "pages").rglob("*.md"):  # of the same navigation, and built in a part of the time
        path.write_text("# A page\n")
    (tmp_path / "pages/docs/start.md").write_text("# A page\n\n[there](nowhere.md) [here](accuracy.md#nothing)\n")
    capfd.readouterr()
    assert build(tmp_path) != 0
    said = "".join(capfd.readouterr())
    assert "page does not exist" in said and "anchor does not exist" in said
