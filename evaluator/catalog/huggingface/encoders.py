"""Vision and audio encoders of a multimodal model: how many parameters they hold, estimated from their configs."""

from __future__ import annotations

from collections.abc import Mapping

from evaluator.catalog.huggingface.config import LARGEST, MOST_LAYERS
from evaluator.errors import InputError

ENCODERS = ("vision_config", "audio_config", "vit_config", "visual_config", "sound_config", "speech_config",
            "vision_tower_config", "projector_config", "aligner_config")  # fmt: skip

_HIDDEN = ("hidden_size", "vt_hidden_size", "embed_dim", "d_model", "width")
_LAYERS = ("num_hidden_layers", "vt_num_hidden_layers", "depth", "encoder_layers", "num_layers", "layers", "num_blocks",
           "conf_num_hidden_layers")  # fmt: skip
_INNER = ("intermediate_size", "vt_intermediate_size", "encoder_ffn_dim", "mlp_dim")
_OUT = ("out_hidden_size", "text_hidden_size", "projector_hidden_size", "vision_output_dim", "projection_dim")


def encoder_parameters(key: str, content: object, hidden: int, where: str) -> int | None:
    """Parameters of the encoder ``content`` with a two-matrix projector into ``hidden``; None where it states no size.

    A transformer encoder (arXiv:2010.11929): 4 h^2 of attention and 2 h x inner per layer (3 where it states a gated
    activation), patch embedding, projector. Published towers are within some 10 % of it.
    """
    if not isinstance(content, Mapping):
        raise InputError(f"{where}: {key}: expected a mapping of keys to values")
    width, layers = _figure(content, _HIDDEN, where, key), _figure(content, _LAYERS, where, key)
    if width is None or layers is None:
        return None
    if layers > MOST_LAYERS:
        raise InputError(f"{where}: {key}: {layers} layers are absurd")
    inner = _figure(content, _INNER, where, key)
    if inner is None:
        ratio = content.get("mlp_ratio", 4)
        inner = int(width * ratio) if isinstance(ratio, int | float) and 0 < ratio < 100 else 4 * width
    act = str(content.get("hidden_act", content.get("hidden_activation", "gelu")))
    sides = 3 if act in ("silu", "swiglu", "gelu_pytorch_tanh_glu") else 2
    patch = content.get("patch_size", 0)
    patch = patch if isinstance(patch, int) and 0 <= patch < 1000 else 0
    merged = content.get("spatial_merge_size", content.get("merge_size", 1))
    joined = width * (merged * merged if isinstance(merged, int) and 0 < merged < 100 else 1)
    out = _figure(content, _OUT, where, key) or hidden
    return (
        layers * (4 * width * width + sides * width * inner)
        + 3 * patch * patch * width
        + joined * joined
        + joined * out
    )


def _figure(content: Mapping, names: tuple[str, ...], where: str, key: str) -> int | None:
    value = next((content[name] for name in names if content.get(name) is not None), None)
    if value is None:
        return None
    if isinstance(value, list):  # a pyramid of stages states several; the sum of its layers, the widest of the rest
        if not value or not all(isinstance(item, int) for item in value):
            return None
        value = sum(value) if names is _LAYERS else max(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= LARGEST:
        raise InputError(f"{where}: {key}: expected whole numbers for its sizes, got {value!r}")
    return value
