"""A file of a load generator -> the runs in it, by its content and whatever its name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluator.errors import InputError
from evaluator.experiments.generators import (
    aiperf,
    guidellm,
    inference_perf,
    inferencex,
    mlperf,
    points,
    sglang_bench,
    vllm_bench,
)
from evaluator.experiments.generators.measured_run import MeasuredRun
from evaluator.yaml import read_text

LARGEST_BYTES = 512 * 2**20
"""GuideLLM keeps the texts of all answers: 10,000 requests are some 100 MB. A larger file is no result."""

# In this order: a result of SGLang has all keys by which one of vLLM is known.
_OBJECTS = (sglang_bench, vllm_bench, aiperf, guidellm, inference_perf, inferencex)
_TEXTS = (mlperf, points)
GENERATORS = tuple(reader.NAME for reader in (*_OBJECTS, *_TEXTS))


def is_result(path: str | Path) -> bool:
    """Whether a file looks like a generator's: JSON, LoadGen's summary, or a table of points.

    False of a table of requests, of any other text, and where there is no file.
    """
    try:
        with Path(path).open("rb") as file:
            # The beginning alone, and whatever bytes it has: such a file may have hundreds of MiB,
            # and this is asked of any.
            begin = file.read(65536).decode("utf-8-sig", errors="replace").lstrip()
    except (OSError, ValueError):
        return False
    if '"exp_id"' in begin:  # the specification of experiments, whose measurements are another file
        return False
    return begin.startswith(("{", "[")) or any(reader.recognised(begin) for reader in _TEXTS)


def read_all(paths: Sequence[str | Path]) -> list[MeasuredRun]:
    """The runs of several files, each labelled by its file, and by as many of its folders as tell it from the others.

    Errors: as of ``read_runs``; InputError for a file that is given twice, whose runs would count twice.
    """
    files = [Path(path) for path in paths]
    for number, file in enumerate(files):
        if file in files[:number]:
            raise InputError(f"{file}: is given twice; leave one of them out")
    return [run for file in files for run in read_runs(file, _label(file, files))]


def _label(file: Path, files: Sequence[Path]) -> str:
    # AIPerf and LoadGen call every run's file the same, in folders of their own; results would be taken for one run.
    for depth in range(1, len(file.parts) + 1):
        # The shortest end of the path that no other file has.
        label = Path(*file.parts[-depth:])
        if sum(label == Path(*other.parts[-depth:]) for other in files) == 1:
            break
    return str(label)


def read_runs(path: str | Path, label: str | None = None) -> list[MeasuredRun]:
    """The runs of a file, in its order, called ``label`` (by default its name).

    InputError, with the place, where it is none that is known or is damaged.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    if size > LARGEST_BYTES:
        raise InputError(f"{path}: has {size / 2**20:,.0f} MiB; a result has at most {LARGEST_BYTES // 2**20}")
    text = read_text(file)
    try:
        return _runs(text, label or file.name)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (TypeError, KeyError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        # A reader met a value of a kind that its generator never writes there.
        raise InputError(
            f"{path}: damaged, or of another version ({type(error).__name__}: {str(error)[:100]})"
        ) from None


def _runs(text: str, label: str) -> list[MeasuredRun]:
    begin = text.lstrip()[:1]
    if begin not in ("{", "["):
        reader = next((of_texts for of_texts in _TEXTS if of_texts.recognised(text[:65536])), None)
        if reader is None:
            raise InputError(_unknown("no JSON, no summary of LoadGen and no table of points"))
        return reader.read(text, label)
    objects = _objects(text)
    runs: list[MeasuredRun] = []
    for number, (line, content) in enumerate(objects, 1):
        generators = _OBJECTS if isinstance(content, Mapping) else ()
        generator = next((of_objects for of_objects in generators if of_objects.recognised(content)), None)
        where = f"{'record' if text.lstrip()[:1] == '[' else 'line'} {line}: " if len(objects) > 1 else ""
        if generator is None:
            raise InputError(where + _unknown(_shape(content)))
        try:
            runs += generator.read(content, label if len(objects) == 1 else f"{label} #{number}")
        except InputError as error:
            raise InputError(f"{where}as {generator.NAME} writes it: {error}") from None
    return runs


def _objects(text: str) -> list[tuple[int, Any]]:
    """The objects of a file with the lines that they begin on, or their numbers in a list: all of the file, or one a
    line."""
    try:
        # SGLang appends a line for each run to one file; a single object, pretty-printed or not, is tried first.
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        damage = error
    else:
        # InferenceX gathers its records in a list; no other generator writes one.
        records = isinstance(whole, list) and whole and all(isinstance(entry, Mapping) for entry in whole)
        return list(enumerate(whole, 1)) if records else [(1, whole)]
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    # The first line of a pretty-printed object is "{": then the whole file was one object, and its
    # own error tells where.
    if len(lines) < 2 or not lines[0][1].rstrip().endswith("}"):
        raise InputError(f"not JSON, or cut off (line {damage.lineno}: {damage.msg})") from None
    objects = []
    for number, line in lines:
        try:
            objects.append((number, json.loads(line)))
        except json.JSONDecodeError as error:
            raise InputError(f"line {number}: not JSON, or cut off ({error.msg})") from None
    return objects


def _shape(content: Any) -> str:
    if isinstance(content, Mapping) and {"metadata", "metrics"} <= set(content):
        return "a record of AIPerf's profile_export.jsonl; profile_export_aiperf.json beside it has the run"
    if isinstance(content, Mapping):
        return f"an object with {', '.join(str(key)[:40] for key in list(content)[:8]) or 'no keys'}"
    return f"a {type(content).__name__}"


def _unknown(content: str) -> str:
    return f"no result of {', '.join(GENERATORS)} is recognised; there is {content[:300]}"
