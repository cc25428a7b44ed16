"""Which mixer and which feed-forward every layer has: the many ways in which configs write it, read by one mechanism.

A rule reads one key (or a few that belong together) and gives one word per layer. All rules whose keys are in the file
are read; the first speaks, and another that says otherwise is a contradiction. Without any, the family's own rule does.

Words of mixers: ``full`` attention, ``window``, ``chunked``, ``sparse``, ``compressed``, ``heavily_compressed``,
``linear`` (whatever recurrence or convolution the family has), ``hybrid`` (the family's combination), ``none``. Words
of feed-forwards: ``dense``, ``moe``, ``none``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from evaluator.errors import InputError
from evaluator.huggingface.config import Config, all_of

Words = list[str]
Rule = Callable[[Config, int], Words | None]
"""Words of the layers, of which there are so many; None where the key is not there."""

MIXER_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("full_attention", "attention", "global_attention", "global", "full", "A", "G"), "full"),
    **dict.fromkeys(
        (
            "sliding_attention",
            "sliding_window_attention",
            "hybrid_sliding",
            "reference_sliding_attention",
            "local_attention",
            "local",
            "swa",
            "L",
        ),
        "window",
    ),
    **dict.fromkeys(("chunked_attention",), "chunked"),
    **dict.fromkeys(
        ("indexed_attention", "sparse_attention", "deepseek_sparse_attention", "minimax_m3_sparse"), "sparse"
    ),
    "compressed_sparse_attention": "compressed",
    "heavily_compressed_attention": "heavily_compressed",
    **dict.fromkeys(("linear_attention", "mamba", "mamba2", "conv", "recurrent", "lightning_attention", "M"), "linear"),
    **dict.fromkeys(("hybrid", "g", "hybrid_attention"), "hybrid"),
    **dict.fromkeys(("mlp", "moe", "none"), "none"),
}
_LETTERS = {"M": "linear", "*": "full", "-": "none", "E": "none"}
_BLOCKS_OF_ONE_PART = {"moe": "moe", "E": "moe", "mlp": "dense", "-": "dense"}


def mixer_words(config: Config, layers: int, otherwise: Rule, silent: Container[str] = ()) -> Words:
    """The word of every layer's mixer; ``otherwise`` says it where no key but those in ``silent`` does."""
    return _read(config, layers, _MIXER_RULES, otherwise, silent)


def block_words(config: Config, layers: int, otherwise: Rule, silent: Container[str] = ()) -> Words:
    """The word of every layer's feed-forward; ``otherwise`` says it where no key but those in ``silent`` does."""
    return _read(config, layers, _BLOCK_RULES, otherwise, silent)


def is_listed(config: Config) -> bool:
    """Whether the config says by itself what mixer every layer has."""
    return any(config.has(key) for key, _ in _MIXER_RULES)


def always(word: str) -> Rule:
    """The same word for every layer."""
    return lambda config, layers: [word] * layers


def stated(key: str, what: str = "what every layer is") -> Rule:
    """A family whose pattern the config must state under ``key``: without it every layer would count as the same."""

    def rule(config: Config, layers: int) -> Words:
        raise InputError(f"{config.place(key)}: missing; it says {what}")

    return rule


def every(key: str, chosen: str, other: str, default: int | None = None, minimum: int = 1) -> Rule:
    """``chosen`` for each n-th layer (the n-th is the first), n the number below ``key``; 0 stands for none."""

    def rule(config: Config, layers: int) -> Words | None:
        count = config.integer(key, default, minimum=minimum)
        if count is None:
            return None
        return [chosen if count and (index + 1) % count == 0 else other for index in range(layers)]

    return rule


def layer_groups(key: str, default: int | None = None) -> Rule:
    """The last layer of each group of so many is full, the others linear; layers that fill no group are full (Ling)."""

    def rule(config: Config, layers: int) -> Words | None:
        count = config.integer(key, default)
        if count is None:
            return None
        grouped = layers // count * count
        return ["linear" if (index + 1) % count and index < grouped else "full" for index in range(layers)]

    return rule


def _read(
    config: Config, layers: int, rules: Iterable[tuple[str, Rule]], otherwise: Rule, silent: Container[str]
) -> Words:
    rules = list(rules)
    config.skip(*(key for key, _ in rules if key in config.absent))  # null says nothing
    present = [(key, rule) for key, rule in rules if config.has(key) and key not in silent]
    spoken = [(key, words) for key, rule in present if (words := rule(config, layers)) is not None]
    if not spoken:
        return otherwise(config, layers) or []
    # Rules stand in the order of their authority: the first that speaks counts. The others must agree, since a file
    # that says two things of one layer was edited by hand, or means something that no rule knows.
    (first, words), *others = spoken
    for key, different in others:
        for index, (word, other) in enumerate(zip(words, different, strict=True)):
            if word != other:
                raise InputError(
                    f"{config.place(first)} and {key} contradict each other: layer {index} is '{word}' by the first and"
                    f" '{other}' by the second; keep the one that is right"
                )
    return words


def _listed(key: str, words: Mapping[str, str] = MIXER_WORDS) -> Rule:
    def rule(config: Config, layers: int) -> Words:
        return all_of(config, key, config.entries(key, str, layers) or [], words)

    return rule


def _flags(key: str, words: Mapping[int, str]) -> Rule:
    """One number per layer; an empty list says nothing."""

    def rule(config: Config, layers: int) -> Words | None:
        if config.raw(key) == []:
            return None
        return all_of(config, key, config.entries(key, int, layers) or [], words)

    return rule


def _named(key: str, chosen: str, other: str, first: int = 0) -> Rule:
    """The layers whose numbers are listed are ``chosen``."""

    def rule(config: Config, layers: int) -> Words:
        inside = config.indices(key, layers, first) or set()
        return [chosen if index in inside else other for index in range(layers)]

    return rule


def _letters(config: Config, layers: int) -> Words:
    """Nemotron-H: M Mamba-2, * attention, - feed-forward, E experts; one part per layer."""
    key = "hybrid_override_pattern"
    pattern, key_place = config.text(key), config.place(key)
    for letter in pattern:
        if letter not in _LETTERS:
            letters = "M Mamba-2, * attention, - feed-forward, E experts"
            raise InputError(f"{key_place}: unknown layer '{letter}' (known: {letters})")
    if len(pattern) != layers:
        raise InputError(f"{key_place}: {len(pattern)} letters for num_hidden_layers {layers}")
    return [_LETTERS[letter] for letter in pattern]


def _cycle(config: Config, layers: int) -> Words:
    """Griffin's ``block_types``: repeated until every layer has one."""
    words = all_of(config, "block_types", config.sequence("block_types"), MIXER_WORDS)
    return [words[index % len(words)] for index in range(layers)]


def _sliding_pattern(key: str) -> Rule:
    """Every n-th layer full and the others windowed (Gemma 3, Cohere 2), or letters such as LLLG (EXAONE 4)."""

    def rule(config: Config, layers: int) -> Words | None:
        value = config.raw(key)
        if not isinstance(value, str):
            return every(key, "full", "window")(config, layers)
        words = all_of(config, key, list(value), MIXER_WORDS)
        return [words[index % len(words)] for index in range(layers)] if words else None

    return rule


def _period(config: Config, layers: int) -> Words:
    """Jamba (arXiv:2403.19887): one attention layer in ``attn_layer_period``, at ``attn_layer_offset``."""
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", minimum=0)
    return ["full" if index % period == offset else "linear" for index in range(layers)]


def _kimi(config: Config, layers: int) -> Words | None:
    """Kimi Linear: ``linear_attn_config`` lists the layers of both kinds, counted from 1; Solar lists none there."""
    level = config.level("linear_attn_config")
    if not level.has("full_attn_layers", "kda_layers"):
        return None
    full, linear = (level.indices(key, layers, 1) or set() for key in ("full_attn_layers", "kda_layers"))
    if full & linear or len(full | linear) != layers:
        raise InputError(f"{level.where}: full_attn_layers and kda_layers must share the {layers} layers out")
    return ["full" if index in full else "linear" for index in range(layers)]


def _typed(config: Config, layers: int) -> Words:
    """GPT-Neo's ``attention_types``: [[[words], how often], ...]."""
    words: Words = []
    try:
        for cycle, times in config.sequence("attention_types"):
            # A number beyond the layers would only fill the memory before the length is found wrong.
            words += [str(word) for word in cycle] * (times if 0 <= times <= layers else 0)
    except (TypeError, ValueError):
        raise InputError(f"{config.place('attention_types')}: expected a list of [[words], number of times]") from None
    if len(words) != layers:
        raise InputError(f"{config.place('attention_types')}: {len(words)} entries for {layers} layers")
    return all_of(config, "attention_types", words, MIXER_WORDS)


def _qwen_windows(config: Config, layers: int) -> Words | None:
    """Qwen's ``use_sliding_window``: windows from layer ``max_window_layers`` on."""
    first = config.integer("max_window_layers", None, minimum=0)
    if not config.flag("use_sliding_window"):
        return None
    # A null window is none, whatever the switch says.
    window = "window" if config.has("sliding_window") else "full"
    return [window if index >= (first or 0) else "full" for index in range(layers)]


def _first_dense(config: Config, layers: int) -> Words:
    """DeepSeek: so many dense layers first; then experts in every ``moe_layer_freq``-th, or where its list says."""
    first = config.integer("first_k_dense_replace", minimum=0)
    if first > layers:
        raise InputError(f"{config.place('first_k_dense_replace')}: {first} of only {layers} layers")
    # ``index % freq == 0`` counts from layer 0 and not from the first layer with experts, as DeepSeek's published
    # code does.
    every_nth = config.integer("moe_layer_freq", 1)
    return ["moe" if index >= first and index % every_nth == 0 else "dense" for index in range(layers)]


def _frequency(config: Config, layers: int) -> Words | None:
    """A list of flags (MiMo-V2); a number belongs to ``first_k_dense_replace``."""
    if not isinstance(config.raw("moe_layer_freq"), list):
        # The number counts from layer 0 in both cases; with the other key, that key's rule reads it.
        return None if config.has("first_k_dense_replace") else _nth(config, layers)
    return _flags("moe_layer_freq", {0: "dense", 1: "moe"})(config, layers)


def _nth(config: Config, layers: int) -> Words:
    step = config.integer("moe_layer_freq")
    return ["moe" if index % step == 0 else "dense" for index in range(layers)]


def _steps(config: Config, layers: int) -> Words | None:
    """Qwen: experts in every ``decoder_sparse_step``-th layer but for ``mlp_only_layers``."""
    step = config.integer("decoder_sparse_step", 1)
    dense = config.indices("mlp_only_layers", layers) or set()
    if not dense and not config.has("decoder_sparse_step"):
        return None  # an empty list, as dense models of these families have it too
    return ["dense" if index in dense or (index + 1) % step else "moe" for index in range(layers)]


def _ernie(config: Config, layers: int) -> Words:
    """ERNIE 4.5: experts between two layers, in each so many."""
    first = config.integer("moe_layer_start_index", 0, minimum=0)
    last = config.integer("moe_layer_end_index", layers - 1, minimum=-1)
    step = config.integer("moe_layer_interval", 1)
    # ERNIE's -1 stands for the last layer (``Ernie4_5_MoeConfig``).
    last = layers - 1 if last == -1 else last
    return ["moe" if first <= index <= last and (index + 1) % step == 0 else "dense" for index in range(layers)]


def _expert_period(config: Config, layers: int) -> Words:
    """Jamba: experts in one layer of ``expert_layer_period``, at ``expert_layer_offset``; none with one expert."""
    period, offset = config.integer("expert_layer_period"), config.integer("expert_layer_offset", minimum=0)
    # 16 is JambaConfig's default, and a Jamba without experts says 1.
    several = config.integer("num_experts", 16) > 1
    return ["moe" if several and index % period == offset else "dense" for index in range(layers)]


def _numbered(config: Config, layers: int) -> Words:
    """Step-3: the layers with experts as a text of numbers."""
    parts = [part.strip() for part in config.text("moe_layers_enum").split(",")]
    if not all(part.isdecimal() and int(part) < layers for part in parts):
        key_place = config.place("moe_layers_enum")
        raise InputError(f"{key_place}: expected numbers of layers from 0 to {layers - 1} with commas between them")
    return ["moe" if str(index) in parts else "dense" for index in range(layers)]


def _no_op(part: str, word: str) -> Rule:
    """``block_configs``: layers whose attention or feed-forward the architecture search left out.

    Blocks with a ``block_type`` have one part each, which the type names.
    """

    def rule(config: Config, layers: int) -> Words:
        blocks = config.entries("block_configs", dict, layers) or []
        if all("block_type" in block for block in blocks):
            types = [block["block_type"] for block in blocks]
            mixers = all_of(config, "block_configs", types, MIXER_WORDS)
            return mixers if word == "full" else [_BLOCKS_OF_ONE_PART.get(layer_type, "none") for layer_type in types]
        places = (f"{config.place('block_configs')}[{index}]" for index in range(layers))
        levels = [Config(block, place) for block, place in zip(blocks, places, strict=True)]
        return ["none" if level.inner(part, {}).flag("no_op", False) else word for level in levels]

    return rule


def _llama4(config: Config, layers: int) -> Words | None:
    if config.raw("moe_layers") == []:
        return None
    return _named("moe_layers", "moe", "dense")(config, layers)


def one_part(config: Config, layers: int) -> Words:
    """The feed-forwards of layers that have one part each, by the list of the mixers."""
    stated = (key for key in ("layers_block_type", "hybrid_override_pattern") if config.has(key))
    key = next(stated, "block_configs")
    return [_BLOCKS_OF_ONE_PART.get(word, "none") for word in config.raw(key)]


# Lists of every layer first, then lists of some, then periods: a period beside a list is what the list was
# made from, or a leftover of the class.
_MIXER_RULES: tuple[tuple[str, Rule], ...] = (
    ("layer_types", _listed("layer_types")),
    ("layers_block_type", _listed("layers_block_type")),
    ("hybrid_override_pattern", _letters),
    ("block_configs", _no_op("attention", "full")),
    ("block_types", _cycle),
    ("attention_layers", _listed("attention_layers")),
    ("attention_types", _typed),
    ("attn_type_list", _flags("attn_type_list", {0: "linear", 1: "full"})),
    ("hybrid_layer_pattern", _flags("hybrid_layer_pattern", {0: "full", 1: "window"})),
    ("linear_attn_config", _kimi),
    ("compress_ratios", _flags("compress_ratios", {0: "window", 4: "compressed", 128: "heavily_compressed"})),
    ("full_attn_idxs", _named("full_attn_idxs", "full", "linear")),
    ("attn_layer_indices", _named("attn_layer_indices", "full", "linear")),
    ("full_attention_layers", _named("full_attention_layers", "full", "linear")),
    ("gqa_layers", _named("gqa_layers", "full", "linear")),
    ("hybrid_layer_ids", _named("hybrid_layer_ids", "hybrid", "linear")),
    ("local_layer_ids", _named("local_layer_ids", "window", "full")),
    ("sliding_window_layers", _named("sliding_window_layers", "window", "full")),
    ("attn_layer_period", _period),
    ("full_attention_interval", every("full_attention_interval", "full", "linear")),
    ("layer_group_size", layer_groups("layer_group_size")),
    ("sliding_window_pattern", _sliding_pattern("sliding_window_pattern")),
    ("_sliding_window_pattern", _sliding_pattern("_sliding_window_pattern")),
    ("global_attn_every_n_layers", every("global_attn_every_n_layers", "full", "window")),
    ("use_sliding_window", _qwen_windows),
)

# The same order of authority; ``decoder_sparse_step`` and ``mlp_only_layers`` share a rule, for each
# changes what the other says.
_BLOCK_RULES: tuple[tuple[str, Rule], ...] = (
    ("block_configs", _no_op("ffn", "dense")),
    (
        "mlp_layer_types",
        _listed("mlp_layer_types", {"dense": "dense", "sparse": "moe", "moe": "moe", "hash_moe": "moe"}),
    ),
    ("moe_layer_freq", _frequency),
    ("is_moe_layer", _flags("is_moe_layer", {0: "dense", 1: "moe"})),
    ("moe_layers_enum", _numbered),
    ("moe_layers", _llama4),
    ("first_k_dense_replace", _first_dense),
    ("decoder_sparse_step", _steps),
    ("mlp_only_layers", _steps),
    ("interleave_moe_layer_step", every("interleave_moe_layer_step", "moe", "dense", minimum=0)),
    ("moe_layer_start_index", _ernie),
    ("moe_layer_interval", _ernie),
    ("expert_layer_period", _expert_period),
)
