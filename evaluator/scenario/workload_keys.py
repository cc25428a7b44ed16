"""The keys of ``workload``: what each holds, and what it is where absent. A new key is one line here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluator.errors import InputError
from evaluator.scenario.fields import (
    Field,
    Place,
    Reader,
    Schema,
    Table,
    count,
    did_you_mean,
    flag,
    known,
    listed,
    many,
    number,
    quantity,
    resolve_file,
    shown,
    text,
)
from evaluator.scenario.reasoning_keys import reasoning_reader
from evaluator.scenario.scenario import Arrivals, Auto, Lengths, ModelShare, Reasoning, Sessions, Workload
from evaluator.scenario.session_keys import sessions_reader
from evaluator.scenario.tables import Variant, read_section, schema_of, section, section_schema, variant

LOWEST_RPS = 1e-6
"""Requests per second. A clock that counts the years between them would lose the milliseconds that they take."""
_above_zero = quantity("1/s", above=0)


def _rate(value: Any, place: Place) -> float:
    rate = _above_zero(value, place)
    if rate < LOWEST_RPS:
        raise place.error(f"{shown(value)} is too low for the clock of a run; use at least {LOWEST_RPS:g} requests/s")
    return rate


RATE: Table = {
    "rate_rps": Field(Reader(_rate, _above_zero.schema), says="Mean rate of the arrivals, requests per second.")
}
DEFAULT_REQUESTS = 1000
MOST_REQUESTS = 10_000_000
"""Per seed: all requests of a configuration lie in memory at once, and those of 10 million take about 1 GB."""


def _file(folder: Path) -> Reader:
    return Reader(lambda value, place: resolve_file(text(value, place), (folder, Path.cwd()), place), text.schema)


def arrival_tables(folder: Path) -> Mapping[str, Table]:
    """The keys of each arrival process, beside ``process``. Relative files are looked for in ``folder`` first."""
    return {
        "poisson": RATE,
        "gamma": {**RATE, "cv": Field(number(above=0), says="Coefficient of variation of the gaps; 1 is Poisson.")},
        "uniform": RATE,
        "normal": {**RATE, "std_s": Field(quantity("s", least=0), says="Standard deviation of the gaps.")},
        "burst": {
            **RATE,
            "on_s": Field(quantity("s", above=0), says="How long a burst lasts."),
            "off_s": Field(quantity("s", above=0), says="How long it is quieter between two bursts."),
            "factor": Field(number(above=0), says="The rate in a burst over rate_rps, which stays the mean."),
        },
        "all_at_once": {},
        "closed_loop": {
            "users": Field(count(most=10**6), says="How many send their next request when the one before is answered.")
        },
        "trace": {
            "file": Field(_file(folder), says="CSV, Parquet or JSONL with arrival_s, prompt_tokens, output_tokens."),
            "scale": Field(number(above=0), 1.0, "More than 1 sends the trace that many times as fast."),
        },
    }


def _arrivals(process: str, values: dict[str, Any], place: Place) -> Arrivals:
    arrivals = Arrivals(process, **values)
    if process == "burst":
        share = values["factor"] * values["on_s"] / (values["on_s"] + values["off_s"])
        if share > 1 + 1e-12:
            most = (values["on_s"] + values["off_s"]) / values["on_s"]
            raise place.key("factor").error(
                f"the bursts alone would exceed rate_rps: must be at most (on_s + off_s) / on_s = {most:g}, "
                f"got {values['factor']:g}"
            )
    return arrivals


def _both(**columns: Field) -> dict[str, Field]:
    """The same keys for the prompt and for the output."""
    return {
        f"{side}_{key}": Field(field.read, field.default, field.says.format(side=f"{side}s"))
        for side in ("prompt", "output")
        for key, field in columns.items()
    }


_TOKENS = Field(count(), says="Tokens of all {side}.")
_MEAN = Field(number(above=0, most=1e9), says="Mean tokens of {side}, before rounding and clips.")
_LEAST = Field(count(), 1, "Fewest tokens of {side}.")
_MOST = "Most tokens of {side}."
_CLIPS = {"min": _LEAST, "max": Field(count(), None, _MOST)}

LENGTHS: Mapping[str, Table] = {
    "fixed": _both(tokens=_TOKENS),
    "lognormal": _both(mean=_MEAN, cv=Field(number(above=0), says="Coefficient of variation of {side}."), **_CLIPS),
    "normal": _both(mean=_MEAN, std=Field(number(least=0), says="Standard deviation of {side}, tokens."), **_CLIPS),
    "uniform": _both(min=Field(count(), says=_LEAST.says), max=Field(count(), says=_MOST)),
    "zipf": _both(
        exponent=Field(number(least=0, most=20), says="Exponent of the law of {side}; 0 is uniform."),
        min=_LEAST,
        max=Field(count(most=10**7), says=_MOST),
    ),
}
"""The keys of each length formula. ``mean``, ``cv`` and ``std`` are those before rounding and before the clips."""

_SOURCE = "A named distribution of the catalog, or a formula: fixed, lognormal, normal, uniform, zipf."


def lengths_reader(folder: Path) -> Variant:
    """Reads {source: NAME, ...} or {trace: FILE}."""
    trace: Table = {"trace": Field(_file(folder), says="CSV, Parquet or JSONL with prompt_tokens and output_tokens.")}

    def read(value: Any, place: Place) -> Lengths:
        if isinstance(value, Mapping) and value.get("trace") is not None:
            return Lengths("trace", file=read_section(value, trace, place)["trace"])
        if isinstance(value, Mapping) and value.get("source") is None:
            raise place.key("source").error(f"is required: {listed(LENGTHS)}, a name of the catalog, or trace: FILE")
        if isinstance(value, Mapping) and str(value["source"]) not in LENGTHS:
            name = _catalog_lengths(value["source"], place.key("source"))
            read_section(value, {"source": Field(text), "trace": Field(text, None)}, place)  # nothing beside it
            return Lengths(name)
        return formula(value, place)

    def schema() -> Schema:
        catalog: Table = {"source": Field(known(_load_lengths, _length_names), says=_SOURCE)}
        needed = [{**section_schema(table), "required": list(table)} for table in (catalog, trace)]
        return {"anyOf": [*needed, schema_of(formula)]}

    # A key of its own in an axis may be a name of the catalog, too.
    either = Reader(
        text.read, lambda: {"anyOf": [{"enum": list(LENGTHS)}, schema_of(known(_load_lengths, _length_names))]}
    )
    return Variant(read, schema, {**formula.keys, "source": Field(either, says=_SOURCE), **trace})


def _catalog_lengths(value: Any, place: Place) -> str:
    try:
        return known(_load_lengths, _length_names)(value, place)
    except InputError as error:
        raise InputError(f"{error}; or a formula: {listed(LENGTHS)}{did_you_mean(value, LENGTHS)}") from None


def _load_lengths(name: str) -> Any:
    from evaluator.catalog import load_lengths

    return load_lengths(name)


def _length_names() -> list[str]:
    from evaluator.catalog import names

    return names("lengths")


def _formula(source: str, values: dict[str, Any], place: Place) -> Lengths:
    for side in ("prompt", "output"):
        low, high = values.get(f"{side}_min"), values.get(f"{side}_max")
        if low is not None and high is not None and high < low:
            raise place.key(f"{side}_max").error(f"must be at least {side}_min = {low}, got {high}")
    return Lengths(source, {key: entry for key, entry in values.items() if entry is not None})


formula = variant("source", LENGTHS, _formula, _SOURCE)


def models_reader(folder: Path) -> Reader:
    """Reads {MODEL: 0.7, MODEL: {share: 0.3, lengths: {...}}}: which models the requests ask for."""
    return _shares_reader(folder, "model", "llama-3.1-8b", known(_load_model, _model_names))


def pipelines_reader(folder: Path) -> Reader:
    """Reads {NAME: 0.7, NAME: {share: 0.3, lengths: {...}}}: which way through the pipeline the requests take."""
    return _shares_reader(folder, "pipeline", "rag", text)


def _shares_reader(folder: Path, kind: str, example: str, name: Reader) -> Reader:
    share = number(above=0)
    table: Table = {
        "share": Field(share, says=f"Of all requests, relative to the shares of the other {kind}s."),
        "lengths": Field(
            lengths_reader(folder), None, f"Of this {kind}'s requests; as those of the workload if absent."
        ),
    }

    def read(value: Any, place: Place) -> dict[str, ModelShare]:
        if not isinstance(value, Mapping) or not value:
            raise place.error(f"expected shares by {kind} such as {{{example}: 0.7}}, got {shown(value)}")
        found = {}
        for key, entry in value.items():
            at = place.key(key)
            name(key, at)
            own = read_section(entry, table, at) if isinstance(entry, Mapping) else {"share": share(entry, at)}
            found[str(key)] = ModelShare(**own)
        return found

    def schema() -> Schema:
        below = {"anyOf": [schema_of(share), {**section_schema(table), "required": ["share"]}]}
        return {"type": "object", "additionalProperties": below, "minProperties": 1}

    return Reader(read, schema)


def _load_model(name: str) -> Any:
    from evaluator.catalog import load_model

    return load_model(name)


def _model_names() -> list[str]:
    from evaluator.catalog import names

    return names("models")


MOST_AUTO = 50_000


def _requests(number: Reader) -> Reader:
    """Reads a number of requests, ``auto`` or ``{auto: {most: 50000}}``."""
    auto: Table = {"most": Field(number, MOST_AUTO, "Most requests of a seed.")}
    outer: Table = {"auto": Field(section(auto, dict), says="As many as it takes to decide the objectives.")}

    def read(value: Any, place: Place) -> int:
        if value == "auto":
            return Auto(DEFAULT_REQUESTS, MOST_AUTO)
        if isinstance(value, Mapping):
            most = read_section(value, outer, place)["auto"]["most"]
            return Auto(min(DEFAULT_REQUESTS, most), most)
        return number(value, place)

    schema = {"anyOf": [schema_of(number), {"const": "auto"}, section_schema(outer)]}
    return _Number(read, schema)


class _Number(Reader):
    """A reader of integers that reads something else, too."""

    whole = True


def workload_table(folder: Path) -> Table:
    """The keys of ``workload``. None: filled in from the other keys (``workload.finish``)."""
    more = "a long run's statistics come as well from several seeds (workload.seeds), each in memory of its own"
    process = "How requests are sent: by a random process, by users in a closed loop, or at a trace's times."
    return {
        "arrivals": Field(
            variant("process", arrival_tables(folder), _arrivals, process), says="When requests are sent."
        ),
        "lengths": Field(lengths_reader(folder), None, "How long prompts and outputs are."),
        "requests": Field(
            _requests(count(most=MOST_REQUESTS, remedy=more)),
            None,
            "Requests per seed; 1,000, or the whole trace, where absent. auto, or {auto: {most: 50000}}: as many as it "
            "takes to decide the objectives.",
        ),
        "warmup_requests": Field(
            count(least=0),
            None,
            "First requests cut from the statistics, not from the run; where absent a tenth, or two for each user.",
        ),
        "cooldown_requests": Field(
            count(least=0),
            None,
            "Last requests cut from the statistics; where absent as many as warmup_requests, but at most a tenth, and "
            "none of a trace or of requests all at once.",
        ),
        "find_warmup": Field(
            flag, Workload.find_warmup, "Whether what a run takes to settle after that is cut, too (MSER-5)."
        ),
        "seeds": Field(
            many(count(least=0, most=2**63 - 1)), (0,), "Repetitions of every design with other random numbers."
        ),
        "cached_tokens": Field(
            count(least=0), 0, "Leading prompt tokens whose KV is there already, where a trace does not say."
        ),
        "sessions": Field(sessions_reader, Sessions(), "What requests have in common: prompts, and their senders."),
        "reasoning": Field(reasoning_reader, Reasoning(), "Longer outputs, on one path or several branches."),
        "models": Field(
            models_reader(folder),
            {},
            "Which models the requests ask for: {MODEL: SHARE} or {MODEL: {share: SHARE, lengths: {...}}}.",
        ),
        "pipelines": Field(
            pipelines_reader(folder),
            {},
            "Which ways through the pipeline the requests take: {NAME: SHARE} or {NAME: {share: SHARE, lengths: "
            "{...}}}; stages say with only whom they serve.",
        ),
    }
