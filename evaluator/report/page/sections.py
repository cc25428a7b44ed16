"""The sections of a page that need no script, as HTML. Every text of the dataset passes ``escaped``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.metrics.reasons import Reason, reasons_of
from evaluator.report.accuracy import expected_errors
from evaluator.report.axes import ShownAxis
from evaluator.report.page import words
from evaluator.report.page.columns import Measure
from evaluator.report.page.data import CANNOT_RUN, MEETS, MISSES, RUNS, SATURATED, bounds_of, states
from evaluator.report.places import how_sure
from evaluator.report.ranking import too_short
from evaluator.results.texts import distinct
from evaluator.units import counted

if TYPE_CHECKING:
    import xarray as xr

    from evaluator.plan import Configuration

_OVERLOADED = "a lower arrival rate, more replicas or faster devices"
# What helps where an objective is missed, by its metric.
_MISSED = {
    "ttft": "less waiting and a faster prefill: more replicas, more FLOP/s per replica, whole prompts before decodes",
    "tpot": "faster decode steps: more memory bandwidth or tensor parallelism, smaller batches or chunks",
    "itl": "steps without long prompts in them: smaller chunks, or prefill and decode apart",
    "e2e": "fewer requests per replica, faster devices, or shorter outputs",
    "queue_wait": "more replicas, or more KV cache and sequences per replica",
}


def escaped(text: object) -> str:
    """A text as it is put into HTML, in elements and in attributes."""
    return escape(str(text), quote=True)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], kind: str = "") -> str:
    """A table of texts; a cell that is a number stands on the right."""
    head = "".join(f"<th scope='col'>{escaped(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f"<div class='scroll'><table class='{kind}'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"<td class='number'>{value:,}</td>"
    # Shares come as texts with their unit, and are numbers to the eye.
    if str(value).endswith(" %"):
        return f"<td class='number'>{escaped(value)}</td>"
    return f"<td>{escaped(value)}</td>"


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """Terms and what is said of each."""
    return f"<dl>{''.join(f'<dt>{escaped(term)}</dt><dd>{escaped(meaning)}</dd>' for term, meaning in pairs)}</dl>"


def paragraph(text: str, kind: str = "") -> str:
    """One paragraph of plain text."""
    return f"<p class='{kind}'>{escaped(text)}</p>" if text else ""


def question(ds: xr.Dataset, axes: Sequence[ShownAxis], rule: str) -> str:
    """What is swept, under which workload and objectives, and by what rule designs are ranked."""
    scenario = ds.attrs.get("scenario", "")
    count = ds.sizes["config"]
    pairs = [(f"swept: {name}", values) for name, values in words.swept(ds, axes)]
    if same := words.held(ds):
        pairs.append(("in all designs", same))
    pairs += words.asked(ds)
    paths = {str(ds[name].attrs.get("description", "")).removeprefix("swept: ") for name in ds.coords}
    if "search" in ds.attrs:
        # The rate in the file is where the search started, and is no condition of its answer.
        paths.add("workload.arrivals.rate_rps")
    pairs += words.sections_of(scenario, paths)
    pairs.append(("objectives", words.objectives(ds) or "none"))
    pairs.append(("ranked by", rule))
    lead = words.own_words(scenario) or f"Which of {counted(count, 'design')} serves this workload best?"
    return paragraph(lead, "lead") + definitions(pairs)


def answer(
    ds: xr.Dataset,
    axes: Sequence[ShownAxis],
    row: int,
    measures: Sequence[Measure],
    configuration: Configuration | None = None,
) -> str:
    """The best design in sentences, or that none can run, and how many designs became what.

    ``configuration`` is the plan of the best design, where it is known.
    """
    if ds["status"].values[row] != OK:
        best = paragraph(f"None of the {ds.sizes['config']:,} designs can run. Below is why, and what to do.", "lead")
    else:
        first, *more = words.answer(ds, axes, row, measures)
        best = paragraph(first, "lead") + paragraph(" ".join(more)) + paragraph(words.chances(ds, row))
        pairs = [("to launch", words.launch(ds, row, configuration))] if configuration is not None else []
        error, *doubts = expected_errors(ds, np.array([row])) or [""]
        pairs += [tuple(error.split(": ", 1))] if error else []  # type: ignore[list-item]
        best += definitions(pairs) if pairs else ""
        doubts = [doubt.replace("all wait", "it waits") for doubt in doubts]  # of the one design
        best += "".join(paragraph(f"{doubt[:1].upper()}{doubt[1:]}.", "caution") for doubt in doubts)
        best += "".join(paragraph(caution, "caution") for caution in words.cautions(ds, axes, row, measures))
        best += paragraph(
            "± is one Monte-Carlo standard error, where one is known, and tells of chance alone. Chances that "
            "objectives hold tell of the model's error and of chance together.",
            "note",
        )
    return best + _tallies(ds)


def _tallies(ds: xr.Dataset) -> str:
    """How many designs became what, as a bar in proportion with its legend."""
    state_of = states(ds)
    counts = [(word, int((state_of == word).sum())) for word in (MEETS, RUNS, MISSES, SATURATED, CANNOT_RUN)]
    some = [(word, count) for word, count in counts if count]
    bar = "".join(f"<i class='{_kind(word)}' style='flex:{count}'></i>" for word, count in some)
    legend = "".join(
        f"<li><i class='{_kind(word)}'></i><b>{count:,}</b> {_PLURAL.get(word, word)}</li>" for word, count in some
    )
    return f"<div class='tally' aria-hidden='true'>{bar}</div><ul class='tally-legend'>{legend}</ul>"


_PLURAL = {MEETS: "meet the objectives", RUNS: "run", MISSES: "miss objectives"}


def _kind(word: str) -> str:
    return f"state-{word.split()[0]}"


def breaks(ds: xr.Dataset, measures: Sequence[Measure]) -> str:
    """Designs that cannot run, that are saturated and that miss objectives: how many, why, and what to do."""
    total = ds.sizes["config"]
    rows: list[tuple[object, ...]] = [_reason_row(reason, total) for reason in reasons_of(ds["status"].values)]
    state_of = states(ds)
    if "search_status" in ds:  # which tells of saturated designs and of runs that are too short, too
        rows += _searched(ds, state_of)
    else:
        if count := int((state_of == SATURATED).sum()):
            rows.append((count, _share(count, total), "saturated: the queue grows without bound", _OVERLOADED))
        rows += _misses(ds, measures, state_of == MISSES)
        if count := int(too_short(ds).sum()):
            rows.append(
                (count, _share(count, total), "not steady: the run is too short for its statistics", words.LONGER)
            )
    if not rows:
        return paragraph("Every design runs, and meets the objectives where there are any.")
    return table(("designs", "share", "why", "what to do"), rows, "wide")


def _reason_row(reason: Reason, total: int) -> tuple[object, ...]:
    count = reason.count
    # Messages of memory plans have semicolons of their own before the remedy, so the word is looked for.
    why, _, remedy = reason.example.partition("; remedy: ")
    return count, _share(count, total), f"cannot run: {why}", remedy or reason.remedy or "as it says"


def _searched(ds: xr.Dataset, state_of: np.ndarray) -> list[tuple[object, ...]]:
    """What a search came to where it is not plainly a rate: no rate meets the objectives, or its bracket has a flaw."""
    # What cannot run has its reason in ``status``, and a row already.
    texts = np.where(state_of == CANNOT_RUN, OK, ds["search_status"].values.astype(str))
    plain = np.where(np.isin(texts, ("bracketed", "met")), OK, texts)
    rows: list[tuple[object, ...]] = []
    for reason in reasons_of(plain):
        why, _, remedy = reason.example.partition("; ")
        missed = [words for metric, words in _MISSED.items() if f"{metric} " in why]
        rows.append((reason.count, _share(reason.count, ds.sizes["config"]), why, remedy or "; ".join(missed)))
    return rows


def _misses(ds: xr.Dataset, measures: Sequence[Measure], missing: np.ndarray) -> list[tuple[object, ...]]:
    """Designs that are not saturated and yet miss objectives, by which of them they miss."""
    bounds = bounds_of(ds, measures)
    if not missing.any() or not bounds:
        return []
    over = [bound.part.values > bound.most for bound in bounds]
    names = [f"{words.named(bound.measure, bound.part)} above {bound.words}" for bound in bounds]
    # (design, objective) booleans: equal rows miss the same objectives, and are one row of the table.
    kinds, counts = np.unique(np.stack(over, axis=-1)[missing], axis=0, return_counts=True)
    rows: list[tuple[object, ...]] = []
    for kind, count in sorted(zip(kinds.tolist(), counts.tolist(), strict=True), key=lambda pair: -pair[1]):
        missed = [name for name, bad in zip(names, kind, strict=True) if bad]
        metrics = [
            bound.measure.key.removesuffix("_s").removeprefix("class_")
            for bound, bad in zip(bounds, kind, strict=True)
            if bad
        ]
        remedy = "; ".join(_MISSED.get(metric, "") for metric in metrics)
        # With a confidence a design may be within all bounds, and not surely enough.
        others = "within the bounds, less surely than is asked for" if how_sure(ds) else "only in some of the seeds"
        why = f"misses objectives: {' and '.join(missed) if missed else others}"
        # `slo_met` is of all seeds, and the means that are compared here may be within the bounds.
        rows.append((count, _share(count, ds.sizes["config"]), why, remedy))
    return rows


def _share(count: int, total: int) -> str:
    percent = 100 * count / total
    return f"{percent:.1f} %" if percent >= 0.1 else "< 0.1 %"


def provenance(ds: xr.Dataset, measures: Sequence[Measure]) -> str:
    """Where the numbers are from and how sure they are, and what every measure means."""
    attrs, able = ds.attrs, ds["status"].values == OK
    seeds = attrs.get("seeds", "")
    several = "," in seeds
    errors = (
        "over the seeds" if several else "from batch means within the one run; none where a statistic has no batches"
    )
    pairs = [
        ("efficiencies", _counted(ds, "provenance", able)),
        ("calibration", _sets(ds, able)),
        ("computed by", f"{_counted(ds, 'engine', able)}. {attrs.get('engine_note', '')}".strip()),
        *([("search", str(attrs["search_note"]))] if attrs.get("search_note") else []),
        *([("models", str(attrs["model_note"]))] if attrs.get("model_note") else []),
        ("seeds", seeds or "unknown"),
        ("errors", f"± and bars are Monte-Carlo standard errors, {errors}. They tell of chance alone; chances that "
         "objectives hold tell of the model's error, too."),
        ("model", f"How far the model is expected to be from a real system: {_expected(ds, able)}."),
        ("made by", f"evaluator {attrs.get('evaluator_version', '?')}, JAX {attrs.get('jax_version', '?')}, "
         f"{attrs.get('created', 'at an unknown time')}, schema {attrs.get('schema_version', '?')}"),
        ("scenario's SHA-256", attrs.get("scenario_sha256", "unknown")),
        ("charts", "plotly.js, MIT licence, inside this file; nothing is loaded from a network"),
    ]  # fmt: skip
    meanings = table(
        ("measure", "unit", "meaning"),
        [(measure.label, measure.unit or "1", measure.about) for measure in measures],
        "wide",
    )
    return f"{definitions(pairs)}<details><summary>What every measure means</summary>{meanings}</details>"


def _sets(ds: xr.Dataset, able: np.ndarray) -> str:
    """The calibration sets of designs, where the result says them row by row, and what the scenario asked for."""
    stated = f"asked for: {ds.attrs.get('calibration', 'unknown')}"
    return f"{stated}; {_counted(ds, 'calibration_set', able)}" if "calibration_set" in ds else stated


def _expected(ds: xr.Dataset, able: np.ndarray) -> str:
    """The expected errors of the designs that can run; 68 % of measured values are within them."""
    return "; ".join(expected_errors(ds, np.flatnonzero(able), grown=False)) or "evaluator compare tells"


def _counted(ds: xr.Dataset, name: str, able: np.ndarray) -> str:
    """``1,020 datasheet, 3 calibrated``: of the designs that can run."""
    if name not in ds or not able.any():
        return "nothing"
    kinds, kind_of = distinct(ds[name].values[able])
    pairs = sorted(zip(np.bincount(kind_of).tolist(), kinds.tolist(), strict=True), reverse=True)
    return ", ".join(f"{count:,} designs: {kind}" for count, kind in pairs)


def scenario(ds: xr.Dataset) -> str:
    """The scenario's text, to copy."""
    return f"<pre id='scenario-text' tabindex='0'>{escaped(ds.attrs.get('scenario', ''))}</pre>"
