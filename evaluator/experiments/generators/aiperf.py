"""AIPerf's ``profile_export_aiperf.json``, and GenAI-Perf's ``profile_export_genai_perf.json``, whose form it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evaluator.errors import InputError
from evaluator.experiments.entry import as_number
from evaluator.experiments.generators.measured_run import AT_ONCE, MeasuredRun, closed_loop, open_loop, statistics_of

NAME = "AIPerf"
METRICS = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}
"""Its inter-token latency is our TPOT: (request latency - TTFT) / (output tokens - 1) of a request."""
RATES = {"throughput_rps": "request_throughput", "output_tok_per_s": "output_token_throughput"}
_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}


def recognised(content: Mapping[str, Any]) -> bool:
    """Whether an object of JSON is of this generator, by the keys that it alone has."""
    latency = content.get("request_latency")
    return isinstance(latency, Mapping) and "unit" in latency and "input_config" in content


def read(content: Mapping[str, Any], label: str) -> list[MeasuredRun]:
    """The run of a file; what its warm-up phase measured is left out, as it does itself."""
    metrics = _metrics(content)
    # A metric like all others in this file, of which the only statistic is called the average.
    requests = _average(content, "request_count")
    config = content.get("input_config")
    arrivals, planned, notes = _load(config if isinstance(config, Mapping) else {})
    count = int(requests or planned or 0)
    if not count:
        raise InputError("request_count is missing, and so is the number of requests in input_config")
    # AIPerf 0.13 writes both; a file that has neither says nothing against its end.
    cancelled = bool(content.get("was_cancelled")) or content.get("is_complete") is False
    if cancelled:
        notes.append("the run was cancelled")
    errors = _average(content, "error_request_count")
    if errors:
        notes.append(f"{errors:,.0f} requests failed")
    return [
        MeasuredRun(
            label,
            NAME if "aiperf_version" in content else "GenAI-Perf",
            arrivals,
            count,
            metrics,
            _average(content, "input_sequence_length"),
            _average(content, "output_sequence_length"),
            model=_model(config),
            failed=int(errors or 0),
            cancelled=cancelled,
            notes=tuple(notes),
        )
    ]


def _metrics(content: Mapping[str, Any]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for ours, theirs in METRICS.items():
        given = content.get(theirs)
        if isinstance(given, Mapping):
            unit = str(given.get("unit"))
            # Versions differ in their units, and say them; a factor of a thousand would pass unseen.
            if unit not in _SECONDS:
                raise InputError(f"{theirs}.unit must be one of {', '.join(_SECONDS)}, got {unit[:40]!r}")
            metrics |= statistics_of(ours, given, _SECONDS[unit])
    rates = {ours: _average(content, theirs) for ours, theirs in RATES.items()}
    return metrics | {name: value for name, value in rates.items() if value}


def _average(content: Mapping[str, Any], name: str) -> float | None:
    given = content.get(name)
    value = as_number(given.get("avg")) if isinstance(given, Mapping) else None
    return value if value is not None and 0 < value < float("inf") else None


def _load(config: Mapping[str, Any]) -> tuple[dict[str, Any], float | None, list[str]]:
    """Arrivals, the number of requests asked for, and what is not heeded: of AIPerf, or GenAI-Perf."""
    phases = config.get("phases")
    # Newer files of AIPerf list phases, of which a warm-up has a load of its own that says nothing of the results.
    if isinstance(phases, Sequence) and not isinstance(phases, str):
        profiling = [phase for phase in phases if isinstance(phase, Mapping)]
        profiling = [phase for phase in profiling if phase.get("kind", "profiling") == "profiling"]
        if len(profiling) != 1:
            raise InputError(f"input_config.phases: one profiling phase is compared, there are {len(profiling)}")
        stated: Mapping[str, Any] = profiling[0]
    else:
        perf = config.get("perf_analyzer")
        stimulus = perf.get("stimulus") if isinstance(perf, Mapping) else None
        # GenAI-Perf puts the load under perf_analyzer.stimulus, older AIPerf under loadgen; where
        # neither is there, the options lie in the configuration itself.
        older = config.get("loadgen", config.get("load_generator"))
        stated = next((section for section in (stimulus, older) if isinstance(section, Mapping)), config)
    planned = as_number(stated.get("requests", stated.get("request_count")))
    kind = str(stated.get("type", stated.get("request_rate_mode", "poisson")))
    rate = as_number(stated.get("rate", stated.get("request_rate")))
    users = as_number(stated.get("concurrency"))
    if rate:
        if kind not in ("poisson", "constant", "gamma", "request_rate"):
            raise InputError(f"input_config: requests sent by {kind[:40]!r} are not compared; poisson and constant are")
        # The open loop is compared all the same: a bound that is never reached changes nothing, and the file does not
        # say whether it was reached.
        held_back = [f"concurrency {users:g} beside a rate is not modelled"] if users else []
        # Poisson is the default, and gamma with a smoothness of 1 is the same.
        return open_loop(rate, "the request rate", 0.0 if kind == "constant" else _cv(stated)), planned, held_back
    if users:
        return closed_loop(users, "concurrency"), planned, []
    # After a rate and a concurrency: a burst with a concurrency is a closed loop.
    if kind in ("throughput", "burst"):
        return dict(AT_ONCE), planned, []
    raise InputError("input_config says neither a concurrency nor a request rate")


def _cv(stated: Mapping[str, Any]) -> float:
    """Of gaps that are gamma distributed with a smoothness (shape) k it is 1 / sqrt(k)."""
    shape = as_number(stated.get("smoothness", stated.get("arrival_smoothness"))) or 1.0
    # Rounded, so that a shape of 4 is a cv of 0.5 and equal designs stay equal.
    return round(float(shape) ** -0.5, 12) if shape > 0 else 1.0


def _model(config: Any) -> str | None:
    if not isinstance(config, Mapping):
        return None
    models = config.get("models", config.get("model_names", config.get("model")))
    if isinstance(models, Mapping):
        # AIPerf 0.13 has `models: {items: [{name: ...}]}`, others a list of names or one name.
        models = models.get("items")
    first = models[0] if isinstance(models, Sequence) and not isinstance(models, str) and models else models
    name = first.get("name") if isinstance(first, Mapping) else first
    return name if isinstance(name, str) and name else None
