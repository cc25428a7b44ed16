"""Models from a Hugging Face ``config.json``: every key is used, known to be irrelevant, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluator.catalog.model import Model
from evaluator.catalog.parameters import parameter_count
from evaluator.catalog.store import close_matches
from evaluator.errors import InputError
from evaluator.huggingface.config import Config
from evaluator.huggingface.dialects import translated
from evaluator.huggingface.encoders import ENCODERS, OTHER_LEVELS, encoder_parameters, is_encoder
from evaluator.huggingface.families import FAMILIES
from evaluator.huggingface.family import Family
from evaluator.huggingface.files import check_name, config_file, model_name, read_json
from evaluator.huggingface.likeness import Reads, likely_family, stated_family, stated_types
from evaluator.huggingface.quantization import checkpoint_precision

_TEXT_LEVELS = ("text_config", "llm_config", "language_config", "thinker_config")
MOST_PARAMETERS = 1e15
"""Some hundred times the largest model that is known; more is a mistake in one of the sizes."""
ENDLESS = 1_048_576
"""Positions of a model that states none, as recurrent ones do not: more than any request has."""


def import_config(config: str | Path | Mapping[str, Any], name: str | None = None, like: str | None = None) -> Model:
    """The language model that a ``config.json`` (a path, or its content) describes, or Mistral's ``params.json``.

    The path may be a folder, or a model's name on the Hub, which is looked for in the Hub's local cache. ``name`` is
    the catalog name; without it the file's or folder's name, lower case, without the organisation before ``--``.
    ``like`` is the model_type of a known family whose layers this model has. The model's ``notes`` say what was
    assumed: that, defaults of the family, the estimated size of vision and audio encoders. Layers that predict further
    tokens are its ``prediction_layers``, and none of its ``layers``. Raises InputError for a model_type or a key that
    no reader knows: a structural field is never guessed. A ``generation_config.json`` beside the file says how the
    model samples, and modelopt's ``hf_quant_config.json`` what its weights are stored in.
    """
    config = config if isinstance(config, Mapping) else config_file(config)
    content, where = (config, "config.json") if isinstance(config, Mapping) else (read_json(config), config.name)
    levels = _levels(Config(translated(content), where))
    notes: list[str] = []
    outer, text = levels[0], levels[-1]
    _refuse_encoder_decoders(levels)
    # A family is tried by importing the config as one of it, which fails at the first key that it does not read.
    kind = _family(levels, like, notes, lambda name: import_config(config, "likely", name))
    family = FAMILIES[kind]
    # transformers writes only what differs from a class's defaults into a level inside another one (LLaVA, Pixtral);
    # at the top it writes all.
    is_nested = text is not outer and text.text("model_type", None) == kind
    text.defaults, text.keys = {**(family.nested if is_nested else {}), **family.defaults}, family.keys
    model_name = check_name(name or _default_name(config))
    # Layers first: their readers find out which keys mean something in this model; what nobody read is refused at the
    # end.
    layers = family.layers(text)
    hidden = text.integer("hidden_size")
    encoders = _encoders(levels, hidden, notes)
    model = Model(
        name=model_name,
        source=f"{where} of {model_name} (Hugging Face), imported",
        hidden=hidden,
        vocabulary=text.integer("vocab_size"),
        max_positions=_max_positions(text, notes) - family.unused_positions,
        layers=layers,
        tied_embeddings=_tied(outer, text, family),
        checkpoint=checkpoint_precision(outer, text, layers, _beside(config, "hf_quant_config.json"), notes),
        lookup_parameters=family.lookups(text) if family.lookups else 0,
        encoder_parameters=encoders,
        output=family.output,
        nucleus_sampling=_nucleus(_beside(config, "generation_config.json")),
        penalties=_penalties(_beside(config, "generation_config.json")),
        # These are loaded only where a scenario decodes speculatively with them (vLLM
        # ``SpeculativeConfig``, method mtp), so that they are no layers of the model itself.
        prediction_layers=text.integer("num_nextn_predict_layers", 0, minimum=0),
        notes=tuple(notes) + _assumed(text, kind) + family.notes,
    )
    _check_parameters(model, where)
    # Last, when all readers have asked: an unknown key is told only where nobody asked for it.
    return replace(model, notes=model.notes + _finish(levels, family))


def _check_parameters(model: Model, where: str) -> None:
    parameters = parameter_count(model)
    # Each size alone may be possible (a bound of 10^9 on every figure) and their product not.
    if parameters > MOST_PARAMETERS:
        raise InputError(
            f"{where}: its sizes make {parameters / 1e9:,.4g} B parameters, which no model has; correct them"
        )


def _levels(outer: Config) -> list[Config]:
    """The levels from the outermost down to that of the language model: ``text_config`` and its like, if any."""
    # The innermost level describes the language model; those around it describe encoders and how they are joined to it.
    for key in _TEXT_LEVELS:
        if outer.has(key):
            return [outer, *_levels(Config(outer.raw(key), outer.place(key)))]
    return [outer]


def _refuse_encoder_decoders(levels: list[Config]) -> None:
    """No family, stated or likely, reads these; so they are refused before one is looked for."""
    for level in (levels[0], levels[-1]):
        for key in ("is_encoder_decoder", "add_cross_attention"):
            value = level.raw(key, None)
            if value is not None and value is not False:
                raise InputError(
                    f"{level.place(key)}: {value!r} is a structure that is not supported (only False): decoders that"
                    " read an encoder's output are not modelled; decoders alone are, and encoders like BERT"
                )


def _family(levels: list[Config], like: str | None, notes: list[str], reads: Reads) -> str:
    """The name of the family that reads the config; ``notes`` gets what was assumed to find it."""
    if like is not None:
        if like not in FAMILIES:
            raise InputError(f"--like: unknown family '{like}'{close_matches(like, sorted(FAMILIES))}")
        kind = next(iter(stated_types(levels)), "(none)")
        notes.append(f"assumed: model_type {kind} has the layers of {like} (--like {like})")
        return like
    name, assumption = stated_family(levels, reads)
    if name is None:
        name, assumption = likely_family(levels, reads)
    if assumption is not None:
        notes.append(assumption)
    return name


def _tied(outer: Config, text: Config, family: Family) -> bool:
    """By the language model's own key, else the one around it; LFM2 writes ``tie_embedding``."""
    keys = ("tie_word_embeddings", "tie_embedding")
    stated = [level.flag(key, None) for level in (text, outer) for key in keys]
    return next((tied for tied in stated if tied is not None), family.tied)


def _max_positions(text: Config, notes: list[str]) -> int:
    stated = text.integer("max_position_embeddings", None)
    if stated is None:
        notes.append(f"assumed: {ENDLESS:,} positions, for the config states none")
    return stated or ENDLESS


def _encoders(levels: list[Config], hidden: int, notes: list[str]) -> int:
    """Vision and audio encoders, on whichever level their configs are."""
    total = 0
    for level in levels:
        for key, content in level.values.items():
            if not is_encoder(key, content) or key in OTHER_LEVELS:
                continue
            level.skip(key)
            parameters = encoder_parameters(key, content, hidden, level.where, beside=level.values)
            what = key.removesuffix("_config")
            if parameters is None:
                notes.append(f"{what} encoder: its size is not in the config and is not counted")
            else:
                total += parameters
                notes.append(f"{what} encoder: about {parameters / 1e9:.2g} B parameters, in memory and not run")
    return total


def _assumed(text: Config, kind: str) -> tuple[str, ...]:
    if not text.assumed:
        return ()
    values = ", ".join(f"{key} {value}" for key, value in text.assumed.items())
    return (f"assumed, as the code of {kind} does where the config has no such key: {values}",)


def _finish(levels: list[Config], family: Family) -> tuple[str, ...]:
    """Refuse what nobody read; the note on keys that were passed over.

    Around a text level, plain values are of encoders and of how they are joined (special tokens, sizes of images): the
    text model is all in its own level. A further level could be a part of the model, and is refused if unknown.
    """
    *around, text = levels
    passed = text.finish(family.ignored | family.silent)
    for outer in around:
        joining = [key for key, value in outer.values.items() if _is_plain(value)]
        # Wrappers repeat keys of the text level, and engines take those of the text level.
        outer.finish([*joining, *outer.absent, *_TEXT_LEVELS, *ENCODERS, *OTHER_LEVELS, *text.values, *text.absent])
    return (f"passed over, for they can state no size: {', '.join(passed)}",) if passed else ()


def _is_plain(value: Any) -> bool:
    """A number, a word, a flag, or a list of them: it can say how parts are joined, but is no part itself."""
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return not isinstance(value, Mapping)


def _beside(config: str | Path | Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The mapping in the file of that name beside a ``config.json``; None where there is no such file."""
    path = None if isinstance(config, Mapping) else Path(config).parent / name
    content = read_json(path) if path is not None and path.is_file() else None
    return content if isinstance(content, Mapping) else None


def _nucleus(asked: Mapping[str, Any] | None) -> bool:
    """Whether a ``generation_config.json`` asks for top-p; without the file no."""
    top_p = None if asked is None else asked.get("top_p")
    # vLLM takes its sampling defaults from the file (`--generation-config auto`), and top_p of 1 keeps all tokens.
    return isinstance(top_p, int | float) and 0.0 < top_p < 1.0


def _penalties(asked: Mapping[str, Any] | None) -> bool:
    """Whether a ``generation_config.json`` asks for a penalty of what was said before (1: none); without the file no.

    Of presence and frequency vLLM takes no default from it (``ModelConfig.get_diff_sampling_param``).
    """
    penalty = None if asked is None else asked.get("repetition_penalty")
    return isinstance(penalty, int | float) and penalty != 1.0


def _default_name(config: str | Path | Mapping[str, Any]) -> str:
    if isinstance(config, Mapping):
        return str(config.get("_name_or_path") or config.get("model_type")).rsplit("/", 1)[-1].lower()
    return model_name(Path(config))
