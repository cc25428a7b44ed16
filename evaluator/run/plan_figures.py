"""What a plan knows before anything runs: figures of its rows, quantiles to report, notes for the dataset."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evaluator.metrics import bounds_of, quantile_levels
from evaluator.plan import Configuration, Plan, StationPlan
from evaluator.results.schema import attributes
from evaluator.scenario import Scenario, all_objectives
from evaluator.stages import kind_of


def known_of(configurations: list[Configuration]) -> dict[str, np.ndarray]:
    """What is known of every row, also of those that cannot run, and memory where there is a replica.

    Of several pools it is the last, which keeps the KV of whole requests.
    """
    # With prefill and decode apart the decode pool is the one whose KV capacity bounds concurrency; a prefill pool
    # holds a request only until its KV is sent.
    replicas = [configuration.answering[-1].design.replica for configuration in configurations]
    return {
        "config": np.array([configuration.config for configuration in configurations], dtype=np.int64),
        "devices": np.array([configuration.devices for configuration in configurations], dtype=np.int64),
        "model": _joined(configurations, lambda station: str(station.design.model.name)),
        "hardware": _joined(configurations, lambda station: str(station.design.hardware.title)),
        # With `requests: auto` every design has its own number.
        "requests_run": np.array(
            [int(configuration.workload.requests) for configuration in configurations], dtype=np.int64
        ),
        "weights_bytes": np.array([np.nan if replica is None else replica.weight_bytes for replica in replicas]),
        "kv_capacity_tokens": np.array(
            [np.nan if replica is None else replica.kv.capacity_tokens for replica in replicas]
        ),
    }


def _joined(configurations: list[Configuration], named: Callable[[StationPlan], str]) -> np.ndarray:
    """What the pools that give the answers are called, (config,), each name once."""
    return np.array(
        [" + ".join(dict.fromkeys(map(named, configuration.answering))) for configuration in configurations]
    )


def levels_of(whole: Plan) -> np.ndarray:
    """The quantiles that are reported, those of the objectives among them."""
    return quantile_levels(bounds_of(whole.labels.objectives))


def attributes_of(scenario: Scenario) -> dict[str, str]:
    """What a dataset says of its scenario."""
    objectives = all_objectives(scenario.workload, scenario.slo)
    seeds, calibration = scenario.workload.seeds, scenario.deployment.calibration
    return attributes(scenario.name, scenario.text, seeds, calibration, objectives)


def notes_of(whole: Plan) -> dict[str, str]:
    """What a reader of the numbers should know of stages and models, as attributes."""
    return stage_note(whole) | model_note(whole)


def model_note(whole: Plan) -> dict[str, str]:
    """What was assumed where the config.json of a model did not say it; nothing where nothing was."""
    stations = (station for configuration in whole.configurations for station in configuration.stations)
    models = {id(station.design.model): station.design.model for station in stations}.values()
    notes = {f"{model.name}: {assumption}": None for model in models for assumption in model.assumptions}
    return {"model_note": "; ".join(notes)} if notes else {}


HOLDS = (
    "holds each answer until it is whole, so that its first token comes with its last: TTFT is the time of the whole "
    "answer and TPOT is 0, which meets any bound on it"
)


def stage_note(whole: Plan) -> dict[str, str]:
    """What stages of the grid's pipelines have to say of their parameters, as an attribute; nothing where none has."""
    deployments = {id(deployment): deployment for _, deployment, _ in whole.grid.points}.values()
    notes: dict[str, None] = {}
    for deployment in deployments:
        answered = False
        for name, stage in deployment.pipeline.items():
            # Only stages behind the answer can hold it up; those that a pipeline goes back from (``back_to``) give a
            # new prompt, and the client sees nothing of what went through them.
            answered |= stage.kind == "decode"
            if stage.of_llm:
                continue
            kind = kind_of(stage.kind)
            note = kind.note(stage.parameters)
            if note is not None:
                notes[f"pipeline.{name}: {note}"] = None
            if answered and stage.back_to is None and not kind.streams(stage.parameters):
                notes[f"pipeline.{name}: {HOLDS}"] = None
    return {"stage_note": "; ".join(notes)} if notes else {}
