"""What drafts tokens on a replica: its operators, its memory, and why it cannot be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from evaluator.catalog.calibration import Calibration
from evaluator.catalog.engines import serving_engine
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.model import LayerKind, Model
from evaluator.cost.blocks import division_problem
from evaluator.cost.dtypes import BYTES, weight_dtypes
from evaluator.cost.gemm import gemm
from evaluator.cost.kernel import Operator
from evaluator.cost.memory import model_window
from evaluator.cost.operators import operators
from evaluator.cost.parallel import Parallel, in_lockstep
from evaluator.cost.precision import Precision
from evaluator.cost.prediction import eagle_head, eagle_joint, module_joint, prediction_module
from evaluator.cost.projections import Projection
from evaluator.cost.weights import rank_parameters, weight_bytes
from evaluator.replica.spec import ReplicaSpec
from evaluator.speculation import Drafting


class Wanted(NamedTuple):
    """Which drafts are wanted for which model; ``load`` reads a draft model by its name or description."""

    spec: ReplicaSpec
    model: Model
    load: Callable[[Any], Model]

    @property
    def drafting(self) -> Drafting:
        """The drafting of the spec, which has one."""
        assert self.spec.drafting is not None
        return self.spec.drafting


@dataclass(frozen=True)
class Drafter:
    """What drafts on the devices of a replica, split over those of a pipeline rank as the model that verifies.

    It is on the last pipeline rank, where the tokens are (vLLM, ``GPUModelRunner.drafter``). ``operators`` are those of
    a pass; None: it takes no time there. ``joins`` run once in each iteration, on the tokens that the model computes.
    ``layers`` keep KV of every sequence, too; ``weight_bytes`` are those of one device. ``max_positions``: of how long
    texts it can read.
    """

    drafting: Drafting
    operators: tuple[Operator, ...] | None = None
    joins: tuple[Operator, ...] = ()
    layers: tuple[LayerKind, ...] = ()
    weight_bytes: float = 0.0
    max_positions: int | None = None


def drafter(spec: ReplicaSpec, model: Model, load: Callable[[Any], Model]) -> Drafter | None:
    """What drafts; None where nothing does. ``load`` gives the model of a name or a description."""
    if model.adapters is not None:
        model = replace(model, adapters=None)  # what drafts has none (vLLM: adapters are of the target model)
    return None if spec.drafting is None else _DRAFTERS[spec.drafting.method](Wanted(spec, model, load))


def _draft_model(wanted: Wanted) -> Drafter:
    draft, precision = wanted.load(wanted.drafting.model), wanted.spec.precision
    # As vLLM splits a draft model by default (`SpeculativeConfig`): over the tensor ranks of the model that verifies.
    parallel = _split(wanted.spec.parallel, draft)
    return Drafter(
        wanted.drafting,
        operators(draft, precision, parallel),
        layers=draft.layers,
        weight_bytes=weight_bytes(draft, precision, parallel),
        max_positions=draft.max_positions,
    )


def _modules(wanted: Wanted) -> Drafter:
    """The modules of the model have embedding and head in common with it."""
    model, precision = wanted.model, wanted.spec.precision
    module, joint = prediction_module(model), module_joint(model)
    parallel = _split(wanted.spec.parallel, module)
    # Modules take turns, but each has a layer and KV of its own.
    count = model.prediction_layers
    module_bytes = _layer_bytes(module, precision, parallel) + _matrix_bytes(joint, module, precision)
    return Drafter(
        wanted.drafting,
        (*operators(module, precision, parallel), gemm(joint, module, precision)),
        # As many layers as modules for the KV, and one module's operators for a pass: they take turns.
        layers=(replace(module.layers[0], count=count),),
        weight_bytes=count * module_bytes + _second_embedding(wanted),
    )


def _eagle_head(wanted: Wanted) -> Drafter:
    """The head has the embedding in common with the model. It stays in 16 bits where the model is quantised."""
    # Heads are published in 16 bits: the checkpoint's own dtypes, whatever the model is quantised to.
    model, precision = wanted.model, replace(wanted.spec.precision, weights="checkpoint")
    head, joint = eagle_head(model, wanted.drafting.vocabulary), eagle_joint(model)
    parallel = _split(wanted.spec.parallel, head)
    # EAGLE-3 heads have a head of their own over fewer tokens; what is shared with the model is the embedding.
    scores = rank_parameters(head, parallel, 0)["head"] * BYTES[weight_dtypes(head, precision)["head"]]
    head_bytes = _layer_bytes(head, precision, parallel) + _matrix_bytes(joint, head, precision)
    return Drafter(
        wanted.drafting,
        operators(head, precision, parallel),
        joins=(gemm(joint, head, precision),),
        layers=head.layers,
        weight_bytes=head_bytes + scores + _second_embedding(wanted),
    )


_DRAFTERS: Mapping[str, Callable[[Wanted], Drafter]] = {
    "draft": _draft_model,
    "mtp": _modules,
    "eagle": _eagle_head,
    # The host looks n-grams up in the text so far while the device computes.
    "ngram": lambda wanted: Drafter(wanted.drafting),
}


def _split(parallel: Parallel, draft: Model) -> Parallel:
    """The split of the model that verifies, on one pipeline rank; a draft model without experts has none to spread."""
    one_rank = replace(parallel, pipeline=1)
    return one_rank if draft.has_experts else replace(one_rank, expert=1, data=1, redundant=0)


def _layer_bytes(single_layer: Model, precision: Precision, parallel: Parallel) -> float:
    """Bytes of the weights of one layer, of a model that has a single one."""
    # The weights of two layers less those of one: embedding, head and norms, which both have, cancel.
    two = replace(single_layer, layers=(replace(single_layer.layers[0], count=2),))
    return weight_bytes(two, precision, parallel) - weight_bytes(single_layer, precision, parallel)


def _matrix_bytes(matrix: Projection, model: Model, precision: Precision) -> float:
    return matrix.inputs * matrix.outputs * BYTES[weight_dtypes(model, precision)[matrix.part]]


def _second_embedding(wanted: Wanted) -> float:
    """Bytes of the embedding on the last pipeline rank, where it is not the first, nor has the table as its head."""
    model, precision, parallel = wanted.model, wanted.spec.precision, wanted.spec.parallel
    # On one rank both use the model's table; a tied head is the table, and is on the last rank already.
    if parallel.pipeline == 1 or model.tied_embeddings:
        return 0.0
    # The whole model's head on one rank has the shape of the embedding, and the same shard.
    table = rank_parameters(model, replace(parallel, pipeline=1), 0)["head"]
    return table * BYTES[weight_dtypes(model, precision)["embedding"]]


def times_problem(spec: ReplicaSpec, calibration: Calibration) -> tuple[str, bool] | None:
    """What a calibration does not say of drafting; as of ``drafting_problem``."""
    # Only a roofline says what single operators take. A floor per iteration does not tell passes of drafts apart.
    if spec.drafting is not None and spec.eager:
        return (
            "speculative with eager: what it takes a host to launch the passes of drafts was not measured; leave out "
            "one of them"
        ), False
    if spec.drafting is None or not (calibration.form != "roofline" or calibration.eager or calibration.dispatch_s):
        return None
    return (
        f"speculative with calibration {calibration.name}, which does not say what single operators take; use "
        "calibration auto or datasheet, or leave out speculative"
    ), False


def drafting_problem(
    spec: ReplicaSpec, model: Model, hardware: Hardware, load: Callable[[Any], Model]
) -> tuple[str, bool] | None:
    """(why the replica cannot draft and what to do, whether no engine could); None where it can, or need not."""
    if spec.drafting is None:
        return None
    if not model.gives_tokens:
        return f"speculative with {model.name}, which gives a vector and no tokens; leave it out", True
    return _PROBLEMS[spec.drafting.method](Wanted(spec, model, load), hardware)


def _modules_problem(wanted: Wanted, hardware: Hardware) -> tuple[str, bool] | None:
    """Modules of a model take turns: vLLM, too, demands a multiple of their number (``SpeculativeConfig``)."""
    name, modules, tokens = wanted.model.name, wanted.model.prediction_layers, wanted.drafting.tokens
    if not modules:
        return (
            f"speculative.method mtp with {name}, which was published without prediction modules; use method eagle for "
            "a head that was trained for it, or say prediction_layers in the model's file"
        ), True
    # Fewer drafts than modules use the first of them.
    if tokens > modules and tokens % modules:
        return (
            f"speculative.tokens {tokens} is no multiple of the {modules} prediction modules of {name}, which take "
            f"turns; use {tokens - tokens % modules} or {tokens - tokens % modules + modules}"
        ), True
    return None


def _eagle_problem(wanted: Wanted, hardware: Hardware) -> tuple[str, bool] | None:
    """What is wrong with an EAGLE head for the model: its vocabulary must be a part of the model's."""
    model, vocabulary = wanted.model, wanted.drafting.vocabulary
    if vocabulary is not None and vocabulary > model.vocabulary:
        return (
            f"speculative.vocabulary {vocabulary:,} exceeds the {model.vocabulary:,} tokens of {model.name}, of which "
            "the head proposes some; use fewer, or leave it out for all"
        ), True
    head = eagle_head(model, vocabulary)
    return _undivided(wanted, head, hardware)


def _model_problem(wanted: Wanted, hardware: Hardware) -> tuple[str, bool] | None:
    """What is wrong with a draft model. Tokens are compared by their numbers, so that vocabularies must be equal, as in
    vLLM (``config``)."""
    spec, model, draft = wanted.spec, wanted.model, wanted.load(wanted.drafting.model)
    if not draft.gives_tokens:
        return f"speculative.model {draft.name} gives a vector and no tokens; use a language model", True
    if draft.vocabulary != model.vocabulary:
        return (
            f"speculative.model {draft.name} has a vocabulary of {draft.vocabulary:,} tokens, {model.name} one of "
            f"{model.vocabulary:,}, so that neither can read what the other writes; use a draft model of its family"
        ), True
    # Contexts of model and drafts are counted together, and a batch has one sum of windowed ones.
    if model_window(draft) not in (None, model_window(model)):
        return (
            f"speculative.model {draft.name} has an attention window of {model_window(draft):,} tokens that "
            f"{model.name} has not; use another draft model"
        ), False
    # Experts that are spread over ranks tie these together in every pass; the model's own batches know nothing
    # of it.
    if in_lockstep(draft, _split(spec.parallel, draft)) and not in_lockstep(model, spec.parallel):
        return (
            f"speculative.model {draft.name} with data_parallel ranks of {model.name}, which have nothing in common "
            "but would share its experts; use a draft model without experts, or more replicas instead"
        ), False
    return _undivided(wanted, draft, hardware)


def _undivided(wanted: Wanted, draft: Model, hardware: Hardware) -> tuple[str, bool] | None:
    spec, split = wanted.spec, _split(wanted.spec.parallel, draft)
    undivided = division_problem(draft, hardware, spec.precision, split, serving_engine(spec.engine).whole_blocks)
    return None if undivided is None else (f"speculative.model {draft.name}: {undivided}", True)


_PROBLEMS: Mapping[str, Callable[[Wanted, Hardware], tuple[str, bool] | None]] = {
    "draft": _model_problem,
    "mtp": _modules_problem,
    "eagle": _eagle_problem,
    "ngram": lambda wanted, hardware: None,
}
