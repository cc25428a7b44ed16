"""A row of a result as what was simulated: its workload, its pools with everything stated, and what was predicted."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.arguments import WHOLE, leaves, tree_of
from evaluator.catalog.hardware import load_hardware
from evaluator.catalog.model import Model
from evaluator.catalog.published import entry_named
from evaluator.catalog.what_if import WhatIf, device
from evaluator.deploy.choice import choose
from evaluator.errors import InputError, InputWarning
from evaluator.keys import table_of, written
from evaluator.metrics.outcomes import OK
from evaluator.plan import Configuration, StationPlan, plan
from evaluator.plan.route import PipelinePlan
from evaluator.report.search import question_of
from evaluator.results.schema import axes_of
from evaluator.scenario import Axis, Deployment, Scenario, Workload, load_scenario
from evaluator.scenario.deployment import STAGE, Pool
from evaluator.scenario.routers import written_routers
from evaluator.search.designs import without_rates
from evaluator.traffic.jobs import Jobs
from evaluator.traffic.request_sampler import RequestSampler
from evaluator.traffic.requests import cached_by_content
from evaluator.traffic.roles import ROLES
from evaluator.yaml import loads_yaml

if TYPE_CHECKING:
    import xarray as xr

PREDICTED = (
    "goodput_rps", "output_tok_per_s", "tok_per_s_per_gpu", "devices", "usd_per_hour", "usd_per_mtok", "utilisation",
)  # fmt: skip


@dataclass(frozen=True)
class PoolDesign:
    """A pool that answers. ``keys`` are those of a scenario, with all that the simulation took stated."""

    name: str
    keys: dict[str, Any]
    model: Model
    longest: int  # tokens of the longest request, prompt and output
    published: str | None = None  # the repository by whose name the scenario calls the model

    @property
    def replicas(self) -> int:
        return int(self.keys["replicas"])

    @property
    def devices(self) -> int:
        """Of one replica."""
        split = ("tensor_parallel", "pipeline_parallel", "data_parallel", "prefill_context_parallel")
        return math.prod(int(self.keys[key]) for key in split)

    @property
    def role(self) -> str:
        return str(self.keys["role"])

    @property
    def engine(self) -> str:
        return str(self.keys["engine"])


@dataclass(frozen=True)
class SentTraffic:
    """What clients send: the requests of a workload as they come to the LLM."""

    workload: Workload
    sampler: RequestSampler
    pipeline: PipelinePlan | None  # what stages make of requests before they come to the LLM
    vocabulary: int  # ids that every model of the servers has
    empty: bool = False  # the simulated prefix caches began empty, and found system prompts as they came

    @cached_property
    def jobs(self) -> Jobs:
        """The requests of the first seed, which the load's head and its lines are made of."""
        workload = self.workload
        # As a single pool gets them: what prefill leaves to decode is the servers' affair, and clients send whole
        # requests.
        return self.sampler.jobs(workload, workload.seeds[0], ROLES["mixed"], pipeline=self.pipeline)


@dataclass(frozen=True)
class Design:
    """The design that was chosen. ``router`` and ``transfer`` are as in a scenario; ``rate_rps`` None: as it says."""

    source: str
    title: str
    chosen: str
    config: int
    pools: tuple[PoolDesign, ...]
    router: Any
    transfer: dict[str, Any]
    traffic: SentTraffic
    predicted: dict[str, Any]
    left_out: tuple[str, ...]
    autoscaling_devices: int | None = None

    @property
    def engine(self) -> str:
        return self.pools[0].engine

    @property
    def phases(self) -> bool:
        """Whether prefill and decode are apart."""
        return any(pool.role != "mixed" for pool in self.pools)

    @property
    def router_of_phase(self) -> dict[str, Any]:
        """The routers of prefill and decode, where each has one of its own; else none."""
        # A router with keys is a mapping, too, of its name to them: only the names of phases tell the two apart.
        apart = isinstance(self.router, dict) and set(self.router) <= {"prefill", "decode"}
        return self.router if apart else {}


def begins_empty(configuration: Configuration) -> bool:
    """Whether its prefix caches begin empty: where blocks are found by their content they do."""
    return any(cached_by_content(configuration.workload, pool.deployment) for pool in configuration.answering)


def router_name(router: Any) -> str:
    """The name of a router as a scenario has it: by its name alone, or with keys."""
    return router if isinstance(router, str) else next(iter(router))


def router_keys(router: Any) -> dict[str, Any]:
    """The router's keys that are set."""
    keys = {} if isinstance(router, str) else router[router_name(router)]
    return {key: value for key, value in keys.items() if value is not None}


def read_design(ds: xr.Dataset, select: tuple[str, ...], source: str) -> Design:
    """The chosen design of a result (``choice.choose``). Errors: InputError."""
    row, chosen = choose(ds, select, source)
    scenario = _scenario_of(ds, source)
    config = int(ds["config"].values[row])
    # A search has taken the axis of the rate out, so that the steps of its rows are those of the others.
    if "search" in ds.attrs:
        scenario, _ = without_rates(scenario)
    # Planned anew: a result has the figures of a design and not its parts, of which every flag is to be stated.
    whole = plan(_at(scenario, ds, row), simulator="auto")
    configuration = whole.configurations[0]
    if configuration.status != OK:
        raise InputError(f"{source}: the design that was chosen cannot run any more: {configuration.status}")
    deployment = whole.grid.points[0][1]
    beside = [station.name for station in configuration.answering if station.deployment.role == "mixed"]
    if 0 < len(beside) < len(configuration.answering):
        raise InputError(
            f"{source}: mixed pools ({', '.join(beside)}) beside prefill and decode pools cannot be written: no router "
            "of an engine sends requests to both; write them as two designs behind a gateway that tells requests apart"
        )
    sampler = RequestSampler()
    # A decode side gives all tokens but the first, and its server is asked for all.
    longest = max(
        station.extremes.sequence + (station.deployment.role == "decode") for station in configuration.answering
    )
    return Design(
        source=source,
        title=str(ds.attrs.get("title", scenario.name)),
        chosen=chosen,
        config=config,
        pools=tuple(
            replace(_pool(station, longest), published=_published(ds, station.design.model.name))
            for station in configuration.answering
        ),
        router=written_routers(deployment.router),
        transfer=written(deployment.transfer),
        traffic=SentTraffic(
            # The sampler is shared with it: the load is drawn by the same random numbers as the prediction.
            _workload(ds, row, configuration.workload, sampler),
            sampler,
            configuration.pipeline,
            vocabulary_of(configuration),
            begins_empty(configuration),
        ),
        predicted=_predicted(ds, row),
        left_out=_left_out(deployment, configuration.workload),
        autoscaling_devices=deployment.autoscaling_devices,
    )


def _scenario_of(ds: xr.Dataset, source: str) -> Scenario:
    """The scenario that a result holds: its text, and not the file it came from, which may have changed since."""
    if "scenario" not in ds.attrs:
        raise InputError(f"{source}: does not hold its scenario; run the sweep or search again")
    try:
        tree = loads_yaml(str(ds.attrs["scenario"]), source)
        if not isinstance(tree, Mapping):  # a text would be taken for the path of a file
            raise InputError(f"{source}: its attribute scenario is damaged")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InputWarning)  # was told when the result was made
            return load_scenario(tree)
    except InputError as error:
        raise InputError(
            f"{error} (the scenario is that of {source}; files that it names are looked for in the current directory)"
        ) from None


def _published(ds: xr.Dataset, entry: str) -> str | None:
    """The repository by whose name the scenario calls a model of the catalog; None where it has none, or several.

    An entry stands for all models with its layers, as llama-3.1-70b for Llama-3.3-70B-Instruct.
    """
    written_names = {
        text
        for text in _texts(loads_yaml(str(ds.attrs["scenario"]), ""))
        if text.count("/") == 1 and not text.startswith((".", "/")) and _entry_or_none(text) == entry
    }
    return written_names.pop() if len(written_names) == 1 else None


def _texts(tree: Any) -> Iterator[str]:
    """All texts of a scenario, and the names that are keys."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _texts(key)
            yield from _texts(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _texts(value)


def _entry_or_none(text: str) -> str | None:
    try:
        return entry_named(text)
    except InputError:  # of another model, or of none: paths and the like
        return None


def vocabulary_of(configuration: Configuration) -> int:
    """Of the model that answers; of several the least, whose ids are ids of all."""
    return min(station.design.model.vocabulary for station in configuration.answering)


def _at(scenario: Scenario, ds: xr.Dataset, row: int) -> Scenario:
    """The scenario with the steps of one row in the place of its sweep.

    A search adds axes of its own behind those of the scenario, of layouts and of replicas: they are as the coordinates
    have them.
    """
    sizes = [int(axis["size"]) for axis in json.loads(ds.attrs.get("grid", "[]"))]
    axes = list(scenario.sweep)
    # Rows are known by their steps: an axis of another length (a table that was edited) would make another design of
    # the same row.
    if [len(axis.values) for axis in axes] != sizes[: len(axes)]:
        raise InputError("the sweep of the result is not that of the scenario in it; run the sweep or search again")
    # ``config`` and not the place in the dataset, which may be a selection of the grid's rows.
    steps = np.unravel_index(int(ds["config"].values[row]), tuple(sizes)) if sizes else ()
    chosen = [
        replace(axis, values=(axis.values[step],), changes=(axis.changes[step],))
        for axis, step in zip(axes, steps, strict=False)
    ]
    for names in axes_of(ds)[len(axes) :]:
        changes = {}
        for name in names:
            # The coordinate's own name is the end of the key; the whole key stands in its description
            # alone.
            path = str(ds[name].attrs["description"]).removeprefix("swept: ")
            if "." in path:  # else it names the steps
                changes[path] = ds[name].values[row].item()
        chosen.append(Axis(names[0], (0,), (changes,), tuple(changes)))
    # Conditions were on the whole grid, and hold for this row since it is in the result.
    return replace(scenario, sweep=tuple(chosen), where=())


def _workload(ds: xr.Dataset, row: int, workload: Workload, sampler: RequestSampler) -> Workload:
    """The workload at the rate that a search found, and as long as its last run."""
    if "requests_run" in ds:
        workload = replace(workload, requests=int(np.broadcast_to(ds["requests_run"].values, ds.sizes["config"])[row]))
    if "search" not in ds.attrs:
        return workload
    # With a rate asked for, the search varied the replicas and left it; without, the rate is what it found.
    rate = question_of(ds)["rate_rps"]
    rate = float(ds["goodput_rps"].values[row]) if rate is None else float(rate)
    return sampler.at_rate(workload, rate)


def _pool(station: StationPlan, longest: int) -> PoolDesign:
    deployment, replica = station.deployment, station.design.ready
    kv = deployment.kv
    tokens = replica.kv.capacity_tokens
    # Windows and states keep less of a sequence the longer it is: a number of tokens would be another amount of KV
    # there, and the server's own fraction of memory has to do.
    if kv.capacity_tokens is None and station.design.model.keeps_all_tokens and np.isfinite(tokens):
        kv = replace(kv, capacity_tokens=int(tokens))
    block = deployment.shared_block_tokens
    if kv.capacity_tokens is not None:  # whole blocks, which is what there is room for
        kv = replace(kv, capacity_tokens=kv.capacity_tokens // block * block)
    # The engine's default depends on the device and its release: said as a flag, the server has it whatever
    # its own would be.
    batching = replace(deployment.batching, max_num_batched_tokens=station.max_num_batched_tokens)
    stated = replace(deployment, kv=kv, batching=batching)
    keys = {name: written(getattr(stated, name)) for name in table_of(Pool)}
    return PoolDesign(
        station.name,
        tree_of(leaves(keys, WHOLE)),
        station.design.model,
        longest,
    )


def _predicted(ds: xr.Dataset, row: int) -> dict[str, Any]:
    """What the result says of the design that a client can measure, in seconds and tokens per second."""
    figures: dict[str, Any] = {}
    for name in PREDICTED:
        # Figures by seed or by stage have more dimensions, and no client measures them.
        if name in ds and ds[name].dims == ("config",) and np.isfinite(ds[name].values[row]):
            figures[name] = float(ds[name].values[row])
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        if name in ds and ds[name].dims == ("config", "quantile"):
            levels = zip(ds["quantile"].values.tolist(), ds[name].values[row].tolist(), strict=True)
            figures[name] = {f"p{100 * level:g}": value for level, value in levels if np.isfinite(value)}
    return figures


def unsent(workload: Workload) -> list[str]:
    """What of the requests no load says, in words."""
    notes = []
    if len(workload.pipelines) > 1:
        notes.append("requests of several pipelines are sent alike: what their other stages do to them is left out")
    of_trace = workload.trace is not None and workload.trace.priority is not None
    if of_trace or any(entry.priority for entry in workload.classes.values()):
        notes.append("requests are sent without their priorities: the load says none")
    if workload.adapters is not None:
        notes.append("requests are sent to the model itself: the load does not say which adapter each names")
    if workload.reasoning.several:
        notes.append("requests with several branches are sent with one: their longest")
    return notes


def _left_out(deployment: Deployment, workload: Workload) -> tuple[str, ...]:
    """What of a design no engine is started with."""
    notes = []
    stages = [name for name, stage in deployment.pipeline.items() if not stage.of_llm]
    if stages:
        notes.append(
            f"the stages {', '.join(stages)} of the pipeline are left out: they are services of their own beside the "
            "LLM, and predicted times of whole requests have them; what they add to prompts is in the load"
        )
    pools = [name for name, pool in (deployment.pools or {}).items() if pool.role == STAGE]
    if pools:
        notes.append(f"the pools {', '.join(pools)}, which serve stages, are left out")
    notes += unsent(workload)
    for where in (deployment, *(deployment.pools or {}).values()):
        # A device with nothing of its own but a price and a name is the one of the catalog.
        if isinstance(where.hardware, WhatIf) and device(where.hardware).hypothetical:
            notes.append(
                f"hardware {_described(where.hardware)} is hypothetical: the flags are those of the design, and no "
                "such device runs them; one that exists is described in a FILE.yaml"
            )
        # A pool that says nothing has the hardware beside the pools, which is told once.
        if where.hardware is not None and where.role != STAGE:
            known_device = (
                device(where.hardware) if isinstance(where.hardware, WhatIf) else load_hardware(where.hardware)
            )
            if known_device.maker not in ("NVIDIA", ""):
                notes.append(
                    "containers are NVIDIA's builds of the engine, and ask for nvidia.com/gpu: devices of "
                    f"{known_device.maker} want their own image and resource"
                )
        if isinstance(where.model, WhatIf):
            notes.append(
                f"model {_described(where.model)} is hypothetical: name a repository that has such a model with "
                "--model-id"
            )
    return tuple(dict.fromkeys(notes))


def _described(what: WhatIf) -> str:
    """``mi355x {like mi325x, memory_bandwidth 8000000000000.0}``, without a name where it has none."""
    figures = what.parameters
    called = figures.pop("name", "")
    return f"{called} {{{WhatIf.of(figures)}}}".strip()
