"""The stages of a request's pipeline beside the LLM: one file each.

The contract. A file holds the stage's parameters, a frozen dataclass whose fields say with ``key`` how the scenario
writes them, and its latency function: from the parameters and a ``StageRequests`` (all requests of a configuration
under one seed, the pool's hardware, the served model) to ``Work``, the steps that a request passes and what it is like
behind them. Both go into one ``StageKind``, which is listed in ``KINDS`` below; a kind of one's own is registered from
anywhere with ``register``:

    @dataclass(frozen=True)
    class Translate:
        seconds_per_token: float = key(quantity("s", above=0), 2e-5, "Per token of the prompt.")

    def work(translate: Translate, visit: StageRequests) -> Work:
        return Work((Served(translate.seconds_per_token * visit.prompt_tokens),), adds_tokens=8)

    register(StageKind("translate", Translate, work))

What runs the steps is not the stage's business: ``Delay``, ``Served``, ``Batched``, ``Pass`` and ``Shipped`` are
stations of the chain and of the reference alike. A step on a pool (``deployment.pools.NAME: {role: stage}``) uses the
pool's devices, which are paid for and draw power; ``Pass`` needs one. Everything random is drawn from ``visit.rng()``
for all requests, so that it depends on seed and request only. No stage reads a clock: what depends on times (queues) is
in the steps.
"""

from evaluator.errors import InputError
from evaluator.keys import (
    Place,
    Reader,
    choice,
    count,
    flag,
    key,
    known,
    many,
    model_name,
    number,
    quantity,
    section,
    text,
)
from evaluator.registry import Registry
from evaluator.stages.encode import ENCODE
from evaluator.stages.kv_fetch import KV_FETCH
from evaluator.stages.postprocess import POSTPROCESS
from evaluator.stages.preprocess import PREPROCESS
from evaluator.stages.record import StageKind, StagePool, StageRequests, Work, stage_rng
from evaluator.stages.retrieve import RETRIEVE
from evaluator.stages.steps import Batched, Delay, Pass, Served, Shipped, Step
from evaluator.stages.tool import TOOL

__all__ = [
    "KINDS",
    "Batched",
    "Delay",
    "Pass",
    "Place",
    "Reader",
    "Served",
    "Shipped",
    "StageKind",
    "StagePool",
    "StageRequests",
    "Step",
    "Work",
    "choice",
    "count",
    "flag",
    "key",
    "kind_of",
    "known",
    "many",
    "model_name",
    "number",
    "quantity",
    "register",
    "section",
    "stage_rng",
    "text",
]

KINDS: Registry[StageKind] = Registry("stage", (PREPROCESS, ENCODE, RETRIEVE, KV_FETCH, TOOL, POSTPROCESS))

OF_EVERY_STAGE = ("stage", "pool", "only", "back_to", "times")
"""Keys that the pipeline itself reads, so that no kind can have them."""


def register(kind: StageKind) -> None:
    """Make a kind known to scenarios. ValueError for a name that is taken, or keys that every stage has."""
    # ``prefill`` and ``decode`` are stages of every pipeline, too; the engine's pools run them, so that they have no
    # kind. Registering the same object again is allowed: a module that is imported twice does that.
    taken = {**KINDS, "prefill": None, "decode": None}
    if kind.name in taken and taken[kind.name] is not kind:
        raise ValueError(f"there is a stage {kind.name} already")
    both = [name for name in kind.table if name in OF_EVERY_STAGE]
    if both:
        raise ValueError(f"stage {kind.name}: every stage has the key {both[0]}; give it another name")
    KINDS[kind.name] = kind


def kind_of(name: str) -> StageKind:
    """The kind of this name. InputError if there is none."""
    if name not in KINDS:
        raise InputError(f"no stage {name!r}; the stages are prefill, decode, {', '.join(KINDS)}")
    return KINDS[name]
