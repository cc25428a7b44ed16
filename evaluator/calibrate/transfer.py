"""The set of a device that nobody measured, from those of others (``evaluator.catalog.transferred``), and its errors.

The error to expect is that of leaving each measured device out in turn and predicting it from the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from evaluator.calibrate.devices import PROCESSORS, UNKNOWN
from evaluator.calibrate.errors import LONG_S, statistics
from evaluator.calibrate.run import judge
from evaluator.calibrate.selection import select
from evaluator.calibrate.serving.write import document_of
from evaluator.calibrate.table import Table, read_table
from evaluator.catalog import Calibration, load_calibration, load_hardware
from evaluator.catalog.calibration import MEASURED_MAKER, TRANSFERRED
from evaluator.catalog.choice import is_like_measured
from evaluator.catalog.engines import DEFAULT_ENGINE, serving_engine
from evaluator.catalog.fields import Fields
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.store import find, has, names
from evaluator.catalog.transferred import joined_by, measured_devices, nearest_link, nearest_measured, transferred
from evaluator.cost.rates import rates
from evaluator.errors import InputError
from evaluator.yaml import load_yaml

KERNELS = "kernels"
"""The table of errors of transferred sets by class, in the folder of the tables of errors."""
_STATISTICS = ("median", "p90")
_COMMAND = "evaluator calibrate DATA... --transfer --errors FILE.yaml"


def leave_one_out(
    tables: Sequence[Table], sets: Mapping[str, Calibration], engine: str = DEFAULT_ENGINE
) -> pd.DataFrame:
    """Errors of each hardware (the keys of ``sets``) predicted from the sets of the others; kernels above 20 us.

    They are predicted as those of a device that nobody measured: what devices send one another by devices joined alike.
    """
    lines = []
    for left_out in sets:
        others = {name: set_ for name, set_ in sets.items() if name != left_out}
        lines.append(_judged_by_others(tables, left_out, others, engine))
    return pd.concat(lines, ignore_index=True)


def by_relatives(tables: Sequence[Table], engine: str = DEFAULT_ENGINE) -> pd.DataFrame:
    """Errors of the devices with relatives, each predicted from the nearest device of its architecture alone."""
    lines = []
    devices = set(pd.concat([table.rows["hardware"] for table in tables]))
    for left_out in sorted(devices & set(names("hardware"))):
        nearest = nearest_measured(load_hardware(left_out), engine)
        if nearest:
            others = {nearest: load_calibration(f"{nearest}-{engine}", nearest)}
            lines.append(_judged_by_others(tables, left_out, others, engine))
    return pd.concat(lines, ignore_index=True) if lines else pd.DataFrame(columns=["hardware", "class", *_STATISTICS])


def _judged_by_others(
    tables: Sequence[Table], left_out: str, others: Mapping[str, Calibration], engine: str
) -> pd.DataFrame:
    # As for a device without sets: what its kernels do is from all others, what it sends from those joined alike.
    guess = transferred(list(others.values()), link=joined_by(nearest_link(left_out), list(others)))
    device, lines = load_hardware(left_out), []
    parts, _ = select(tables, left_out, PROCESSORS.get(left_out, UNKNOWN), engine)
    for part in parts:
        judged = judge(part, rates(device, guess), device)
        # As the errors that are stated of a fit: of shorter kernels most is the launch.
        judged = judged[judged["time_s"] >= LONG_S]
        if len(judged):
            lines.append({"hardware": left_out, "class": part.label} | statistics(judged))
    return pd.DataFrame(lines)


def class_errors(paths: Sequence[Path], engine: str) -> dict[str, Any]:
    """The errors of transferred sets by class, as the document of a table, from measurements of kernels of an engine.

    Of each class and statistic the median over the devices left out in turn, and each device's own. InputError where
    fewer than three devices have sets, or no row is of one that has.
    """
    sets = {name: load_calibration(f"{name}-{engine}", name) for name in measured_devices(engine)}
    if len(sets) < 3:
        raise InputError(f"--transfer: {len(sets)} devices have kernels of {engine}; to leave one out takes three")
    tables = [read_table(path) for path in paths]
    lines, near = leave_one_out(tables, sets, engine), by_relatives(tables, engine)
    if lines.empty:
        raise InputError(f"--transfer: the tables have no kernels of {', '.join(sets)}")
    classes = {}
    for name, rows in lines.groupby("class"):
        figures: dict[str, Any] = {statistic: round(float(rows[statistic].median()), 4) for statistic in _STATISTICS}
        figures["devices"] = _by_device(rows)
        if (alike := near[near["class"] == name]).size:
            figures["relatives"] = _by_device(alike)
        classes[str(name)] = figures
    return {
        "derived": datetime.now(UTC).date().isoformat(),
        "command": _COMMAND,
        "source": ", ".join(path.name for path in paths),
        "engine": engine,
        "classes": classes,
    }


def _by_device(rows: pd.DataFrame) -> dict[str, list[float]]:
    return {row.hardware: [float(getattr(row, name)) for name in _STATISTICS] for row in rows.itertuples()}


def written(table: Mapping[str, Any]) -> str:
    """The table of errors by class as YAML text."""
    head = (
        "# Errors of kernels above 20 us where a device is predicted by the median of the sets of the others: median\n"
        "# and 90th percentile of the absolute relative errors; of a class the median over the devices left out.\n"
        "# `relatives`: predicted from the nearest device of its architecture alone.\n"
    )
    return head + yaml.safe_dump(dict(table), sort_keys=False, default_flow_style=None, width=118)


def known_errors(engine: str = DEFAULT_ENGINE) -> dict[str, Any]:
    """The errors by class that the catalog holds, where they are of this engine's kernels; else none.

    ``{class: {median, p90, devices: {name: [median, p90]}}}``. InputError where the file is no such table.
    """
    if not has("errors", KERNELS):
        return {}
    path = find("errors", KERNELS)
    given = Fields(load_yaml(path), path.name)
    for text in ("derived", "command", "source"):
        given.text(text)
    of, listed = given.text("engine"), given.inner("classes")
    given.finish()
    return {name: _class_errors(listed.inner(name)) for name in listed.values} if of == engine else {}


def _class_errors(given: Fields) -> dict[str, Any]:
    figures: dict[str, Any] = {number: given.number(number) for number in _STATISTICS}
    listed = {"devices": given.inner("devices"), "relatives": given.inner("relatives", {})}
    given.finish()
    for devices in listed.values():
        for name, pair in devices.values.items():
            if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(number, float) for number in pair):
                raise InputError(f"{devices.place(str(name))}: expected [median, 90th percentile], got {pair!r}")
    return figures | {kind: dict(devices.values) for kind, devices in listed.items()}


def transferred_set(hardware: Hardware, name: str, engine: str, classes: Mapping[str, Any]) -> Calibration:
    """The set of a device from those of the others, with what errors of ``classes`` let expect of its kernels."""
    base = load_calibration(TRANSFERRED, hardware, engine=engine)
    expected = {
        op_class: {statistic: figures[statistic] for statistic in _STATISTICS} for op_class, figures in classes.items()
    }
    fit = {"method": base.sources["gemm"], "errors_of_devices_left_out": expected} if expected else {}
    return replace(base, name=name, fit=fit)


def set_text(calibration: Calibration) -> str:
    """A transferred set as YAML text."""
    head = (
        f"# Written by `evaluator calibrate --transfer`: the median of the sets of other devices. Nothing here was\n"
        f"# measured on {calibration.hardware}; `fit` says how far such a set was off for devices that were.\n"
    )
    document = document_of(calibration) | {"sources": dict(calibration.sources)}
    return head + yaml.safe_dump(document, sort_keys=False, width=118, allow_unicode=True)


def described(classes: Mapping[str, Any], engine: str, device: Hardware | None = None) -> str:
    """The errors by class in a table, with the device that was predicted worst, and of which kernels they are.

    ``device``: the one that a set was made for, of which they tell less where its maker was not measured.
    """
    label = serving_engine(engine).label
    if not classes:
        return f"of {label} the errors of such sets are not known; `{_COMMAND} --engine {engine}` measures them"
    lines = [f"kernels of {label} above 20 us, of devices left out in turn: absolute errors of their times"]
    lines.append(f"{'class':20s} {'median':>8s} {'p90':>8s}   worst device left out")
    for name, figures in classes.items():
        worst, (median, _) = max(figures["devices"].items(), key=lambda item: item[1][0])
        lines.append(f"{name:20s} {figures['median']:8.1%} {figures['p90']:8.1%}   {worst} {median:.1%}")
    if device is not None and not is_like_measured(device):
        lines.append(f"{device.name} is no GPU of {MEASURED_MAKER}, as all of these are: expect more")
    return "\n".join(lines)
