"""What was found of a user's server: as text, and as the YAML of its set."""

from __future__ import annotations

from dataclasses import replace

from evaluator.calibrate.serving.fit import FitResult
from evaluator.calibrate.serving.own import OwnFit, summary
from evaluator.calibrate.serving.write import calibration_text
from evaluator.units import counted

_POOR = 4.0
"""Times the noise of replicates from which on the runs are rather of another server than the scenario says."""


def set_text(fitted: OwnFit) -> str:
    """The set's YAML."""
    fitted_here = [parameter for parameter in fitted.parameters if not parameter.held]
    result = FitResult(
        {parameter.name: parameter.value for parameter in fitted_here},
        {parameter.name: parameter.error for parameter in fitted_here},
        {parameter.name: parameter.prior_share for parameter in fitted_here},
    )
    # With the set, so that a reader of it years later knows which figures the runs told and which are priors.
    fit = {
        "method": "Gauss-Newton of log ratios through the simulation, soft L1; log-normal priors around the base set",
        "base": fitted.base.name,
        "loads": list(fitted.loads),
        "residuals_over_noise": fitted.spread,
        "told_directions": fitted.told_directions,
        "parameters": {
            parameter.name: {
                "base": parameter.base,
                "value": parameter.value,
                "standard_error": parameter.error,
                "prior_share": parameter.prior_share,
            }
            for parameter in fitted_here
        },
        "held_at_prior": [parameter.name for parameter in fitted.parameters if parameter.held],
        "not_told_apart": [[first, second, correlation] for first, second, correlation in fitted.alike],
        "errors": [vars(row) for row in summary(fitted.figures)],
    }
    header = (
        f"Written by `evaluator calibrate --serving`: the set {fitted.base.name} fitted to\n"
        f"{counted(len(fitted.own.runs), 'run')} of one server at {counted(len(fitted.loads), 'load')}. The section "
        "`fit` says how\nwell, `own_server` of which server, and how far off predictions of it are expected to be."
    )
    return calibration_text(replace(fitted.calibration, fit=fit), result, fitted.begin, header, "your server's runs")


def described(fitted: OwnFit) -> str:
    """The report: parameters, what the runs leave open, and the errors of loads that were left out."""
    runs, loads = len(fitted.own.runs), len(fitted.loads)
    free = [parameter for parameter in fitted.parameters if not parameter.held]
    held = [parameter.name for parameter in fitted.parameters if parameter.held]
    lines = [
        f"{counted(runs, 'run')} at {counted(loads, 'load')} ({'; '.join(fitted.loads)}), "
        f"{len(fitted.figures)} figures; base set {fitted.base.name}; {fitted.simulations:,} simulations",
        "",
        "parameter                    base     fitted    +- %  prior %",
    ]
    for parameter in free:
        share = f"{100 * parameter.error:7.1f} {100 * parameter.prior_share:8.0f}"
        lines.append(
            f"{parameter.name:22s} {parameter.base:10.4g} {parameter.value:10.4g} {share}   {parameter.meaning}"
        )
    if not free:
        lines.append("(none: the runs say nothing of any)")
    lines += [
        "",
        f"the runs tell {counted(fitted.told_directions, 'combination')} of {len(fitted.parameters)} parameters",
    ]
    if held:
        lines.append(f"held at the base set, as the runs say next to nothing of them: {', '.join(held)}")
    lines += [
        f"not told apart (correlation {correlation:+.2f}): {first} and {second}; each with its prior"
        for first, second, correlation in fitted.alike
    ]
    lines += ["", f"leave one load out, {counted(runs, 'point')}: mean absolute errors in %"]
    lines.append("metric                 points   base set    fitted  left out")
    for row in summary(fitted.figures):
        errors = "".join(f"{error:10.1f}" for error in (row.base_pct, row.fitted_pct, row.held_out_pct))
        lines.append(f"{row.metric:22s} {row.points:6d} {errors}")
    lines += ["", _expected(fitted), *_warnings(fitted)]
    return "\n".join(lines)


def _expected(fitted: OwnFit) -> str:
    names = {"ttft": "TTFT", "itl": "TPOT", "e2e": "E2E"}
    errors = ", ".join(f"{names[name]} +- {100 * error:.1f} %" for name, error in fitted.own.errors)
    # Concurrency and not rate: of open and closed loops it is the one measure of load that both have.
    loads = [run.concurrency for run in fitted.own.runs]
    return (
        f"expected errors of this server: {errors or 'not known'}; at {min(loads):.3g} to {max(loads):.3g} requests "
        "at a time and lengths as measured, growing with the distance beyond"
    )


def _warnings(fitted: OwnFit) -> list[str]:
    lines = []
    if len(fitted.loads) == 2:
        lines.append(
            "note: each fit without a load has seen one other alone; a third load tells more than any other run"
        )
    # A wrong unit or layout cannot be mended by priors: the fit then ends far off, and its set would only look
    # calibrated.
    if fitted.spread > _POOR:
        lines.append(
            f"note: the residuals are {fitted.spread:.0f} times what replicates differ by: no times of a host explain "
            "these runs; look whether the scenario says their layout, precision, limits and lengths, and "
            "the file its times in the units that it names"
        )
    worse = [row.metric for row in summary(fitted.figures) if row.held_out_pct > row.base_pct]
    if worse:
        lines.append(f"note: loads left out were predicted no better than by the base set: {', '.join(worse)}")
    return lines
