"""The two files of a comparison -> experiments with what was measured of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from evaluator.errors import InputError
from evaluator.experiments.actuals import read_actuals
from evaluator.experiments.experiment import Experiment
from evaluator.experiments.specifications import identifier, read_specification
from evaluator.yaml import read_text


def read_experiments(specs: str | Path, actuals: str | Path) -> list[Experiment]:
    """The experiments of a specification file with their measured rows, in the order of the file.

    What is wrong with one experiment is its ``problem``; experiments without measurements stay. Errors: InputError
    where a file cannot be read at all, or where no row is of any experiment.
    """
    # Measurements first: if they cannot be read there is nothing to compare with, whatever the specifications say.
    rows = read_actuals(actuals)
    try:
        content = json.loads(read_text(specs).removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise InputError(f"{specs}, line {error.lineno}: not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{specs}: cannot be read ({error})") from None
    entries = content.get("experiments") if isinstance(content, Mapping) else content
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise InputError(f"{specs}: expected a list of experiments, or an object with the key experiments")
    stated = {identifier(entry.get("exp_id")) for entry in entries if isinstance(entry, Mapping)}
    if not stated & set(rows):
        raise InputError(f"{actuals}: no row has the exp_id of an experiment of {specs}")
    return _each_once([read_specification(entry, number, rows) for number, entry in enumerate(entries)])


def _each_once(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Of several with one exp_id the first is measured; the others are refused."""
    seen: set[str] = set()
    unique = []
    for experiment in experiments:
        twice = experiment.id in seen and not experiment.problem
        # The problem is kept of those that cannot be read: that they are there twice is not what is wrong with them.
        unique.append(
            replace(experiment, problem=f"exp_id {experiment.id} is there twice", measured=()) if twice else experiment
        )
        seen.add(experiment.id)
    return unique
