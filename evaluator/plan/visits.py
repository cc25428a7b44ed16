"""What becomes of requests on their way through the stages of a configuration: their visits, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from evaluator.scenario import STAGE
from evaluator.stages import Pass, Work
from evaluator.traffic.jobs import Demand
from evaluator.traffic.requests import Tokens
from evaluator.traffic.roles import ROLES


@dataclass(frozen=True, eq=False)
class StageVisitPlan:
    """One visit of the requests to a stage (``work`` is what it does) or to the LLM (``stage`` None).

    ``there`` (request,) are those that come; None: all. ``tokens`` are the requests as they come.
    """

    stage: int | None
    there: NDArray[np.bool_] | None
    tokens: Tokens
    work: Work | None = None

    @property
    def ids(self) -> NDArray[np.int64]:
        """The requests that come."""
        return np.arange(len(self.tokens.prompt_tokens)) if self.there is None else np.flatnonzero(self.there)


@dataclass(frozen=True, eq=False)
class RequestRoutes:
    """What becomes of all requests of a seed on their way, visit by visit, if nobody asks when."""

    visits: tuple[StageVisitPlan, ...]
    _demands: dict[tuple[int, int], Demand] = field(default_factory=dict)

    @cached_property
    def llm(self) -> tuple[StageVisitPlan, ...]:
        """The visits to the LLM."""
        return tuple(visit for visit in self.visits if visit.stage is None)

    @property
    def tokens(self) -> Tokens:
        """The requests as they first come to the LLM."""
        return self.llm[0].tokens

    @cached_property
    def first(self) -> dict[int, StageVisitPlan]:
        """The first visit to every stage."""
        found: dict[int, StageVisitPlan] = {}
        for visit in self.visits:
            if visit.stage is not None:
                found.setdefault(visit.stage, visit)
        return found

    @property
    def on_decode(self) -> int | None:
        """The first stage that brings KV to a decode side; None: there is none."""
        return next((stage for stage, visit in self.first.items() if visit.work and visit.work.on_decode), None)

    def ahead(self, stage: int) -> bool:
        """Whether a stage begins before its turn."""
        work = self.first[stage].work
        return work is not None and work.ahead

    def asked(self, visit: StageVisitPlan, step: int) -> Demand:
        """What the passes of a step ask of its pool for those who come; kept, since rates share it."""
        key = id(visit), step
        if key not in self._demands:
            assert visit.work is not None
            work = visit.work.steps[step]
            assert isinstance(work, Pass)
            self._demands[key] = pass_demand(work, visit.ids, len(visit.tokens.prompt_tokens))
        return self._demands[key]


def pass_demand(step: Pass, ids: NDArray[np.int64], requests: int) -> Demand:
    """What passes of a model for these requests, (request,), ask of its pool: ``step.sequences`` jobs for each."""
    tokens = np.broadcast_to(np.asarray(step.tokens, dtype=np.int64), requests)[ids]
    prompt = np.repeat(np.maximum(tokens, 1), step.sequences)
    none = np.zeros_like(prompt)
    return Demand.of(Tokens(prompt, np.ones_like(prompt), none, none, none), ROLES[STAGE])
