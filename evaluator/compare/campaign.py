"""Fitting every GPU of a set of experiments: one pooled set, one per GPU, and errors on experiments kept aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from evaluator.catalog import load_calibration
from evaluator.catalog.calibration import Calibration
from evaluator.compare.experiments import Experiment
from evaluator.compare.fit import FitResult, cross_validate, fit_serving, renamed, runnable
from evaluator.compare.names import hardware_name
from evaluator.compare.report import headline
from evaluator.compare.run import compare_experiments
from evaluator.compare.servers import ANY_GPU, calibration_for
from evaluator.compare.traffic import output_shares
from evaluator.compare.write import write_calibration

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Fitted:
    """A set with its table of predictions of experiments that it has seen, and of those that it has not."""

    hardware: str
    base: Calibration
    result: FitResult
    seen: pd.DataFrame
    unseen: pd.DataFrame


def fit_all(experiments: Sequence[Experiment], base: str = "datasheet", seeds: Sequence[int] = (0,)) -> list[Fitted]:
    """A set for each GPU with runs, and one of all GPUs together for those without; ``hardware`` of that one is any.

    GPUs of few runs are held near the pooled values by the priors. Unseen are, for a GPU, the experiments of the folds
    kept aside, and for the pooled set each GPU predicted from the others.
    """
    shares = output_shares(experiments)
    ready = runnable(experiments, base)
    by_gpu: dict[str, list[Experiment]] = {}
    for each in ready:
        by_gpu.setdefault(hardware_name(each.gpu), []).append(each)
    start: dict[str, float] = {}
    found = []
    for hardware, own in sorted(by_gpu.items(), key=lambda item: -len(item[1])):
        found.append(_one(hardware, own, calibration_for(base, hardware), start, seeds, shares))
        start = start or dict(found[0].result.values)
    if len(by_gpu) > 1:
        found.append(_pooled(by_gpu, start, seeds, shares))
    return found


def _one(
    hardware: str,
    own: Sequence[Experiment],
    base: Calibration,
    centre: Mapping[str, float],
    seeds: Sequence[int],
    shares: Mapping[str, float],
) -> Fitted:
    fitted = fit_serving(own, base, centre, centre, shares)
    named = replace(fitted, calibration=renamed(fitted.calibration, f"{hardware}-{ANY_GPU}", hardware))
    held = cross_validate(own, base, centre, fitted.values, shares)
    return Fitted(
        hardware, base, named, compare_experiments(own, named.calibration, seeds, shares),
        _joined([compare_experiments([one], held[one.id].calibration, seeds, shares) for one in own if one.id in held]),
    )  # fmt: skip


def _pooled(
    by_gpu: Mapping[str, list[Experiment]],
    start: Mapping[str, float],
    seeds: Sequence[int],
    shares: Mapping[str, float],
) -> Fitted:
    """The set for any GPU rests on the data sheet alone: no GPU's kernels go into it."""
    base = load_calibration("datasheet", "any")
    everyone = [each for own in by_gpu.values() for each in own]
    fitted = fit_serving(everyone, base, start=start, shares=shares)
    named = replace(fitted, calibration=renamed(fitted.calibration, ANY_GPU, "any"))
    tables = []
    for hardware, own in by_gpu.items():
        others = [each for name, group in by_gpu.items() if name != hardware for each in group]
        from_others = fit_serving(others, base, start=start, shares=shares, evaluations=8)
        tables.append(compare_experiments(own, from_others.calibration, seeds, shares))
    return Fitted("any", base, named, compare_experiments(everyone, named.calibration, seeds, shares), _joined(tables))


def _joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def write_all(fitted: Sequence[Fitted], folder: Path) -> list[Path]:
    """Every set as ``folder``/NAME.yaml; returns the paths."""
    written = []
    for each in fitted:
        path = folder / f"{each.result.calibration.name}.yaml"
        write_calibration(path, each.result, each.base, header(each))
        written.append(path)
    return written


def header(fitted: Fitted) -> str:
    """What the set was fitted on and its errors, for the head of its file."""
    experiments = len(fitted.result.experiments)
    where = "all GPUs there were" if fitted.hardware == "any" else fitted.hardware
    lines = [
        f"Fitted by `evaluator compare --fit` to {experiments} serving experiments of vLLM on {where},",
        f"starting from the set {fitted.base.name}. Mean absolute errors (median) of the means, in %:",
        f"  as fitted: {errors_text(fitted.seen)}",
        *_unseen_lines(fitted),
    ]
    return "\n".join(lines)


def _unseen_lines(fitted: Fitted) -> list[str]:
    """Of a GPU one line; of the set for any one for each GPU, predicted from the others."""
    if not len(fitted.unseen):
        return ["  one experiment only: none kept aside"]
    if fitted.hardware != "any":
        return [f"  on experiments kept aside: {errors_text(fitted.unseen)}"]
    return [
        f"  {hardware}, predicted from the others: {errors_text(table)}"
        for hardware, table in fitted.unseen.groupby("hardware", sort=False)
    ]


def errors_text(table: pd.DataFrame) -> str:
    """The judged metrics in a line: mean absolute error (median)."""
    if not len(table):
        return "none"
    means, medians = headline(table), headline(table, "median")
    parts = [f"{name.removesuffix('_mean').upper()} {value:.1f} ({medians[name]:.1f})" for name, value in means.items()]
    return ", ".join(parts) or "none"


def told(fitted: Fitted) -> str:
    """A set's parameters with their errors, and how well it predicts."""
    lines = [header(fitted)]
    for name, value in fitted.result.values.items():
        share = 100 * fitted.result.prior_share[name]
        lines.append(f"  {name:22s} {value:10.4g} +- {100 * fitted.result.errors[name]:5.1f} %   prior {share:3.0f} %")
    return "\n".join(lines)
