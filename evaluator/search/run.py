"""The question as a whole: from a scenario to the dataset of its designs with what each of them can serve."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evaluator.cost.parallel import GATHER
from evaluator.errors import InputError
from evaluator.execution.lengthen import longer_plans
from evaluator.metrics import OK
from evaluator.metrics.service import SECONDS_PER_HOUR
from evaluator.plan import Configuration, Plan
from evaluator.plan.simulators import ITERATION
from evaluator.progress import ProgressReport, followed
from evaluator.report.search import GOODPUT, check_rank
from evaluator.results.chances import with_chances
from evaluator.results.dataset import to_dataset
from evaluator.results.fallback_report import FallbackReport
from evaluator.results.files import check_output, write
from evaluator.run.plan_figures import attributes_of, known_of, levels_of, notes_of
from evaluator.run.request import AnyScenario, check_simulator, loaded
from evaluator.scenario import Auto, Demand, Scenario
from evaluator.scenario.workload import MOST_AUTO
from evaluator.search.demand import fewest_replicas
from evaluator.search.designs import Designs, designs_of
from evaluator.search.goodput import goodput
from evaluator.search.trials import Values
from evaluator.simulation.outcomes import texts_of
from evaluator.units import counted
from evaluator.yaml import loads_yaml

if TYPE_CHECKING:
    import xarray as xr

BRACKET = 0.02


def optimize(
    scenario: AnyScenario,
    *,
    rate_rps: float | None = None,
    bracket: float = BRACKET,
    out: str | Path | None = None,
    progress: ProgressReport | bool | None = None,
    simulator: str = ITERATION,
    rank_by: str = GOODPUT,
) -> xr.Dataset:
    """The goodput of every design of ``scenario``: the highest rate of arrivals at which all objectives hold.

    A design is a point of the sweep without its axis of the rate; ``budget`` of the scenario prunes designs before they
    run, or fills each with replicas. The search ends where the rate that meets the objectives and the one that misses
    them are a factor 1 + ``bracket`` apart. With ``rate_rps`` (or ``demand`` of the scenario) the question is the other
    way round: the fewest replicas that serve this rate, where the scenario does not say how many they are.

    With ``workload.requests: auto``, which is the default here, designs whose run is not steady are searched again in
    longer runs: short ones that have not filled flatter a design, and a search would go where they flatter most.

    The dataset has a row for each design with the metrics of a sweep at that rate; ``search_status`` tells what the
    search came to and ``status`` which designs could not run. Written to ``out`` where given. It says by what its
    tables and pages rank the designs: ``rank_by`` of ``report.search.RANKS``.
    Errors: InputError for unusable input, and where no design can run within the budget.
    """
    check_simulator(simulator)
    check_rank(rank_by)
    if not 1e-4 <= bracket <= 1.0:
        raise InputError(f"bracket: must be from 0.0001 to 1, not {bracket:g}")
    # Before anything is planned: the requests of a plan are drawn for the length that its scenario says.
    scenario = _long_enough(loaded(scenario))
    if rate_rps is not None:
        if not 0.0 < rate_rps < float("inf"):
            raise InputError(f"rate: must be a positive number of requests per second, not {rate_rps:g}")
        scenario = replace(scenario, demand=Demand(rate_rps))
    target = None if out is None else check_output(out)
    designs = designs_of(scenario, simulator)
    _check_any(scenario, designs)
    levels = levels_of(designs.plan)
    requests = scenario.workload.requests * len(scenario.workload.seeds)
    with followed(progress, 0, "trials", requests) as watched:
        if scenario.demand.rate_rps is None:
            configurations, values = _by_goodput(designs, levels, bracket, watched)
            notes = filter(None, [designs.note, _lengthened(designs, configurations)])
            designs = replace(designs, note="; ".join(notes))
        else:
            configurations, values = _by_replicas(designs, levels, scenario.demand.rate_rps, watched)
    dataset = _dataset(scenario, designs, configurations, values, levels, bracket).assign_attrs(ranked_by=rank_by)
    if target is not None:
        write(dataset, target)
    return dataset


def _long_enough(scenario: Scenario) -> Scenario:
    """The scenario with runs that lengthen themselves, where it does not say how long they are."""
    workload = scenario.workload
    # From the text: the record has a number of requests whether a file says one or not.
    states_requests = "requests" in (loads_yaml(scenario.text, scenario.name).get("workload") or {})
    if states_requests or "trace" in (workload.arrivals.process, workload.lengths.source):
        return scenario
    return replace(scenario, workload=replace(workload, requests=Auto(workload.requests, MOST_AUTO)))


def _check_any(scenario: Scenario, designs: Designs) -> None:
    if any(configuration.status == OK for ladder in designs.ladders for configuration in ladder):
        return
    first = designs.ladders[0][0].status
    count = len(designs.ladders)
    which = f"the first of {count:,} designs is {first}" if count > 1 else first
    raise InputError(f"{scenario.path or scenario.name}: no design can run: {which}")


def _by_goodput(
    designs: Designs, levels: np.ndarray, bracket: float, progress: ProgressReport | None
) -> tuple[list[Configuration], Values]:
    configurations = [ladder[0] for ladder in designs.ladders]
    able = np.array([position for position, configuration in enumerate(configurations) if configuration.status == OK])
    ladders = [[configurations[position]] for position in able]
    limits = goodput(designs.plan, [ladder[0] for ladder in ladders], levels, bracket, progress)
    workload = designs.plan.scenario.workload
    stated = not isinstance(workload.requests, Auto)
    # A stated number of requests is kept, but where it is too small to tell any rate: such designs would be ranked by
    # what a burst makes of them, the fastest behind the slowest. A trace has no more requests than it has.
    most = MOST_AUTO if stated and "trace" not in (workload.arrivals.process, workload.lengths.source) else 0

    def undecided() -> np.ndarray:
        return limits.open_ended if stated else limits.undecided

    for longer, rows, of_rows in _in_longer_runs(designs.plan, ladders, undecided, most):
        again = [ladder[0] for ladder in of_rows]
        # The search begins at what the shorter runs found, from which it needs a few trials.
        more = goodput(longer, again, levels, bracket, progress, limits.rate_rps[rows], limits.trials)
        limits = limits.replaced(rows, more)
        for position, configuration in zip(able[rows], again, strict=True):
            configurations[position] = configuration
    columns = {
        "goodput_rps": limits.rate_rps,
        "goodput_high_rps": limits.high_rps,
        "goodput_rps_stderr": limits.stderr_rps,
        "goodput_rps_model_error": limits.model_error,
        "search_status": limits.status,
        "goodput_limit": limits.limit,
    }
    return configurations, _spread(limits.reported.values | columns, able, configurations)


def _lengthened(designs: Designs, configurations: Sequence[Configuration]) -> str:
    """That designs ran more requests than the scenario states; empty where none did."""
    short = {position: ladder[0].workload.requests for position, ladder in enumerate(designs.ladders)}
    runs = [design.workload.requests for design in configurations]
    ran = [requests for position, requests in enumerate(runs) if requests > short[position]]
    if not ran or isinstance(designs.plan.scenario.workload.requests, Auto):
        return ""
    stated = min(short.values())
    return (
        f"{counted(len(ran), 'design')} met the objectives however fast {stated:,} requests came, which tells no rate, "
        f"and ran up to {max(ran):,}"
    )


def _by_replicas(
    designs: Designs, levels: np.ndarray, rate_rps: float, progress: ProgressReport | None
) -> tuple[list[Configuration], Values]:
    ladders = [[configuration for configuration in ladder if configuration.status == OK] for ladder in designs.ladders]
    able = np.array([position for position, ladder in enumerate(ladders) if ladder])
    ladders = [ladders[position] for position in able]
    fewest = fewest_replicas(designs.plan, ladders, rate_rps, levels, progress)

    def undecided() -> np.ndarray:
        return fewest.undecided

    # Without the limit of the goodput's search: of a rate that is asked for a stated number of requests is kept.
    for longer, rows, again in _in_longer_runs(designs.plan, ladders, undecided):
        more = fewest_replicas(longer, again, rate_rps, levels, progress, fewest.trials)
        fewest = fewest.replaced(rows, more)
    configurations = [ladder[0] for ladder in designs.ladders]
    for position, configuration in zip(able, fewest.configurations, strict=True):
        configurations[position] = configuration
    return configurations, _spread(fewest.reported.values | {"search_status": fewest.status}, able, configurations)


def _in_longer_runs(
    first: Plan, ladders: Sequence[list[Configuration]], undecided: Callable[[], np.ndarray], most: int = 0
) -> Iterator[tuple[Plan, np.ndarray, list[list[Configuration]]]]:
    """Plans with ever more requests, each with the ladders that are still undecided: their rows, and as the plan has
    them.

    Ladders that are clear stay at their short runs. ``undecided`` says at every step which rows are not, (row,) of int;
    ``most`` as of ``longer_plans``.
    """

    def configs() -> np.ndarray:
        rows = undecided().tolist()
        return np.array([configuration.config for row in rows for configuration in ladders[row]], dtype=np.int64)

    for longer in longer_plans(first, configs, most):
        # More requests have longer ones among them, which not every design can run.
        able = {
            configuration.config: configuration for configuration in longer.configurations if configuration.status == OK
        }
        of_rows = {
            row: [able[configuration.config] for configuration in ladders[row] if configuration.config in able]
            for row in undecided().tolist()
        }
        rows = [row for row, ladder in of_rows.items() if ladder]
        if not rows:
            return
        yield longer, np.array(rows), [of_rows[row] for row in rows]


def _spread(of_able: Values, able: np.ndarray, configurations: Sequence[Configuration]) -> Values:
    """Values of some designs in their rows; the others have what is known of a design that does not run."""
    values: Values = {}
    for name, value in of_able.items():
        empty = "" if value.dtype == object else False if value.dtype == bool else np.nan
        values[name] = np.full((len(configurations), *value.shape[1:]), empty, dtype=value.dtype)
        values[name][able] = value
    for position, configuration in enumerate(configurations):
        if configuration.status != OK:
            for name, text in texts_of(configuration).items():
                values[name][position] = text
    values |= {name: value.astype(str) for name, value in values.items() if value.dtype == object}
    return values


def _dataset(
    scenario: Scenario,
    designs: Designs,
    configurations: list[Configuration],
    values: Values,
    levels: np.ndarray,
    bracket: float,
) -> xr.Dataset:
    whole = designs.plan
    values |= known_of(configurations)
    # A design is known by its row of the product, which stays its name where conditions leave rows out.
    values["config"] = whole.grid.numbers(values["config"])
    values |= _per_device_and_price(configurations, values, whole.labels.pool_names)
    values["pool_layout"] = np.array([layout_of(configuration) for configuration in configurations])
    with np.errstate(divide="ignore"):
        values["tok_per_joule"] = 1.0 / values["joule_per_tok"]
    attrs = (
        attributes_of(scenario)
        | FallbackReport.of(whole).note
        | notes_of(whole)
        | {"search": _question(scenario, bracket)}
    )
    if designs.note:
        attrs["search_note"] = designs.note
    ds = to_dataset(
        values,
        levels,
        whole.grid.axes,
        attrs,
        stages=whole.labels.stage_names,
        classes=whole.labels.class_names,
        pools=whole.labels.pool_names,
        objectives=whole.labels.objective_names,
    )
    return with_chances(ds)


def _per_device_and_price(configurations: Sequence[Configuration], values: Values, pool_names: Sequence[str]) -> Values:
    """usd_per_hour and, of a search for the highest rate, the goodput per device and per USD, (design,)."""
    # Of replicas that come and go those count that were there, as in the cost of a token.
    gone = [_gone(design, values, row, pool_names) for row, design in enumerate(configurations)]
    whole_price = [np.nan if design.usd_per_hour is None else design.usd_per_hour for design in configurations]
    price = np.array(whole_price) - [usd_per_hour for _, usd_per_hour in gone]
    figures: Values = {"usd_per_hour": price}
    # Not of a search for the fewest replicas, whose rate was given.
    if "goodput_rps" in values:
        goodput_rps = values["goodput_rps"]
        devices = np.array([design.accelerators for design in configurations]) - [devices for devices, _ in gone]
        figures["goodput_rps_per_gpu"] = goodput_rps / devices
        with np.errstate(divide="ignore", invalid="ignore"):
            figures["goodput_per_usd"] = np.where(price > 0.0, SECONDS_PER_HOUR * goodput_rps / price, np.nan)
    return figures


def _gone(design: Configuration, values: Values, row: int, pool_names: Sequence[str]) -> tuple[float, float]:
    """Devices, and USD per hour, of the replicas of scaling pools that are not there on the mean."""
    devices = usd_per_hour = 0.0
    for station in design.answering:
        if station.deployment.autoscaling is None:
            continue
        if station.name in pool_names:
            replicas_there = values["pool_replicas_mean"][row, pool_names.index(station.name)]
        else:
            replicas_there = values["replicas_mean"][row]
        absent = (station.deployment.replicas - replicas_there) * station.design.devices
        devices += absent
        usd_per_hour += absent * (station.usd_per_device_hour or 0.0)
    return devices, usd_per_hour


def _question(scenario: Scenario, bracket: float) -> str:
    budget = scenario.budget
    return json.dumps(
        {
            "rate_rps": scenario.demand.rate_rps,
            "bracket": bracket,
            "devices": budget.devices,
            "usd_per_hour": budget.usd_per_hour,
            "fill": budget.fill,
        }
    )


def layout_of(configuration: Configuration) -> str:
    """Replicas and parallelism of every pool, ``prefill 3 x tp2, decode 1 x tp2``, and hardware where pools differ."""
    several = len(configuration.answering) > 1
    mixed = len({station.design.hardware.title for station in configuration.answering}) > 1
    pools = []
    for station in configuration.answering:
        deployment = station.deployment
        parts = [f"{deployment.replicas} x tp{deployment.tensor_parallel}"]
        # What is 1, or as by default, is left out: names of layouts head tables.
        parts += [f"pp{deployment.pipeline_parallel}"] if deployment.pipeline_parallel > 1 else []
        parts += [f"dp{deployment.data_parallel}"] if deployment.data_parallel > 1 else []
        parts += [f"ep{deployment.expert_parallel}"] if deployment.expert_parallel > 1 else []
        parts += [f"r{deployment.redundant_experts}"] if deployment.redundant_experts else []
        parts += [deployment.expert_exchange] if deployment.expert_exchange != GATHER else []
        parts += ["two-batch overlap"] if deployment.two_batch_overlap else []
        parts += [f"dcp{deployment.decode_context_parallel}"] if deployment.decode_context_parallel > 1 else []
        parts += [f"pcp{deployment.prefill_context_parallel}"] if deployment.prefill_context_parallel > 1 else []
        parts += [station.design.hardware.title] if mixed else []
        pools.append(f"{station.name} {' '.join(parts)}" if several else " ".join(parts))
    return ", ".join(pools)
