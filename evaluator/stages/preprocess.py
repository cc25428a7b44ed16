"""What is done to a request before it is computed: parsing, tokenising, rewriting, a guard in front of the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evaluator.keys import Place, count, key, model_name, quantity
from evaluator.stages.record import StageKind, StageRequests, Work
from evaluator.stages.steps import Delay, Pass, Served, Step


@dataclass(frozen=True)
class Preprocess:
    """Fixed, linear in the prompt's tokens, and a model that reads the prompt; what is not said takes no time."""

    seconds: float = key(quantity("s", least=0), 0.0, "Of every request.")
    seconds_per_token: float = key(quantity("s", least=0), 0.0, "Of every token of the prompt.")
    servers: int | None = key(
        count(), None, "Requests at a time, first come, first served; any number where absent, or the pool's replicas."
    )
    model: Any = key(model_name, None, "A small model that reads the prompt on the stage's pool, behind that.")
    tokens: int = key(count(least=0), 0, "Tokens that are added to the prompt: a template, what was rewritten.")


def _check(stage: Preprocess, place: Place) -> None:
    if stage.model is None and not stage.seconds and not stage.seconds_per_token:
        raise place.error("takes no time; say seconds, seconds_per_token or model, or leave the stage out")


def work(preprocess: Preprocess, visit: StageRequests) -> Work:
    """By the prompt as it comes."""
    steps: list[Step] = []
    if preprocess.seconds or preprocess.seconds_per_token:
        seconds = preprocess.seconds + preprocess.seconds_per_token * visit.prompt_tokens
        # On a pool with a model the pool's replicas are the model's: tokenising before it runs on the host and bounds
        # nothing. On a pool without a model they are the servers of the text step.
        unbounded = preprocess.servers is None and (visit.pool is None or preprocess.model is not None)
        steps.append(Delay(seconds, "text") if unbounded else Served(seconds, preprocess.servers, name="text"))
    if preprocess.model is not None:
        steps.append(Pass(preprocess.model, visit.prompt_tokens, name="model"))
    return Work(tuple(steps), adds_tokens=preprocess.tokens)


PREPROCESS = StageKind(
    "preprocess",
    Preprocess,
    work,
    "Before the prompt is computed: per token, fixed, or a pass of a model.",
    check=_check,
)
