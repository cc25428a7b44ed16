"""``make docs``: the site in build/site, of the pages in the repository and of those that are made here.

The pages are put together in a folder of their own, each at its path in the repository, so that links between them hold
on the site as they do in the repository. Any generator that reads mkdocs.yml can build that folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.site.generated import GENERATED, undocumented
from evaluator.yaml import loads_yaml

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
STAGE = ROOT / ".cache" / "site"
SITE = ROOT / "build" / "site"
# Of Markdown and of the HTML that GitHub shows in it; a target is cut at its anchor.
_TARGET = re.compile(r"\]\(([^)#\s]+)[^)]*\)|src=\"([^\"]+)\"")


def config() -> dict[str, Any]:
    """What mkdocs.yml says."""
    return loads_yaml((HERE / "mkdocs.yml").read_text(encoding="utf-8"), "mkdocs.yml")


def pages(nav: Any) -> Iterator[str]:
    """The paths of all pages in the navigation."""
    if isinstance(nav, str):
        yield nav
    for entry in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from pages(entry)


def stage(folder: Path) -> list[str]:
    """Put all pages into ``folder``, with every file of the repository that they show or link to.

    The links that lead nowhere: the generator looks at those to pages alone.
    """
    nav, broken = list(pages(config()["nav"])), []
    for page in nav:
        there = folder / page
        there.parent.mkdir(parents=True, exist_ok=True)
        if page in GENERATED:
            there.write_text(GENERATED[page](), encoding="utf-8")
            continue
        text = (ROOT / page).read_text(encoding="utf-8")
        there.write_text(text, encoding="utf-8")
        for target in linked(text):
            source = (ROOT / page).parent / target
            path = os.path.relpath(source.resolve(), ROOT)
            if not source.is_file() and path not in GENERATED:
                broken.append(f"{page}: {target}")
            elif path not in nav:
                copy = folder / path
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, copy)
    shutil.copy(HERE / "style.css", folder)
    return broken


def linked(text: str) -> Iterator[str]:
    """The files that a page links to, as they are written there."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return ("".join(target) for target in _TARGET.findall(text) if "://" not in "".join(target))


def build(folder: Path) -> int:
    """Make ``folder``/site of the pages in ``folder``; the exit code of the generator, whose warnings are errors."""
    shutil.copy(HERE / "mkdocs.yml", folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", folder / "mkdocs.yml"]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # The generator's picture of a faulty line has an escape sequence for each letter, also in a log and under NO_COLOR.
    print(re.sub(r"\x1b\[[0-9;]*m", "", done.stdout), end="", flush=True)
    return done.returncode


def main() -> int:
    """Build the site anew. Exit code 1: a page is missing, a link leads nowhere, a public name says nothing."""
    start = time.perf_counter()
    shutil.rmtree(STAGE, ignore_errors=True)
    faults = [f"a public name without a docstring: {name}" for name in undocumented()]
    faults += [f"a link that leads nowhere: {link}" for link in stage(STAGE / "pages")]
    if faults:
        print(*faults, sep="\n", file=sys.stderr)
        return 1
    staged = time.perf_counter()
    code = build(STAGE)
    if code:
        return code
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(STAGE / "site", SITE)
    seconds = time.perf_counter() - staged
    print(f"{SITE}: {staged - start:.1f} s for the pages, {seconds:.1f} s for the site; with its search:")
    print(f"{sys.executable} -m http.server --directory {SITE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
