"""The question and the answer of a sweep in words, as plain text; ``sections`` makes HTML of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.catalog.engines import ENGINES
from evaluator.errors import InputError
from evaluator.metrics.outcomes import OK
from evaluator.report.accuracy import mixtures
from evaluator.report.axes import ShownAxis
from evaluator.report.labels import text, title
from evaluator.report.page.columns import ERROR_DIGITS, VALUE_DIGITS, ColumnPart, Measure, scale_of, short_of
from evaluator.report.page.data import CANNOT_RUN, MEETS, RUNS, bounds_of, states
from evaluator.report.page.rows import ranked
from evaluator.report.places import chance_in_words, how_sure, in_words
from evaluator.report.ranking import held_up, is_constant, too_short
from evaluator.report.search import question_of
from evaluator.results.schema import objectives_of, quantities
from evaluator.units import counted
from evaluator.yaml import loads_yaml

if TYPE_CHECKING:
    import xarray as xr

    from evaluator.plan import Configuration

LONGER = "use workload.requests: auto, or more of them"
MOST_LEVELS = 8  # of an axis, that are listed
MOST_GAINS = 4  # of the best design, that are told


def number(value: float) -> str:
    """Three significant digits, thousands with commas; large and whole numbers in full."""
    if not np.isfinite(value):
        return "unknown"
    if abs(value) >= 1000 or float(value).is_integer():
        return f"{value:,.0f}"
    digits = f"{value:#.3g}"
    return (digits.rstrip(".") if "e" not in digits else f"{value:.3g}") if value else "0"


def with_error(value: float, error: float | None) -> str:
    """A value and its standard error, as ``371 ± 18``: both with the digits that two digits of the error leave."""
    if error is None or not np.isfinite(error):
        return number(value)
    if error == 0 or not np.isfinite(value):
        return f"{number(value)} ± {number(error)}"
    # Two digits of the error, and the value to the same place: 371 ± 18, 0.0712 ± 0.0034.
    decimals = max(0, 1 - int(np.floor(np.log10(error))))
    return f"{value:,.{min(decimals, 6)}f} ± {error:,.{min(decimals, 6)}f}"


def measured(measure: Measure, part: ColumnPart, row: int) -> str:
    """A statistic of one row with its error or bracket, and its unit; rounded once, as the table's numbers are."""
    # Rounded as the page's JSON is, so that a sentence and the table's cell never differ in their last digit.
    value = float(f"{part.values[row]:.{VALUE_DIGITS}g}")
    error = None if part.stderr is None else float(f"{part.stderr[row]:.{ERROR_DIGITS}g}")
    words = with_error(value, error)
    words = f"{words} {measure.unit}".rstrip()
    if part.high is not None and np.isfinite(part.high[row]):
        words += f" (at {number(part.high[row])} an objective is missed)"
    return words


def named(measure: Measure, part: ColumnPart) -> str:
    """A statistic by its name, as ``TTFT p90``."""
    return f"{measure.short} {part.name}".rstrip()


def objectives(ds: xr.Dataset) -> str:
    """``TTFT p90 ≤ 1.5 s, TPOT mean ≤ 50 ms``: what the scenario asks for, whether any design ran or not."""
    bounds = []
    for bound in objectives_of(ds):
        key = f"{bound['metric']}_s"
        unit, factor = scale_of(key, "s")
        whose = f" of {bound['class']}" if "class" in bound else ""
        bounds.append(f"{short_of(key)} {bound['statistic']}{whose} ≤ {bound['bound_s'] * factor:g} {unit}")
    return ", ".join(bounds) + how_sure(ds)


def own_words(scenario_text: str) -> str:
    """What the scenario's author wrote above it: the first paragraph of its comment; empty without one."""
    lines: list[str] = []
    for line in scenario_text.splitlines():
        words = line.lstrip("# ").rstrip()
        # The first paragraph alone: below it comments explain keys.
        if not line.startswith("#") or (lines and not words):
            break
        # A line for editors that our own scenarios begin with.
        if words and not words.startswith("yaml-language-server"):
            lines.append(words)
    return " ".join(lines)


def design(ds: xr.Dataset, axes: Sequence[ShownAxis], row: int) -> str:
    """A design by what was swept: numbers with their names and units, names by themselves."""
    return ", ".join(axis.quantity(ds, row) for axis in axes) or "the one design of the scenario"


def swept(ds: xr.Dataset, axes: Sequence[ShownAxis]) -> list[tuple[str, str]]:
    """Every axis on which designs differ, and its values."""
    axes_and_values = []
    for axis in axes:
        count, rows = axis.first.size, axis.first.tolist()
        values = [axis.words(ds, row) for row in rows[:MOST_LEVELS]]
        apart = "; " if len(axis.names) > 1 else ", "
        listed = apart.join(values)
        if count > MOST_LEVELS:
            last = axis.words(ds, rows[-1])
            listed = f"{count} values, {f'{values[0]} to {last}' if axis.numeric else apart.join([*values, '...'])}"
        axes_and_values.append((axis.title, listed))
    return axes_and_values


def held(ds: xr.Dataset) -> str:
    """What is the same in every design although the scenario names it as an axis; empty without such."""
    same = [name for name in quantities(ds) if is_constant(ds, name)]
    return ", ".join(f"{title(name)} {text(ds[name].values[0])}" for name in same)


def asked(ds: xr.Dataset) -> list[tuple[str, str]]:
    """What a search was for, and within what budget; nothing of a sweep."""
    if "search" not in ds.attrs:
        return []
    question = question_of(ds)
    rate, devices, price = question["rate_rps"], question.get("devices"), question.get("usd_per_hour")
    if rate is None:
        searched = [
            ("searched", f"the highest arrival rate at which all objectives hold, to {100 * question['bracket']:g} %")
        ]
    else:
        searched = [("searched", f"the fewest replicas that serve {rate:g} requests/s")]
    limits = [f"{most:g} {unit}" for most, unit in ((devices, "devices"), (price, "USD/h")) if most is not None]
    return [*searched, ("budget", ", ".join(limits))] if limits else searched


def sections_of(scenario_text: str, swept_paths: set[str]) -> list[tuple[str, str]]:
    """Workload and deployment of a scenario's text, as (section, words); nothing where the text cannot be read."""
    try:
        # Of the text, and not of the scenario: what the author wrote, without the defaults.
        tree = loads_yaml(scenario_text, "scenario")
    except InputError:
        return []
    if not isinstance(tree, Mapping):
        return []
    texts = []
    for section in ("workload", "deployment"):
        words = ", ".join(_flat(tree.get(section), section, swept_paths))
        if words:
            texts.append((section, words))
    return texts


def _flat(value: Any, path: str, swept_paths: set[str]) -> Iterator[str]:
    """``key value`` for every key below a section that is not swept."""
    if path in swept_paths:
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}", swept_paths)
    elif value is not None:
        name = title(" ".join(path.split(".")[1:]))
        shown = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield re.sub(r"^(arrivals process|lengths source|arrivals|lengths|batching|kv) ", _lead, f"{name} {shown}")


def _lead(match: re.Match[str]) -> str:
    """``arrivals process poisson`` is read as ``arrivals poisson``, ``batching max num seqs`` as ``max num seqs``."""
    section, _, key = match[1].partition(" ")
    return f"{section} " if key else ""


def verdict(ds: xr.Dataset) -> str:
    """What came of the question, as a heading: how many designs do what was asked, or that none does."""
    kinds = states(ds)
    total = kinds.size
    rate = question_of(ds)["rate_rps"] if "search" in ds.attrs else None
    if not (kinds != CANNOT_RUN).any():
        return "No design can run"
    if "search" in ds.attrs:
        does = "meet{} the objectives at some rate" if rate is None else f"serve{{}} {rate:g} requests/s"
    elif objectives_of(ds):
        does = f"meet{{}} the objectives{how_sure(ds)}"
    else:
        does = "keep{} up with the load"
    good = int(np.isin(kinds, (MEETS, RUNS)).sum())
    if not good:
        return f"No design {does.format('s')}".replace("at some", "at any")
    which = "The design" if total == 1 else f"{'All' if good == total else f'{good:,} of'} {total:,} designs"
    return f"{which} {does.format('s' if good == 1 else '')}"


def launch(ds: xr.Dataset, row: int, configuration: Configuration) -> str:
    """What serves the design at ``row``: engine, replicas, devices and limits of every pool, defaults included."""
    pools = []
    layout = str(ds["pool_layout"].values[row]) if "pool_layout" in ds else ""  # a search may have chosen the replicas
    for station in configuration.answering:
        deployment, design = station.deployment, station.design
        split = design.spec.parallel
        # What is 1 is left out: a launch without it does the same.
        counts = {"tensor": split.tensor, "pipeline": split.pipeline, "expert": split.expert, "data": split.data}
        facts = [f"{name} parallel {count}" for name, count in counts.items() if count > 1]
        sequences, tokens = deployment.batching.max_num_seqs, station.max_num_batched_tokens
        facts.append(f"{deployment.batching.policy} batching")
        facts.append(f"at most {sequences:,} sequences and {tokens:,} tokens an iteration")
        formats = deployment.precision
        written = {"weights": formats.weights, "KV": formats.kv}
        # As published or as by default: nothing has to be said to get these.
        facts += [f"{name} in {dtype}" for name, dtype in written.items() if dtype not in ("checkpoint", "bf16")]
        facts += [f"attention's weights in {formats.attention}"] if formats.attention else []
        facts += ["prefix caching"] if deployment.kv.prefix_caching else []
        facts += [f"drafts by {deployment.speculative.method}"] if deployment.speculative else []
        replicas = "each replica" if layout else counted(deployment.replicas, "replica")
        name = f"{station.name}: " if len(configuration.answering) > 1 else ""
        devices = f"{design.devices} {design.hardware.title}{' each' if deployment.replicas > 1 and not layout else ''}"
        pools.append(f"{name}{replicas} of {design.model.name} on {devices}, {', '.join(facts)}")
    engine = ENGINES[configuration.answering[0].deployment.engine].label
    return f"{engine}{f', {layout}' if layout else ''}; {'; '.join(pools)}"


def answer(ds: xr.Dataset, axes: Sequence[ShownAxis], row: int, measures: Sequence[Measure]) -> list[str]:
    """Sentences about the best design: ``row`` is its position along ``config``; in the measures it is the first."""
    gains = []
    served = question_of(ds)["rate_rps"] if "search" in ds.attrs else None
    for key in _WORDS if served is None else (*_TAKES, *_WORDS):
        measure = next((candidate for candidate in measures if candidate.key == key), None)
        # A price that nobody stated has no words.
        if measure is not None and np.isfinite(measure.parts[0].values[0]):
            gains.append(f"{measured(measure, measure.parts[0], 0)} {_TAKES.get(key) or _WORDS.get(key, '')}".strip())
    limits = [
        f"{named(bound.measure, bound.part)} is {measured(bound.measure, bound.part, 0)} "
        f"(objective: {bound.words}{', missed' if bound.part.values[0] > bound.most else ''})"
        for bound in bounds_of(ds, measures)
    ]
    good = states(ds)[row] in (MEETS, RUNS)
    sentences = [f"{'The best' if good else 'The nearest'} is {design(ds, axes, row)}."]
    if gains:
        serving = "It gives" if served is None else f"It {'serves' if good else 'misses'} {served:g} requests/s with"
        sentences.append(f"{serving} {_listed(gains[:MOST_GAINS])}.")
    if limits:
        sentences.append(f"{_listed(limits)}.")
    return sentences


def chances(ds: xr.Dataset, row: int) -> str:
    """How sure the best design is of its objectives, and which others are ahead of it within the errors."""
    if "slo_chance" not in ds:
        return ""
    chance, told = float(ds["slo_chance"].values[row]), []
    if np.isfinite(chance):
        words = chance_in_words(chance).replace("%", " %").replace("<", "less than ").replace(">", "more than ")
        told.append(
            f"It meets all objectives with a chance of {words}, given the expected errors of the model and of the run."
        )
    elif objectives_of(ds):
        told.append("With what chance it meets its objectives is not known, as the model's error is not.")
    ahead = ds["ahead_of_first"].values if "ahead_of_first" in ds else np.zeros(0)
    # In the order of the ranking, which is that of the chances that were drawn.
    order = ranked(ds)[0][:BEST]
    able = order[ds["status"].values[order] == OK]
    places = in_words(ahead[able], f"the best {able.size}") if ahead.size else ""
    return " ".join([*told, f"{places[:1].upper()}{places[1:]}." if places else ""]).strip()


BEST = 20
"""Designs of which the answer says whether they change places with the best: a page of the table."""

# What the best design takes to serve a rate that was asked for.
_TAKES = {"devices": "devices", "usd_per_hour": ""}
# What the best design gives, the most telling first.
_WORDS = {
    "goodput_rps": "of goodput",
    "goodput_rps_per_gpu": "of goodput per GPU",
    "goodput_per_usd": "",
    "tok_per_s_per_gpu": "of output per GPU",
    "output_tok_per_s": "in all",
    "usd_per_mtok": "of output",
}


def cautions(ds: xr.Dataset, axes: Sequence[ShownAxis], row: int, measures: Sequence[Measure]) -> list[str]:
    """What to doubt of the answer: objectives within chance of their bounds, axes whose end is the best, saturation."""
    doubts = []
    for bound in bounds_of(ds, measures) if "search" not in ds.attrs else []:  # a search ends at an objective
        part = bound.part
        if part.stderr is None or not np.isfinite(part.stderr[0]):
            continue
        # Index 0: in the measures of a page the best design is the first row.
        if abs(bound.most - part.values[0]) < 2 * part.stderr[0]:
            doubts.append(
                f"{named(bound.measure, part)} is within two standard errors of its objective, so chance may decide; "
                "more seeds would tell."
            )
    mixed = mixtures(ds, np.flatnonzero(ds["status"].values == OK))
    doubts += [f"{line[:1].upper()}{line[1:]}." for line in mixed]
    if "search_status" in ds and ds["search_status"].values[row] not in ("bracketed", "met"):
        doubts.append(f"The search came to: {ds['search_status'].values[row]}.")
    if "search_status" not in ds and too_short(ds)[row]:  # a search says so itself
        doubts.append(f"Its run is too short for its statistics (not steady): {LONGER}.")
    if ds["saturated"].values[row]:
        doubts.append("The design is saturated: its queue grows without bound, so its waits tell how long the run was.")
    if held_up(ds)[row]:
        doubts.append(
            "Its API servers are busy all the time, so that tokens wait for them: use more deployment.api_servers."
        )
    for axis in axes:
        # Of two values the best is at an end in any case: only from three on does an end say that the range
        # was too short.
        if axis.numeric and axis.first.size > 2 and axis.at[row] == _last(ds, axis):
            words = axis.quantity(ds, row)
            # The lowest value is no doubt: rates and counts end at 0 or 1.
            doubts.append(f"{words} is the highest value that was swept: a higher one may be better still.")
    return doubts


def _last(ds: xr.Dataset, axis: ShownAxis) -> int:
    """The level of an axis of numbers that is the highest; designs without a value come behind it."""
    return int(np.isfinite(ds[axis.key].values[axis.first]).sum()) - 1


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
