"""Fitting the GPUs of a set of experiments: values in common, one set per GPU, errors on experiments kept aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.calibrate.serving.fit import FitResult, fit_serving, renamed, runnable
from evaluator.calibrate.serving.parameters import adjusted, as_vllm
from evaluator.calibrate.serving.write import write_calibration
from evaluator.catalog import load_calibration
from evaluator.catalog.calibration import Calibration
from evaluator.catalog.engines import DEFAULT_ENGINE
from evaluator.catalog.served import with_host
from evaluator.catalog.transferred import joined_by, measured_devices, nearest_link, transferred
from evaluator.compare.report import headline
from evaluator.compare.run import compare_experiments
from evaluator.compare.servers import ANY_GPU, calibration_for
from evaluator.errors import InputError
from evaluator.experiments.experiment import Experiment
from evaluator.experiments.names import hardware_name, model_name

if TYPE_CHECKING:
    import pandas as pd

FOLDS = 4
PARTITIONS = ("fold", "layout", "model", "gpu")
"""What is kept aside at a time: every fourth experiment, all of a model in one tensor parallelism where there are
others of it on that GPU, all of a model, or all of a GPU."""
OWN, HOST_ALONE, TRANSFERRED = "own", "host", "transferred"
"""By which kernels a fit predicts what was kept aside: its GPU's own, changed as the fit says; its own as they were
measured, so that the fit tells the host's times alone; or the median of those of the other GPUs, likewise."""


@dataclass(frozen=True)
class Fitted:
    """A set, and the table of predictions of the experiments that it was fitted to (none: values of other GPUs)."""

    hardware: str
    base: Calibration
    calibration: Calibration
    result: FitResult
    seen: pd.DataFrame | None


def fit_all(experiments: Sequence[Experiment], base: str = "GPU-vllm", seeds: Sequence[int] = (0,)) -> list[Fitted]:
    """A set for each GPU with runs. Of runs on several GPUs also one for each GPU whose kernels alone are known
    (collectives included), and one for ``any``: what only one GPU has shown says nothing of the others.

    All GPUs share one vector of values, each under its own base set; those of a GPU with few runs are held near it.
    """
    ready, bases = runnable(experiments, base), _bases(experiments, base)
    if not ready:
        raise InputError("nothing to fit: no experiment has measurements and can run")
    shared = fit_serving(ready, bases)
    # Beside the vector that all GPUs share each gets its own where its runs tell one (`_own`).
    sets = [
        _named(hardware, bases[hardware], _own(shared, runs_of_gpu, bases), runs_of_gpu, seeds)
        for hardware, runs_of_gpu in by_gpu(ready).items()
    ]
    # Runs on one GPU made sets of all others once, which no run of theirs had any part in.
    if len(bases) > 1:
        for hardware in measured_devices(DEFAULT_ENGINE):
            if hardware not in bases:
                sets.append(_named(hardware, as_vllm(calibration_for(base, hardware)), shared, [], seeds))
        # A data sheet alone, fitted to the same runs, for devices of which not even kernels are known.
        sheet = as_vllm(load_calibration("datasheet", "any"))
        on_sheets = fit_serving(ready, dict.fromkeys(bases, sheet), start=shared.values)
        sets.append(_named("any", sheet, on_sheets, ready, seeds))
    # The release without its patch, as expected errors are by release: 0.15.1 is 0.15.
    releases = {".".join(experiment.engine_version.split(".")[:2]) for experiment in ready}
    # Of several releases no single one would be that of the errors.
    of_runs: dict[str, Any] = {"serving_runs": serving_runs(ready), "serving_release": min(releases)}
    if len(releases) > 1:
        of_runs["serving_release"] = None
    return [replace(fitted, calibration=replace(fitted.calibration, **of_runs)) for fitted in sets]


def serving_runs(experiments: Sequence[Experiment]) -> dict[str, dict[str, tuple[int, ...]]]:
    """The models of these experiments by their GPU, under the names of the catalog, and the ranks of their runs."""
    listed: dict[str, dict[str, tuple[int, ...]]] = {}
    for hardware, runs in by_gpu(experiments).items():
        layouts = sorted({(model_name(experiment.model), experiment.tensor_parallel) for experiment in runs})
        listed[hardware] = {model: tuple(ranks for name, ranks in layouts if name == model) for model in dict(layouts)}
    return listed


def held_out(
    experiments: Sequence[Experiment], partition: str = "fold", base: str = "GPU-vllm", seeds: Sequence[int] = (0,)
) -> pd.DataFrame:
    """Every experiment predicted by sets fitted without it, and without all that is kept aside with it.

    The column ``model_seen`` says whether a run of the same model on the same GPU was among those that were fitted.
    Raises InputError where nothing would be left to fit.
    """
    return held_out_by_kernels(experiments, partition, base, seeds, (OWN,))[OWN]


def held_out_by_kernels(
    experiments: Sequence[Experiment], partition: str, base: str, seeds: Sequence[int], kernels: Sequence[str]
) -> dict[str, pd.DataFrame]:
    """Held-out predictions by several ``kernels`` (OWN, HOST_ALONE, TRANSFERRED), of one fit each: name -> table."""
    import pandas as pd

    ready, bases = runnable(experiments, base), _bases(experiments, base)
    groups = parts(ready, partition)
    if len(groups) < 2:
        if partition == "layout":
            raise InputError("no model of the experiments ran in several layouts on one GPU: none can be kept aside")
        raise InputError(f"nothing is left to fit where one {partition} is kept aside: the experiments have no other")
    tables: dict[str, list[pd.DataFrame]] = {way: [] for way in kernels}
    # The first fit starts at the priors; what is kept aside afterwards changes little, so that later ones start there.
    start = None
    for aside in groups:
        remaining = [experiment for experiment in ready if experiment not in aside]
        shared = fit_serving(remaining, bases, start=start, evaluations=6 if start else 10)
        start = start or shared.values
        # What is left of the GPU that is judged: where it was kept aside as a whole, the shared vector alone predicts
        # it.
        near = by_gpu(remaining)
        for hardware, judged in by_gpu(aside).items():
            of_gpu = _own(shared, near.get(hardware, ()), bases)
            seen = {experiment.model for experiment in near.get(hardware, ())}
            for way in kernels:
                set_ = _predicting(way, hardware, bases[hardware], of_gpu)
                table = compare_experiments(judged, set_, seeds)
                tables[way].append(table.assign(model_seen=table["model"].isin(seen)))
    return {way: pd.concat(by_way, ignore_index=True) for way, by_way in tables.items()}


def _predicting(kernels: str, hardware: str, base: Calibration, fitted: FitResult) -> Calibration:
    """The set by which a fit predicts experiments that were kept aside."""
    if kernels == TRANSFERRED:
        others = [name for name in measured_devices(DEFAULT_ENGINE) if name != hardware]
        sets = [calibration_for("GPU-vllm", name) for name in others]
        # Without the GPU's own set and with the links of the devices that are joined as it is: what a user of a GPU
        # that nobody measured would get.
        base = as_vllm(transferred(sets, link=joined_by(nearest_link(hardware), others)))
    set_ = adjusted(base, fitted.values)
    set_ = set_ if kernels == OWN else with_host(base, set_)
    return renamed(set_, f"{hardware}-{ANY_GPU} of the others", hardware)


def _own(shared: FitResult, own: Sequence[Experiment], bases: Mapping[str, Calibration]) -> FitResult:
    """The values of one GPU, near those in common; these are its own where most of the experiments were on it."""
    if not own or 2 * len(own) > len(shared.experiments):
        return shared
    # A fit of its own with the common values as the prior: few runs move little.
    return fit_serving(own, bases, shared.values, shared.values)


def parts(experiments: Sequence[Experiment], partition: str) -> list[list[Experiment]]:
    """The experiments that are kept aside together; the folds deal them in order of model, ranks and name."""
    ordered = sorted(experiments, key=lambda experiment: (experiment.model, experiment.tensor_parallel, experiment.id))
    if partition == "fold":
        return [group for fold in range(FOLDS) if (group := ordered[fold::FOLDS])]
    kept_aside: dict[str, Callable[[Experiment], Hashable]] = {
        "layout": _layout,
        "model": lambda experiment: experiment.model,
        "gpu": lambda experiment: hardware_name(experiment.gpu),
    }
    groups: dict[Hashable, list[Experiment]] = {}
    for experiment in ordered:
        groups.setdefault(kept_aside[partition](experiment), []).append(experiment)
    if partition != "layout":
        return list(groups.values())
    # Of a model in one layout alone nothing would be left: that is what keeping aside the model tells.
    counts = Counter((gpu, model) for gpu, model, _ in {_layout(experiment) for experiment in experiments})
    return [runs for runs in groups.values() if counts[_layout(runs[0])[:2]] > 1]


def _layout(experiment: Experiment) -> tuple[str, str, int]:
    return hardware_name(experiment.gpu), experiment.model, experiment.tensor_parallel


def by_gpu(experiments: Sequence[Experiment]) -> dict[str, list[Experiment]]:
    """The experiments of each GPU, the GPU with the most first."""
    groups: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        groups.setdefault(hardware_name(experiment.gpu), []).append(experiment)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def _bases(experiments: Sequence[Experiment], base: str) -> dict[str, Calibration]:
    bases = {}
    for hardware in by_gpu(runnable(experiments, base)):
        bases[hardware] = as_vllm(calibration_for(base, hardware))
    return bases


def _named(
    hardware: str, base: Calibration, result: FitResult, own: Sequence[Experiment], seeds: Sequence[int]
) -> Fitted:
    name = ANY_GPU if hardware == "any" else f"{hardware}-{ANY_GPU}"
    set_ = renamed(adjusted(base, result.values), name, hardware)
    return Fitted(hardware, base, set_, result, compare_experiments(own, set_, seeds) if own else None)


def write_all(fitted: Sequence[Fitted], folder: Path) -> list[Path]:
    """Every set as ``folder``/NAME.yaml; returns the paths."""
    written = []
    for set_ in fitted:
        path = folder / f"{set_.calibration.name}.yaml"
        write_calibration(path, set_.calibration, set_.result, set_.base, header(set_))
        written.append(path)
    return written


def header(fitted: Fitted) -> str:
    """What the set was fitted on and its errors, for the head of its file."""
    count, base = len(fitted.result.experiments), fitted.base.name
    if fitted.seen is None:
        return (
            f"The set {base} with what `evaluator compare --fit` found in {count} serving experiments of vLLM\n"
            f"on other GPUs: nothing here has seen a serving run on this one."
        )
    here = fitted.seen["exp_id"].nunique()
    where = "all GPUs there were" if here == count and fitted.hardware == "any" else fitted.hardware
    others = f" and {count - here} on other GPUs" if count > here else ""
    return (
        f"Fitted by `evaluator compare --fit` to {here} serving experiments of vLLM on {where}{others}, starting from\n"
        f"the set {base}. Mean absolute errors (median) of the means as fitted, in %: {errors_text(fitted.seen)}.\n"
        f"`evaluator compare --held-out fold` says what they are without having seen an experiment."
    )


def errors_text(table: pd.DataFrame) -> str:
    """The judged metrics in a line: mean absolute error (median)."""
    means, medians = headline(table), headline(table, "median")
    parts = [f"{name.removesuffix('_mean').upper()} {value:.1f} ({medians[name]:.1f})" for name, value in means.items()]
    return ", ".join(parts) or "none"


def described(fitted: Fitted) -> str:
    """A set's parameters with their errors, and how well it predicts."""
    lines = [fitted.calibration.name, header(fitted)]
    shown: Mapping[str, float] = {} if fitted.seen is None else fitted.result.values
    for name, value in shown.items():
        share = 100 * fitted.result.prior_share[name]
        lines.append(f"  {name:22s} {value:10.4g} +- {100 * fitted.result.errors[name]:5.1f} %   prior {share:3.0f} %")
    return "\n".join(lines)
