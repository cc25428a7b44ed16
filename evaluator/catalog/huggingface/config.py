"""One level of a ``config.json``: remembers which keys were read, so that the rest can be refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.catalog.fields import Fields
from evaluator.catalog.model import FeedForward, LayerKind, Mixer
from evaluator.errors import InputError

# Keys that change neither the size nor the shape of the text model, whatever the family.
IGNORED = frozenset(
    """
    _attn_implementation_autoset _name_or_path architectures attention_dropout auto_map bad_words_ids
    begin_suppress_tokens boi_token_index bos_token_id decoder_start_token_id embd_pdrop eoi_token_index
    eos_token_id for_llm_compressor hidden_dropout id2label image_token_id image_token_index initializer_range
    label2id layer_norm_epsilon layer_norm_eps max_length model_type norm_topk_prob original_max_position_embeddings
    output_attentions output_hidden_states output_router_logits pad_token_id partial_rotary_factor pretraining_tp
    problem_type resid_pdrop rms_norm_eps rope_parameters rope_scaling rope_theta router_aux_loss_coef
    router_jitter_noise sep_token_id suppress_tokens task_specific_params transformers_version unsloth_version
    use_cache use_qk_norm video_token_id vision_config vision_end_token_id vision_start_token_id
    """.split()
)


@dataclass(frozen=True)
class Family:
    """How one ``model_type`` is read: its layers, the further keys that do not matter, and its tying default."""

    layers: Callable[[Config], tuple[LayerKind, ...]]
    ignored: frozenset[str] = frozenset()
    tied_default: bool = False


class Config(Fields):
    """The keys of one level of a ``config.json``; a key whose value is null counts as absent."""

    def __init__(self, content: Any, where: str) -> None:
        super().__init__(content, where)
        present = {key: value for key, value in self.values.items() if value is not None}
        self.absent = [key for key in self.values if key not in present]
        self.values = present

    def text_config(self) -> Config:
        """The level that describes the language model: ``text_config`` of a multimodal model, or this one."""
        if "text_config" not in self.values:
            return self
        return Config(self.raw("text_config"), self.place("text_config"))

    def entries(self, key: str, kind: type) -> list[Any]:
        """The list below ``key`` with entries of ``kind``; an absent one is empty."""
        value = self.raw(key, None)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise InputError(f"{self.place(key)}: expected a list of entries of type {kind.__name__}")
        return list(value)

    def expect(self, key: str, *allowed: Any) -> None:
        """``key``, where it is there, must be one of ``allowed``: other values are another structure."""
        value = self.raw(key, None)
        if value is not None and value not in allowed:
            shown = " or ".join(repr(item) for item in allowed)
            raise InputError(f"{self.place(key)}: {value!r} is a structure that is not supported (only {shown})")

    def finish(self, ignored: Iterable[str] = ()) -> None:
        """Refuse every key that was neither read nor is known to be irrelevant."""
        known = IGNORED.union(ignored, self._asked)
        unknown = [key for key in [*self.values, *self.absent] if key not in known]
        if unknown:
            raise InputError(
                f"unknown structural field '{unknown[0]}' in {self.where}: no reader knows what it does to the model"
                " (remove it if it changes neither shapes nor sizes)"
            )


def layer_kinds(layers: Sequence[tuple[Mixer | None, FeedForward | None]]) -> tuple[LayerKind, ...]:
    """Equal layers merged into kinds with counts, in the order of their first appearance."""
    counts: dict[tuple[Mixer | None, FeedForward | None], int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(LayerKind(count, *layer) for layer, count in counts.items())


def layer_types(config: Config, layers: int, allowed: Mapping[str, Any]) -> list[str] | None:
    """The list ``layer_types`` where the config has one, each entry a key of ``allowed``."""
    types = config.sequence("layer_types", None)
    if types is None:
        return None
    if len(types) != layers:
        raise InputError(f"{config.place('layer_types')}: {len(types)} entries for {layers} layers")
    for word in types:
        if word not in allowed:
            raise InputError(
                f"{config.place('layer_types')}: unknown layer type {word!r} (known: {', '.join(allowed)})"
            )
    return list(types)
