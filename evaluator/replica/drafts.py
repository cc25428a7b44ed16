"""What drafts tokens on a replica: its operators, its memory, and why it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from evaluator.catalog.calibration import Calibration
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.model import LayerKind, Model, MoeFeedForward
from evaluator.cost.dtypes import BYTES, weight_dtypes
from evaluator.cost.kernel import Operator
from evaluator.cost.memory import model_window
from evaluator.cost.operators import operators
from evaluator.cost.parallel import Parallel, in_lockstep, parallel_problem
from evaluator.cost.precision import Precision
from evaluator.cost.speculative import joining, module_operators, prediction_module
from evaluator.cost.weights import weight_bytes
from evaluator.replica.spec import ReplicaSpec
from evaluator.speculation import Drafting


@dataclass(frozen=True)
class Drafter:
    """What drafts on the devices of a replica, split over them as the model that verifies.

    ``operators`` None: it takes no time there. ``layers`` keep KV of every sequence, too; ``weight_bytes`` are those of
    one device.
    """

    drafting: Drafting
    operators: tuple[Operator, ...] | None = None
    layers: tuple[LayerKind, ...] = ()
    weight_bytes: float = 0.0


def drafter(spec: ReplicaSpec, model: Model, load: Callable[[Any], Model]) -> Drafter | None:
    """What drafts; None where nothing does. ``load`` gives the model of a name or a description."""
    drafting, precision = spec.drafting, spec.precision
    if drafting is None or drafting.method == "ngram":
        return None if drafting is None else Drafter(drafting)
    if drafting.method == "mtp":
        found, layers = module_operators(model, precision, spec.parallel), prediction_module(model).layers
        return Drafter(drafting, found, layers, _module_bytes(model, precision, spec.parallel))
    draft = load(drafting.model)
    parallel = _split(spec.parallel, draft)
    found = operators(draft, precision, parallel)
    return Drafter(drafting, found, draft.layers, weight_bytes(draft, precision, parallel))


def _split(parallel: Parallel, draft: Model) -> Parallel:
    """The split of the model that verifies; a draft model without experts has none to spread."""
    experts = any(isinstance(kind.feed_forward, MoeFeedForward) for kind in draft.layers)
    return parallel if experts else replace(parallel, expert=1)


def _module_bytes(model: Model, precision: Precision, parallel: Parallel) -> float:
    """Of the layer and of the product that joins its inputs; embedding and head are the model's own."""
    one = prediction_module(model)
    two = replace(one, layers=(replace(one.layers[0], count=2),))
    layer = weight_bytes(two, precision, parallel) - weight_bytes(one, precision, parallel)
    joins, dtype = joining(model), weight_dtypes(model, precision)["attention"]
    return layer + joins.inputs * joins.outputs * BYTES[dtype]


def drafting_problem(
    spec: ReplicaSpec, model: Model, hardware: Hardware, calibration: Calibration, load: Callable[[Any], Model]
) -> tuple[str, bool] | None:
    """(why the replica cannot draft and what to do, whether no engine could); None where it can, or need not."""
    drafting = spec.drafting
    if drafting is None:
        return None
    if calibration.form != "roofline" or calibration.eager is not None or calibration.dispatch_s:
        return (
            f"speculative with calibration {calibration.name}, which does not say what single operators take; use "
            "calibration auto or datasheet, or leave out speculative"
        ), False
    if not model.gives_tokens:
        return f"speculative with {model.name}, which gives a vector and no tokens; leave it out", True
    if in_lockstep(model, spec.parallel):
        return "speculative with data_parallel ranks that share experts; leave out the one or the other", False
    if drafting.method != "ngram" and spec.parallel.pipeline > 1:
        return (
            f"speculative.method {drafting.method} with pipeline_parallel; use tensor_parallel, or method ngram"
        ), False
    return _model_problem(spec, model, hardware, load(drafting.model)) if drafting.method == "draft" else None


def _model_problem(spec: ReplicaSpec, model: Model, hardware: Hardware, draft: Model) -> tuple[str, bool] | None:
    """Of a draft model. Tokens are compared by their numbers: vLLM, too, demands equal vocabularies (``config``)."""
    if draft.vocabulary != model.vocabulary:
        return (
            f"speculative.model {draft.name} has a vocabulary of {draft.vocabulary:,} tokens, {model.name} one of "
            f"{model.vocabulary:,}, so that neither can read what the other writes; use a draft model of its family"
        ), True
    if model_window(draft) not in (None, model_window(model)):
        return (
            f"speculative.model {draft.name} has an attention window of {model_window(draft):,} tokens that "
            f"{model.name} has not; use another draft model"
        ), False
    if in_lockstep(draft, _split(spec.parallel, draft)):
        return (
            f"speculative.model {draft.name} with data_parallel ranks that would share its experts; use another",
            False,
        )
    undivided = parallel_problem(draft, hardware, _split(spec.parallel, draft))
    return None if undivided is None else (f"speculative.model {draft.name}: {undivided}", True)
