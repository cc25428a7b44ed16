"""What must stay the same when the code is rewritten: recorded before and after, and compared.

``python -m tests.benchmarks.equality record FOLDER`` runs the cases of equality.yaml by the command line and the public
names of the package that is importable, and writes what each gives into FOLDER: a folder for each case, with
``said.txt`` (the commands, exit codes, stdout, stderr) and the files that were written. It goes on where it was
interrupted; a case whose folder is removed runs anew. ``... compare BEFORE AFTER`` tells every difference and leaves
with 1 where there is one. Run by its path, this file records another tree: ``PYTHONPATH=TREE python
.../equality.py record FOLDER``. All cases take some 700 s of processor time with compiled programs in the cache.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

if TYPE_CHECKING:
    import xarray as xr

CASES = Path(__file__).with_name("equality.yaml")
DATA = Path(os.environ.get("EVALUATOR_DATA", Path(__file__).resolve().parents[2].parent / "shared/data"))
TIMEOUT_S = 540
"""Of one command. A case that takes longer is recorded as one that did not end."""

SAID = "said.txt"

KEPT = (".nc", ".csv", ".yaml")
"""Suffixes of written files that are compared; what a page, a picture or a trace shows is in others."""

SHOWN = 6
"""Differing lines of a text that are shown."""

_SIMULATOR = "the engine is vLLM; what runs it is a simulator"

CHANGES: Sequence[tuple[str, str, str]] = (
    (r"\bengine(?= (iteration|request|token)s?\b)", "simulator", _SIMULATOR),
    (r"is not an engine; allowed: iter", "is not a simulator; allowed: auto, iter", _SIMULATOR),
    (r"\bengine(?= \(KEYWORD_ONLY, 'iteration')", "simulator", _SIMULATOR),
    (
        r"false without an objective or where not feasible",
        "false without an objective, where not feasible, and where saturated: a longer run would miss it",
        "a saturated design does not meet its objectives",
    ),
    (
        r"^(output_tok_per_s|goodput_rps) / devices(?=$|;)",
        r"\1 / devices, without the CPUs of stages",
        "per GPU is per GPU",
    ),
)
"""Texts that were changed on purpose: a regular expression of the text before, what stands there after (as ``re.sub``
has it), and the reason.

A text that differs only so is no difference; how many there are is told by their reasons. White space is not compared
then, since help is filled anew around a longer word.
"""

OPEN: Sequence[tuple[str, str]] = (
    (r"(; did you mean [^?]*\?)? \(there are: [^)]*\)", "the catalog has other entries"),
    (r"allowed here: .*", "a section has other keys"),
    (r" is not one of .*", "a key has other choices"),
    (r"(?m)^expected error .*(\n {18}\S.*)*", "expected errors are of other measured runs"),
)
"""Parts of texts that name what there is, or what was measured so far: they grow with every entry, key and run, so that
two commits that lie apart differ in them without a change of anything else. They are told by their reasons, too."""

ADDED = {"ranked_by": "a search keeps what it is ranked by", "stage_share": "tables of stages"}
"""Variables and attributes of a dataset that there were not before, and the reason."""

UNCOMPARED = ("created", "sweep_fingerprint")
"""Attributes of a dataset that tell when it was made, and by which sources."""

_PROGRESS = re.compile(r"^[\d,]+/[\d,]+ (?!of )|\d%\|")
"""A line on stderr that tells how far and how fast a run is, as ``Progress`` or tqdm write it; it is not recorded."""


@dataclass(frozen=True)
class Case:
    """Commands that are run one after the other in a folder of their own."""

    name: str
    lines: tuple[str, ...]

    @property
    def missing(self) -> str:
        """The first file of measurements that the commands name and that is not there; empty where none is missing."""
        named = [Path(word.format(data=DATA)) for line in self.lines for word in line.split() if "{data}" in word]
        return next((str(path) for path in named if not path.exists()), "")


def cases() -> list[Case]:
    """All cases of equality.yaml, those that take longest first."""
    given = yaml.safe_load(CASES.read_text())
    named: dict[str, str | Sequence[str]] = {}
    for section in ("datasets", "commands"):
        named |= {f"{section}/{name}": lines for name, lines in given[section].items()}
    named |= {f"estimates/{name}": f"estimate {options}" for name, options in given["estimates"].items()}
    configs = sorted(DATA.glob("hf_configs/*.json"))
    named |= {f"imports/{path.stem}": f"catalog import {{data}}/hf_configs/{path.name}" for path in configs}
    for place, setting in enumerate(given["settings"]):
        key = re.split("[=:]", setting)[0]
        named[f"settings/{place:02d}-{key}"] = shlex.join(["sweep", "one.yaml", "--set", setting])
    named |= {f"calls/{name}": line for name, line in given["calls"].items()}
    named |= {f"help/{command.replace(' ', '-') or 'evaluator'}": f"{command} --help" for command in given["help"]}
    return [Case(name, (lines,) if isinstance(lines, str) else tuple(lines)) for name, lines in named.items()]


class Recorder:
    """Runs cases with the importable package, and keeps in ``folder`` what they give."""

    def __init__(self, folder: Path) -> None:
        found = importlib.util.find_spec("evaluator")
        if found is None or found.origin is None:
            raise SystemExit("there is no package evaluator to import; PYTHONPATH names the folder of its tree")
        self.folder, self.tree = folder, Path(found.origin).resolve().parents[1]
        self.files: Mapping[str, str] = yaml.safe_load(CASES.read_text())["files"]
        # A fixed width, since tables and help are cut to that of the terminal.
        self.environment = os.environ | {"PYTHONPATH": str(self.tree), "COLUMNS": "120", "NO_COLOR": "1"}
        help_of_sweep = self._run(["sweep", "--help"], folder.parent).stdout
        self.simulator = "--simulator" if "--simulator" in help_of_sweep else "--engine"
        # Trees that leave short runs to the reference are asked for what the others take without being asked.
        self.vectorised = ["--simulator", "iteration"] if "auto|iteration" in help_of_sweep else []

    def record(self, case: Case) -> str:
        """Run a case and keep what it gives; one line about it."""
        target = self.folder / case.name
        if target.exists():  # by another process, since this one looked
            return f"{case.name:<44}is there by now"
        start = time.perf_counter()
        target.parent.mkdir(parents=True, exist_ok=True)
        # The folder takes its name when all is in it, so that one with this name is whole.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".part-") as part:
            kept = Path(part) / "kept"
            kept.mkdir()
            with tempfile.TemporaryDirectory() as place:
                for name, text in self.files.items():
                    (Path(place) / name).write_text(text)
                said = [self._said(line, Path(place)) for line in case.lines]
                for path in sorted(Path(place).rglob("*")):
                    if path.name.startswith("result") and path.suffix in KEPT and path.is_file():
                        shutil.copy(path, kept / path.name)
            (kept / SAID).write_text("\n".join(said))
            kept.rename(target)
        codes = " ".join(re.findall(r"^exit code (.*)$", "\n".join(said), re.MULTILINE))
        return f"{case.name:<44}{time.perf_counter() - start:7.1f} s   exit code {codes}"

    def _said(self, line: str, place: Path) -> str:
        words = [word.replace("{data}", str(DATA)) for word in shlex.split(line)]
        if words[:1] and words[0] in ("sweep", "simulate") and not {"--simulator", "--help"} & set(words):
            words += self.vectorised
        try:
            ran = self._run([self.simulator if word == "--simulator" else word for word in words], place)
            code, out, err = str(ran.returncode), ran.stdout, ran.stderr
        except subprocess.TimeoutExpired:
            code, out, err = f"none: it did not end within {TIMEOUT_S} s", "", ""
        err = "\n".join(text for text in err.splitlines() if not _PROGRESS.search(text))
        text = f"$ {line}\nexit code {code}\n--- stdout\n{out.rstrip()}\n--- stderr\n{err}\n"
        for path, name in ((place, "HERE"), (DATA, "DATA"), (self.tree, "TREE")):
            text = text.replace(str(path.resolve()), name).replace(str(path), name)
        return text

    def _run(self, words: Sequence[str], place: Path) -> subprocess.CompletedProcess[str]:
        start = [sys.executable] if words[:1] == ["python"] else [sys.executable, "-m", "evaluator"]
        arguments = [*start, *(words[1:] if words[:1] == ["python"] else words)]
        return subprocess.run(
            arguments, cwd=place, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )


def record(folder: Path, only: str, jobs: int) -> None:
    """Record the cases whose names match ``only`` and that are not there yet, ``jobs`` at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(folder.resolve())
    wanted = [case for case in cases() if re.search(only, case.name)]
    left = [case for case in wanted if not (folder / case.name).exists()]
    print(f"{recorder.tree}: {len(wanted)} cases, {len(wanted) - len(left)} of them there already", flush=True)
    for case in left:
        if case.missing:
            print(f"{case.name:<44}skipped: there is no {case.missing}", flush=True)
    ready = [case for case in left if not case.missing]
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(recorder.record, case): case for case in ready}
        for done, future in enumerate(as_completed(running), 1):
            error = future.exception()
            told = f"{running[future].name:<44}not recorded: {error}" if error else future.result()
            print(f"{done:4d}/{len(ready)} {told}", flush=True)


Difference = tuple[str, str]
"""What differs, and the reason where it was intended (else empty)."""


def differences(before: Path, after: Path) -> Iterator[Difference]:
    """Every difference between two recordings."""
    # Files of the cases: whatever else lies beside their folders is the user's.
    files = {path.relative_to(root) for root in (before, after) for path in root.glob("*/[!.]*/*")}
    for root, other in ((before, after), (after, before)):
        alone = sorted(str(name.parent) for name in files if name.name == SAID and not (other / name.parent).exists())
        if alone:
            listed = ", ".join(alone[:SHOWN]) + (", ..." if len(alone) > SHOWN else "")
            yield f"{len(alone)} cases are only in {root}: {listed}", ""
    for name in (name for name in sorted(files) if all((root / name.parent).exists() for root in (before, after))):
        old, new = before / name, after / name
        if not (old.exists() and new.exists()):
            found: Iterator[Difference] = iter([(f"is only in {before if old.exists() else after}", "")])
        elif name.suffix == ".nc":
            found = _datasets_differ(old, new)
        else:
            found = _texts_differ("", old.read_text(), new.read_text())
        yield from ((f"{name}: {text}", reason) for text, reason in found)
        if name.suffix == ".csv" and old.exists() and new.exists():
            yield from ((f"{name}: {text}", "") for text in _tables_differ(old, new))


def _datasets_differ(before: Path, after: Path) -> Iterator[Difference]:
    import xarray as xr

    # Undecoded, so that what is compared is what stands in the file.
    old, new = (xr.load_dataset(path, engine="h5netcdf", decode_cf=False) for path in (before, after))
    yield from _attributes_differ("", old.attrs, new.attrs)
    for name in sorted(map(str, {*old.variables, *new.variables})):
        if name not in old.variables or name not in new.variables:
            is_new = name in new.variables
            yield f"{name}: only {'after' if is_new else 'before'}", ADDED.get(name, "") if is_new else ""
            continue
        yield from _variables_differ(name, old.variables[name], new.variables[name])
        yield from _attributes_differ(f"{name}: ", old[name].attrs, new[name].attrs)
        if (name in old.coords) != (name in new.coords):
            yield f"{name}: is a coordinate only {'before' if name in old.coords else 'after'}", ""


def _attributes_differ(where: str, old: Mapping[Any, Any], new: Mapping[Any, Any]) -> Iterator[Difference]:
    for name in sorted({*old, *new} - set(UNCOMPARED)):
        if name in ADDED and name not in old:
            yield f"{where}attribute {name}: only after", ADDED[name]
        elif not np.array_equal(old.get(name, ""), new.get(name, ""), equal_nan=_is_number(old.get(name))):
            yield from _texts_differ(f"{where}attribute {name}: ", str(old.get(name)), str(new.get(name)))


def _is_number(value: object) -> bool:
    return np.asarray(value).dtype.kind in "fc"


def _variables_differ(name: str, old: xr.Variable, new: xr.Variable) -> Iterator[Difference]:
    both_texts = old.dtype.kind in "UO" and new.dtype.kind in "UO"  # whose width follows from the longest one
    if (old.dims, old.shape) != (new.dims, new.shape) or not (both_texts or old.dtype == new.dtype):
        yield f"{name}: {old.dims} {old.shape} {old.dtype} was, {new.dims} {new.shape} {new.dtype} is", ""
    elif old.dtype.kind in "fiu":
        text = _numbers_differ(old.values, new.values)
        if text:
            yield f"{name}: {text}", ""
    elif not (same := old.values == new.values).all():
        place = np.argwhere(~same)[0]
        where = f"{name}: {np.count_nonzero(~same)} of {same.size} differ, first at {place.tolist()}: "
        yield from _texts_differ(where, str(old.values[tuple(place)]), str(new.values[tuple(place)]))


def _numbers_differ(old: np.ndarray, new: np.ndarray) -> str:
    """How many numbers are not the same to the last bit, and by how much; empty where all are. NaN is NaN."""
    old, new = old.astype(float), new.astype(float)
    apart = ~((old == new) | (np.isnan(old) & np.isnan(new)))
    if not apart.any():
        return ""
    both = apart & np.isfinite(old) & np.isfinite(new)
    absolute = np.abs(new - old)[both]
    relative = absolute / np.maximum(np.abs(old), np.abs(new))[both]
    size = f"by {absolute.max():.3g} at most, relatively {relative.max():.3g}" if both.any() else "none finite in both"
    lost = np.count_nonzero(apart & ~both)
    return f"{np.count_nonzero(apart)} of {apart.size} differ, {size}" + (
        f"; {lost} not finite in both" if lost else ""
    )


def _tables_differ(before: Path, after: Path) -> Iterator[str]:
    """What differs in the columns of numbers of two tables that differ as texts."""
    import pandas as pd

    old, new = pd.read_csv(before), pd.read_csv(after)
    if list(old) != list(new) or len(old) != len(new):
        yield f"{len(old)} rows of {list(old)} were, {len(new)} rows of {list(new)} are"
        return
    for name in old.select_dtypes("number"):
        if pd.api.types.is_numeric_dtype(new[name]) and (
            text := _numbers_differ(*(t[name].to_numpy() for t in (old, new)))
        ):
            yield f"column {name}: {text}"


def _texts_differ(where: str, old: str, new: str) -> Iterator[Difference]:
    if old == new:
        return
    reasons, changed = {}, old
    for pattern, text, reason in CHANGES:
        changed, count = re.subn(pattern, text, changed)
        reasons |= {reason: count} if count else {}
    for pattern, reason in OPEN:
        parts, others = ([part.group() for part in re.finditer(pattern, text)] for text in (changed, new))
        # A part that only one of the two has is no other list, but one that came or went.
        if len(parts) == len(others):
            reasons |= {reason: len(parts)} if parts != others else {}
            changed, new = (re.sub(pattern, "", text) for text in (changed, new))
    if reasons and changed.split() == new.split():
        yield where + "a text", "; ".join(reasons)
    else:
        yield where + _first_lines(changed, new), ""


def _first_lines(old: str, new: str) -> str:
    """How many lines two texts do not have in common, and the first of them."""
    marked = list(unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""))[2:]  # without the files' names
    apart = [line for line in marked if not line.startswith("@@")]
    return f"{len(apart)} lines differ" + "".join(f"\n    {line[0]} {line[1:]}" for line in apart[:SHOWN])


def compare(before: Path, after: Path) -> int:
    """Print all differences; the exit code."""
    for folder in (before, after):
        if not folder.is_dir():
            raise SystemExit(f"{folder}: there is no such folder")
    count, intended = 0, Counter[str]()
    for text, reason in differences(before, after):
        if reason:
            intended[reason] += 1
        else:
            count += 1
            print(text, flush=True)
    cases = len({path.parent.relative_to(root) for root in (before, after) for path in root.rglob(SAID)})
    print(f"{cases} cases: {count} differences")
    for reason, times in intended.items():
        print(f"{times} differ as intended: {reason}")
    return 1 if count else 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.equality", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run all cases and keep what they give")
    recording.add_argument("folder", type=Path, metavar="FOLDER")
    recording.add_argument(
        "--only", default="", metavar="REGEX", help="cases whose names match, such as '^(help|calls)/'"
    )
    recording.add_argument("--jobs", type=int, default=2, metavar="N", help="cases at a time (2)")
    comparing = commands.add_parser("compare", help="tell every difference of two recordings")
    comparing.add_argument("before", type=Path, metavar="BEFORE")
    comparing.add_argument("after", type=Path, metavar="AFTER")
    chosen = parser.parse_args()
    if chosen.command == "record":
        record(chosen.folder, chosen.only, chosen.jobs)
    else:
        sys.exit(compare(chosen.before, chosen.after))


if __name__ == "__main__":
    main()
