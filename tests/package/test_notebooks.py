"""The notebooks among the scenarios, executed cell by cell in a kernel of their own."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(path.name for path in (ROOT / "scenarios").glob("*.ipynb"))


@pytest.fixture
def execute(monkeypatch, tmp_path):
    """Runs a notebook in an empty folder: its cells of code, with what each gave."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.delenv("MPLBACKEND")

    def run(name):
        notebook = nbformat.read(ROOT / "scenarios" / name, as_version=4)
        client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
        client.execute()
        return [cell for cell in notebook.cells if cell.cell_type == "code"]

    return run


def _of(cells, kind):
    return [output["data"][kind] for cell in cells for output in cell.outputs if kind in output.get("data", {})]


@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own packages
def test_a_notebook_runs_with_a_bar_tables_and_a_plot(execute, name):
    cells = execute(name)
    pages = _of(cells, "text/html")
    assert "<progress" in pages[0] and "configurations in" in pages[0]
    assert any("<table" in page for page in pages) and _of(cells, "image/png")


def test_there_are_two_notebooks_and_they_are_kept_without_outputs():
    assert len(NOTEBOOKS) == 2
    for name in NOTEBOOKS:
        assert '"outputs": []' in (ROOT / "scenarios" / name).read_text()
        assert '"output_type"' not in (ROOT / "scenarios" / name).read_text()
