"""What is known of a kind of stage, what such a stage is told of its requests, and what it answers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluator.catalog.hardware import Hardware
from evaluator.catalog.model import Model
from evaluator.cost.precision import Precision
from evaluator.cost.transfer import SequenceBytes, sequence_bytes
from evaluator.keys import Place, Table, table_of
from evaluator.stages.steps import Step


@dataclass(frozen=True)
class StagePool:
    """A pool of ``deployment.pools`` as a stage sees it: ``replicas`` of ``devices`` devices each."""

    name: str
    hardware: Hardware
    replicas: int
    devices: int


@dataclass(frozen=True, eq=False)
class StageRequests:
    """All requests of one configuration and seed before a stage; (request,) arrays in the order of their ids.

    Requests whose pipeline passes the stage by are among them: what is said of those counts for nothing. So the draws
    of a request do not depend on what others do, and are the same for all configurations.
    """

    stage: str  # its name in the pipeline
    prompt_tokens: NDArray[np.int64]  # as long as they are now, with what stages before have added
    output_tokens: NDArray[np.int64]
    cached_tokens: NDArray[np.int64]  # leading prompt tokens whose KV is there
    seed: int
    model: Model  # that gives the answers
    precision: Precision  # in which it is served
    pool: StagePool | None  # on which the stage runs; None: on nothing that is described
    pools: Mapping[str, StagePool] = field(default_factory=dict)  # all pools with role stage
    turn: int = 0  # how often its requests have come here before
    replicas: int = 1  # among which the requests are spread when they are first computed

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def rng(self) -> np.random.Generator:
        """Random numbers of this stage and seed: the same for all configurations."""
        return stage_rng(self.stage, self.seed, self.turn)

    @cached_property
    def kv(self) -> SequenceBytes:
        """Bytes of the KV of sequences in the cache of the model that gives the answers: ``visit.kv.of(tokens)``."""
        return sequence_bytes(self.model, self.precision.kv, self.precision.activations)


_STAGES = 101  # the random streams of stages, apart from those of the traffic


def stage_rng(name: str, seed: int, turn: int = 0) -> np.random.Generator:
    """The random numbers of what is named so."""
    # By the name of the stage, not its place: a stage that is added in front must not change the draws of those
    # behind it. crc32 and not ``hash``, which Python salts anew in each process.
    return np.random.Generator(
        np.random.PCG64(np.random.SeedSequence([seed, _STAGES, zlib.crc32(name.encode()), turn]))
    )


@dataclass(frozen=True, eq=False)
class Work:
    """What a stage does with its requests: the ``steps`` that each passes, one after the other, and what it leaves.

    ``adds_tokens``: behind the stage the prompt is longer by so many. ``cached_tokens``: leading tokens of the prompt
    whose KV is there behind the stage, less than the prompt (one is always computed); None: as before. ``problem``: why
    the stage can do nothing for its requests, for the status of the configuration. ``ahead``: the steps begin when the
    client sends, beside the stages before this one, and a request goes on when it is through with both. ``on_decode``:
    the KV of the cached tokens is on a decode side, too, so that the prefill side has only the rest to send there.
    """

    steps: tuple[Step, ...]
    adds_tokens: ArrayLike = 0
    cached_tokens: ArrayLike | None = None
    problem: str | None = None
    ahead: bool = False
    on_decode: bool = False


@dataclass(frozen=True)
class StageKind:
    """A kind of stage: ``parameters`` is a frozen dataclass whose fields are ``keys.key``, ``work`` its latency.

    ``work`` gets the parameters and the visit, and must be a pure function: it is asked more than once. Which kinds of
    steps there are, and their names, may depend on the parameters alone. ``streams`` says of the parameters whether
    such a stage, behind the LLM, passes every token on, each later by its time (else it holds the answer until it is
    whole). ``check`` raises InputError where keys do not go together; ``note`` says of parameters that are allowed what
    is odd about them.
    """

    name: str
    parameters: type
    work: Callable[[Any, StageRequests], Work]
    says: str = ""
    streams: Callable[[Any], bool] = lambda parameters: False
    check: Callable[[Any, Place], None] | None = None
    note: Callable[[Any], str | None] = lambda parameters: None

    @cached_property
    def table(self) -> Table:
        """Its keys in a scenario, beside those of every stage."""
        return table_of(self.parameters)
