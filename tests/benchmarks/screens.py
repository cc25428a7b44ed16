"""Pictures of what people look at: the page of a result in a browser, and the plot that a notebook ends with."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.timing import ROOT

SECTIONS = ("#answer", "#designs", "#front", "#curves")  # of the page, row by row
WIDTH, HEIGHT, GAP = 750, 480, 9


def draw_page(path: Path) -> None:
    """Four parts of the quickstart's page in a headless browser, two rows. Errors: RuntimeError without a browser."""
    from PIL import Image

    from tests.report.page.browser import Browser, find

    program = find()
    if program is None:
        raise RuntimeError("no Chromium or Chrome is installed (Debian: apt install chromium)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for command in (
            ("sweep", "quickstart", "--top", "0", "--out", "quickstart.nc"),
            ("report", "quickstart.nc", "--out", "page.html"),
        ):
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            subprocess.run([sys.executable, "-m", "evaluator", *command], cwd=folder, env=environment, check=True)
        whole = Image.new("RGB", (2 * WIDTH + GAP, 2 * HEIGHT + GAP), "#c8cccf")
        browser = Browser(program, folder / "profile")
        try:
            browser.open(folder / "page.html", WIDTH, HEIGHT)
            for place, section in enumerate(SECTIONS):
                browser.show(section)
                shot = Image.open(browser.picture(folder / "part.png"))
                whole.paste(shot, (place % 2 * (WIDTH + GAP), place // 2 * (HEIGHT + GAP)))
        finally:
            browser.close()
        whole.save(path)


def draw_notebook(path: Path) -> None:
    """The last plot of the notebook among the scenarios that has the picture's name, from a run of all its cells."""
    import nbclient
    import nbformat

    notebook = nbformat.read(ROOT / "scenarios" / f"{path.stem}.ipynb", as_version=4)
    plots = os.environ.pop("MPLBACKEND", None)
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        with tempfile.TemporaryDirectory() as folder:
            nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}}).execute()
    finally:
        if plots is not None:
            os.environ["MPLBACKEND"] = plots
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    images = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    path.write_bytes(base64.b64decode(images[-1]))
