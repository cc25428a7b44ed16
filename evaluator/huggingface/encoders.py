"""Vision and audio encoders of a multimodal model: how many parameters they hold, estimated from their configs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from evaluator.errors import InputError
from evaluator.huggingface.config import LARGEST, MOST_LAYERS

ENCODERS = tuple(
    """
    vision_config audio_config vit_config visual_config sound_config speech_config vision_tower_config projector_config
    aligner_config high_res_vision_config qformer_config encoder_config adapter_config adaptor_config vq_config
    audio_encoder_config perceiver_config acoustic_tokenizer_encoder_config semantic_tokenizer_encoder_config
    """.split()
)
_WORDS = re.compile(r"vision|visual|image|video|audio|speech|sound|^vit_|^mm_")


# By its name, because every new multimodal family invents a key for its tower. A mapping is asked for:
# ``image_size`` matches the words, too, and is a number.
def is_encoder(key: str, value: object) -> bool:
    """Whether a level around a language model is an encoder of something else, by its name."""
    return key in ENCODERS or (isinstance(value, Mapping) and _WORDS.search(key) is not None)


OTHER_LEVELS = frozenset(
    """
    talker_config token2wav_config code2wav_config depth_decoder_config word_timestamp_config vocabulary_map
    acoustic_tokenizer_config semantic_tokenizer_config diffusion_head_config generation_config video_config
    projector_patch_to_query_dict
    """.split()
)
"""Levels that an engine which serves text does not load: what speaks, draws, or marks times."""

_HIDDEN = ("embed_dim", "hidden_size", "vt_hidden_size", "d_model", "width", "hidden_dim")
_LAYERS = ("num_hidden_layers", "vt_num_hidden_layers", "depth", "encoder_layers", "num_layers", "layers", "num_blocks",
           "conf_num_hidden_layers")  # fmt: skip
_INNER = ("intermediate_size", "vt_intermediate_size", "encoder_ffn_dim", "mlp_dim")
_OUT = (
    "out_hidden_size",
    "text_hidden_size",
    "projector_hidden_size",
    "vision_output_dim",
    "projection_dim",
    "output_dim",
)
_GATED = ("silu", "swiglu", "gelu_pytorch_tanh_glu")
_GATED_TYPES = ("pixtral", "dots_vit", "aimv2")


def encoder_parameters(
    key: str, content: object, hidden: int, where: str, beside: Mapping[str, Any] | None = None
) -> int | None:
    """Parameters of the encoder ``content`` with a two-matrix projector into ``hidden``; None where it states no size.

    A transformer encoder (arXiv:2010.11929): 4 h^2 of attention and 2 h x inner per layer (3 where it states a gated
    activation), patch embedding, projector; one more projector per layer of ``deepstack_visual_indexes`` (Qwen3-VL).
    Encoders below it (``sam_config``) are added. ``beside`` is the level around it, which may say how many patches are
    merged (``spatial_merge_size``). Published towers are within some 10 % of it.
    """
    if not isinstance(content, Mapping):
        raise InputError(f"{where}: {key}: expected a mapping of keys to values")
    below = [
        parameters
        for name, level in content.items()
        # A tower may wrap further ones, each with sizes of its own (DeepSeek-OCR has SAM before CLIP).
        if name.endswith("_config") and isinstance(level, Mapping)
        if (parameters := encoder_parameters(name, level, hidden, f"{where}: {key}")) is not None
    ]
    if isinstance(content.get("width"), Mapping):  # several encoders beside each other (DeepSeek-OCR)
        several = {name: level for name, level in content["width"].items() if isinstance(level, Mapping)}
        below += [_transformer(name, level, hidden, where, {}) or 0 for name, level in several.items()]
        content = {name: value for name, value in content.items() if name != "width"}
    if "tokenizer" in key:  # of images, as in Ovis 2
        below.append(2 * hidden * _small(content.get("vocab_size"), 0, 1_000_000))
    at_this_level = _transformer(key, content, hidden, where, beside or {})
    # None and 0 differ: a level that states no size is told in a note, a level whose parts are counted is not.
    return at_this_level if not below else sum(below) + (at_this_level or 0)


def _transformer(key: str, content: Mapping, hidden: int, where: str, beside: Mapping[str, Any]) -> int | None:
    width, layers = _figure(content, _HIDDEN, where, key), _figure(content, _LAYERS, where, key)
    # Width and depth are the least that an estimate needs; all else has a usual value.
    if width is None or layers is None:
        return None
    if layers > MOST_LAYERS:
        raise InputError(f"{where}: {key}: {layers} layers are absurd")
    # Figures that are only a fraction of a tower fall back to nothing where they are odd, rather than
    # refuse a model for them.
    patch = _small(content.get("patch_size"), 0, 1000)
    # Queries, keys, values and output are four square matrices; norms and biases are below a percent.
    layer = 4 * width * width + _sides(content) * width * _inner(content, width, where, key)
    # Patches of a square are joined before the projector, whose input is wider by so many.
    merge = content.get("spatial_merge_size", content.get("merge_size", beside.get("spatial_merge_size")))
    joined = width * _small(merge, 1, 100) ** 2
    out = _figure(content, _OUT, where, key) or hidden
    if content.get("embed_dim") is not None and content.get("hidden_size") is not None:
        out = _figure(content, ("hidden_size",), where, key) or out  # Qwen2-VL's hidden size is that of the text
    listed = content.get("deepstack_visual_indexes")
    projectors = 1 + (len(listed) if isinstance(listed, list) else 0)
    words = _small(beside.get("visual_vocab_size"), 0, 1_000_000)  # of images, as in Ovis 2.5: scored and looked up
    projector = words * (joined + hidden) if words else projectors * (joined * joined + joined * out)
    # 3 colours of each pixel of a patch, projected to the width of the encoder.
    return layers * layer + 3 * patch * patch * width + projector


def _sides(content: Mapping) -> int:
    act = str(content.get("hidden_act", content.get("hidden_activation", "gelu")))
    # Pixtral, dots.vit and AIMv2 are gated whatever their activation is called.
    return 3 if act in _GATED or content.get("model_type") in _GATED_TYPES else 2


def _inner(content: Mapping, width: int, where: str, key: str) -> int:
    """The width of a feed-forward; a stated ratio goes before a width, as in Step-3.5's tower.

    GLM-4.1V to 4.6V use the size of the output; their ``intermediate_size`` is that of the projector.
    """
    if str(content.get("model_type")).startswith(("glm4v", "glm46v")):
        return _figure(content, ("out_hidden_size",), where, key) or 4 * width
    stated, ratio = _figure(content, _INNER, where, key), content.get("mlp_ratio")
    if ratio is not None and isinstance(ratio, int | float) and 0 < ratio < 100:
        # 4 is the default that classes write beside a width that they do not follow; any other ratio was chosen.
        return stated if stated is not None and float(ratio) == 4.0 else int(width * ratio)
    return stated or 4 * width


def _small(value: object, otherwise: int, limit: int) -> int:
    if isinstance(value, list) and value:
        # Patches of several axes (time, height, width) or towers: the largest, since memory is what is estimated.
        value = max((item for item in value if isinstance(item, int)), default=None)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < limit else otherwise


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
