"""``evaluator compare``: predictions against measured serving results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from evaluator.cli.failures import GATE
from evaluator.cli.options import PICTURE_SUFFIXES, PlotOption, QuietOption, SetOption, check_output, read_scenario
from evaluator.cli.output import fail, tell
from evaluator.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.calibrate.serving.campaign import Fitted
    from evaluator.scenario.scenario import Scenario

TABLE_SUFFIXES = (".csv",)


FilesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="SPECS.json ACTUALS.csv | RESULT... | REQUESTS.csv",
        help="Experiments and what was "
        "measured of them; results of load generators (vllm bench serve, SGLang, AIPerf, GenAI-Perf, "
        "GuideLLM, inference-perf, InferenceX, MLPerf) and CSVs of points, known by their content; "
        "or, with --scenario, the requests of one run.",
    ),
]
ScenarioOption = Annotated[
    str | None, typer.Option(metavar="SCENARIO", help="The deployment that served REQUESTS.csv, or RESULT.")
]
CalibrationOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="A calibration set (with --fit and --held-out: to start from); GPU in its "
        "name stands for the GPU's own. auto: the best there is for each GPU.",
    ),
]
RowsFileOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Save prediction, measurement and error, row by row (.csv).")
]
PageOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE.html", help="Write picture, errors and every figure as a page for a browser."),
]
FailAboveOption = Annotated[
    float | None,
    typer.Option(
        metavar="PCT",
        min=0.0,
        help="Leave with exit code 3 if the mean absolute error of the mean TTFT, "
        "ITL, TPOT or E2E is larger, in percent.",
    ),
]
SeedsOption = Annotated[int, typer.Option(min=1, max=100, help="Random arrivals per experiment.")]
FitOption = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Fit calibration sets to the experiments, and write them here."),
]
HeldOutOption = Annotated[
    str | None,
    typer.Option(
        metavar="fold|layout|model|gpu",
        help="Compare every experiment with a set fitted without it: "
        "without every fourth experiment, without any of its model in its tensor parallelism (of models "
        "that ran in several), without any of its model, or without any of its GPU.",
    ),
]
ErrorsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Put the errors into this table of expected errors (.yaml), as those of the "
        "case that --held-out and --calibration make; see calibration/expected-errors.md.",
    ),
]


def compare(
    files: FilesArgument,
    scenario: ScenarioOption = None,
    calibration: CalibrationOption = "auto",
    out: RowsFileOption = None,
    plot: PlotOption = None,
    page: PageOption = None,
    fail_above: FailAboveOption = None,
    seeds: SeedsOption = 3,
    fit: FitOption = None,
    held_out: HeldOutOption = None,
    errors: ErrorsOption = None,
    changes: SetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare predictions with measured serving results: error by metric, model, GPU and load."""
    check_output(out, "--out", TABLE_SUFFIXES)
    check_output(errors, "--errors", (".yaml",))
    check_output(plot, "--plot", PICTURE_SUFFIXES)
    check_output(page, "--page", (".html", ".htm"))
    for file in files:
        if not file.is_file():
            raise InputError(f"there is no file {file}")
    # Three inputs share one command: results of generators, which their content tells; the requests of one run, with
    # a scenario; else specifications and their measurements, by their number.
    if _are_results(files, scenario, changes):
        if fit is not None or held_out is not None or errors is not None:
            raise InputError("results of load generators are compared: without --fit, --held-out and --errors")
        compared = _results(files, scenario, calibration, changes)
    elif scenario is not None:
        if len(files) != 1 or fit is not None or held_out is not None:
            raise InputError("with --scenario, compare takes one file of requests and neither --fit nor --held-out")
        compared = _requests(files[0], scenario, calibration, changes, errors)
    else:
        if len(files) != 2 or changes:
            raise InputError(
                "compare takes SPECS.json ACTUALS.csv, or results of load generators with --scenario SCENARIO or --set "
                "deployment.hardware=NAME, or REQUESTS.csv --scenario SCENARIO [--set ...]"
            )
        measured = _Errors(errors, held_out, calibration, files)
        compared = _experiments(files[0], files[1], calibration, seeds, fit, held_out, quiet, measured)
    _write(compared, out, plot, page, quiet)
    table = compared.table
    if "status" in table and table["status"].str.startswith("cannot run").all():
        raise InputError(f"{files[0]}: no experiment could run")
    # Last: a gate that fails must not cost the table, the picture and the page, by which one finds out why.
    _gate(compared.means, fail_above)


class _Compared(NamedTuple):
    """What came of a comparison, whatever was compared."""

    table: pd.DataFrame  # as --out has it
    means: dict[str, float]  # absolute errors of means in percent by metric, for the gate
    report: str
    drawn: pd.DataFrame  # a row per run and metric, for the picture and the page


def _write(compared: _Compared, out: Path | None, plot: Path | None, page: Path | None, quiet: bool) -> None:
    """The table, the picture and the page of a comparison, where they are asked for."""
    if out is not None:
        from evaluator.results import write_requests

        write_requests(compared.table, out)
        if not quiet:
            typer.echo(f"wrote {len(compared.table):,} rows to {out}", err=True)
    if plot is None and page is None:
        return
    from evaluator.report.page.comparison import write_comparison
    from evaluator.report.picture.comparison import plot_comparison

    written = [] if plot is None else [plot_comparison(compared.drawn, plot)]
    written += [] if page is None else [write_comparison(compared.drawn, compared.report, page)]
    for path in () if quiet else written:
        typer.echo(f"wrote {path}", err=True)


def _are_results(files: list[Path], scenario: str | None, changes: list[str] | None) -> bool:
    """Whether these are results of load generators, and not SPECS.json ACTUALS.csv or a table of requests."""
    from evaluator.experiments.generators import is_result

    # Two files without a scenario are the older form, whose first one (JSON, too) could pass for a result.
    specs_and_actuals = scenario is None and not changes and len(files) == 2 and not is_result(files[1])
    return not specs_and_actuals and any(is_result(file) for file in files)


def _results(files: list[Path], scenario: str | None, calibration: str, changes: list[str] | None) -> _Compared:
    from evaluator.compare.results import SHOWN, compare_results, described
    from evaluator.experiments.generators import read_all

    runs = read_all(files)
    overrides = list(changes or ())
    # Read once without the set, whose name may ask for the scenario's device, and once more with it: an
    # override is checked where the scenario is read.
    loaded = None if scenario is None else read_scenario(scenario, overrides)
    if calibration != "auto":
        # GPU stands for the device of the scenario, as it stands for that of each experiment where there are several.
        if "GPU" in calibration and loaded is not None:
            calibration = calibration.replace("GPU", str(loaded.deployment.hardware))
        overrides.append(f"deployment.calibration={calibration}")
        loaded = None if scenario is None else read_scenario(scenario, overrides)
    table = compare_results(runs, loaded, overrides)
    report = described(table)
    tell(report, comparison=table)
    # The gate is on means: percentiles of a short run scatter by more than any model is off.
    judged = table[table["metric"].isin([name for name in SHOWN if name.endswith("_mean")])]
    means = judged["error_pct"].abs().groupby(judged["metric"], sort=False).mean().to_dict()
    return _Compared(table, means, report, table)


def _experiments(
    specs: Path,
    actuals: Path,
    calibration: str,
    seeds: int,
    fit: Path | None,
    held_out: str | None,
    quiet: bool,
    errors: _Errors,
) -> _Compared:
    from evaluator import compare
    from evaluator.experiments import read_experiments

    # Before the experiments are read, which takes seconds: a word that is none should be told at once.
    if held_out is not None:
        _check_partition(held_out)
    experiments = read_experiments(specs, actuals)
    if not quiet:
        typer.echo(f"{len(experiments)} experiments, {seeds} seeds each", err=True)
    # A fit starts from the sets of kernels. The best there are would have seen the very runs that are to be fitted.
    base = "GPU-vllm" if calibration == "auto" else calibration
    fitted = [] if fit is None else _fit(experiments, base, seeds, fit, quiet)
    if held_out is not None:
        from evaluator.calibrate.serving import held_out_by_kernels

        # One fit for each part that is kept aside, whatever the kernels: fits are what takes time here.
        tables = held_out_by_kernels(experiments, held_out, base, range(seeds), errors.kernels)
        typer.echo(f"Predicted by sets fitted without them ({held_out} by {held_out}):")
    else:
        tables = {"own": compare.compare_experiments(experiments, calibration, range(seeds))}
    table = tables["own"] if held_out is not None else _with_seen(tables["own"], fitted)
    report = compare.described(table)
    tell(report, comparison=table)
    errors.write(tables, quiet)
    return _Compared(table, compare.headline(table), report, table)


def _with_seen(table: pd.DataFrame, fitted: list[Fitted]) -> pd.DataFrame:
    """A comparison with the rows of sets that were fitted to its own runs in the place of those of before the fit."""
    seen = [fit.seen for fit in fitted if fit.seen is not None and fit.hardware != "any"]
    if not seen:
        return table
    import pandas as pd

    from evaluator import compare

    before, after = compare.headline(table), pd.concat(seen, ignore_index=True)
    # Both errors are told, lest the second pass for a prediction.
    errors = ", ".join(f"{name} {value:.1f} %" for name, value in before.items())
    typer.echo(f"With the fitted sets, which have seen these runs; mean absolute errors before the fit: {errors}")
    return pd.concat([after, table[~table["exp_id"].isin(after["exp_id"])]], ignore_index=True)


class _Errors:
    """The table of expected errors at ``path`` (None: nothing is written), and the cases that a comparison tells of."""

    def __init__(self, path: Path | None, held_out: str | None, calibration: str, files: list[Path]) -> None:
        self.path, self.source, self.cases = path, ", ".join(file.name for file in files), []
        if path is not None:
            from evaluator.accuracy.cases import CASES, cases_of

            # The case follows from what the prediction rests on, which for held-out runs is a fit from the
            # sets of kernels.
            base = "GPU-vllm" if calibration == "auto" and held_out is not None else calibration
            self.cases = [(case, CASES[case].kernels) for case in cases_of(held_out, base)]

    @property
    def kernels(self) -> list[str]:
        """By which kernels the cases want experiments kept aside to be predicted, their own first."""
        return ["own", *(kernels for _, kernels in self.cases if kernels != "own")]

    def write(self, tables: dict[str, pd.DataFrame], quiet: bool) -> None:
        """Put the errors of these comparisons, by their kernels, into the table."""
        if self.path is None:
            return
        from evaluator.compare.expected import errors_of, write_errors

        for case, kernels in self.cases:
            rows = errors_of(case, tables[kernels], self.source)
            write_errors(self.path, rows)
            if not quiet:
                typer.echo(f"wrote {len(rows)} errors of the case {case} to {self.path}", err=True)


def _check_partition(held_out: str) -> None:
    from evaluator.calibrate.serving import PARTITIONS

    if held_out not in PARTITIONS:
        raise InputError(f"--held-out: {held_out!r} is none of {', '.join(PARTITIONS)}")


def _fit(experiments: list, base: str, seeds: int, folder: Path, quiet: bool) -> list[Fitted]:
    from evaluator.calibrate.serving import described, fit_all, write_all

    sets = fit_all(experiments, base, range(seeds))
    for fitted, path in zip(sets, write_all(sets, folder), strict=True):
        typer.echo(described(fitted) + "\n")
        if not quiet:
            typer.echo(f"wrote {path}", err=True)
    return sets


def _requests(
    requests: Path, scenario: str, calibration: str, changes: list[str] | None, errors: Path | None
) -> _Compared:
    from evaluator.compare import compare_requests
    from evaluator.compare.expected import case_of, errors_of_requests, write_errors
    from evaluator.compare.requests import as_run

    loaded = read_scenario(scenario, changes)
    if calibration != "auto":
        named = calibration.replace("GPU", str(loaded.deployment.hardware))
        loaded = read_scenario(scenario, [*(changes or ()), f"deployment.calibration={named}"])
    # Before the run: a deployment that no case describes is refused without waiting for it.
    case = None if errors is None else case_of(loaded.deployment)
    table, statistics = compare_requests(requests, loaded)
    failed = table.attrs.get("failed", 0)
    left_out = f" ({failed} more failed, and are left out)" if failed else ""
    means = statistics[statistics["statistic"] == "mean"]
    judged = means[means["expected_error_pct"].notna()]
    # The expected error is a band of one standard deviation: 68 % of a normal distribution.
    within = int((judged["error_pct"].abs() <= judged["expected_error_pct"]).sum())
    report = (
        f"{len(table)} requests{left_out}{_sent(loaded)}, calibration {loaded.deployment.calibration}\n"
        + statistics.to_string(index=False, float_format=lambda value: f"{value:.4g}", na_rep="-")
        + (f"\nwithin the expected error: {within} of {len(judged)} means; 68 % should be" if len(judged) else "")
    )
    tell(report, comparison=statistics, requests=len(table), left_out=failed)
    if errors is not None and case is not None:
        write_errors(errors, errors_of_requests(case, statistics, requests.name, loaded.name, loaded.deployment))
    # Means alone, as for results of load generators (`_results`).
    gated = {row.metric: abs(row.error_pct) for row in means.itertuples()}
    return _Compared(table, gated, report, as_run(statistics, requests.name, loaded))


def _sent(scenario: Scenario) -> str:
    """Who sends the requests of a comparison: the users of a closed loop, or the clock of the measured run."""
    arrivals = scenario.workload.arrivals
    # Told with the result: a closed loop's requests come when our answers come, so that an error there
    # shifts all that follow.
    if arrivals.process == "closed_loop":
        return f" of {arrivals.users:,} users, each sent when an answer has come"
    if scenario.workload.feedback:
        return " at the times of the measured run, whatever answers the sessions wait for"
    return ""


def _gate(errors: dict[str, float], limit: float | None) -> None:
    """Leaves with exit code 3 where an error is above the limit, or where there was nothing to compare."""
    if limit is None:
        return
    # ``not <=`` and not ``>``: an error that is NaN must not pass the gate.
    above = {name: value for name, value in errors.items() if not value <= limit}
    if above or not errors:
        listed = ", ".join(f"{name} {value:.1f} %" for name, value in above.items()) or "nothing could be compared"
        fail("gate", f"above {limit:g} %: {listed}")
        raise typer.Exit(GATE)
