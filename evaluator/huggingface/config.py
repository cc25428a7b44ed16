"""One level of a ``config.json``: remembers which keys were read, so that the rest can be refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evaluator.catalog.fields import Fields
from evaluator.errors import InputError
from evaluator.huggingface.names import ALIASES, KNOWN, MAY_DIFFER, is_ignored, is_neutral

LARGEST = 10**9
"""No figure of a language model's shape is larger; one that is would be a mistake, or meant to exhaust the memory."""

MOST_LAYERS = 10_000
_COUNTS_OF_LAYERS = ("num_hidden_layers", "num_nextn_predict_layers")  # by which lists per layer are read

_MISSING: Any = object()


class Config(Fields):
    """The keys of one level of a ``config.json``; a key whose value is null counts as absent.

    A key is also found under its ``ALIASES``: families write ``n_embd`` for ``hidden_size``; ``keys`` says which names
    a key has in one family instead. ``defaults`` are a family's values for keys that the file leaves out altogether (a
    null is no omission); those that were used are in ``assumed``. ``at(layer)`` is the same level as one layer sees
    it: where a figure is a list, its entry.
    """

    def __init__(
        self,
        content: Any,
        where: str,
        defaults: Mapping[str, Any] | None = None,
        keys: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        super().__init__(content, where)
        self.keys: Mapping[str, tuple[str, ...]] = keys or {}
        # transformers writes null for what a class has not set. It is neither a value nor an unknown key,
        # but where the family has a default, a null says that the default does not hold.
        present = {key: value for key, value in self.values.items() if not _is_absent(key, value)}
        self.absent = [key for key in self.values if key not in present]
        self.values = present
        self.defaults: Mapping[str, Any] = defaults or {}
        # Defaults that were used are told in the model's notes: a reader may know better than the family's code.
        self.assumed: dict[str, Any] = {}
        self.levels: dict[str, Config] = {}
        self.layer: int | None = None

    def names(self, key: str) -> tuple[str, ...]:
        """The names under which a key may be in the file, the usual one first."""
        return self.keys[key] if key in self.keys else (key, *ALIASES.get(key, ()))

    def at(self, layer: int) -> Config:
        """This level as the layer of that number sees it; what it reads counts as read here."""
        # The view shares the set of keys that were read: what one layer asks for counts as read of the whole level.
        view = object.__new__(Config)
        view.__dict__.update(self.__dict__)
        view.layer = layer
        # A layer's own figures hide those of the level under every name that these may have there, or the
        # alias would be read beside them and contradict.
        of_layer = {key: value for source in (_per_layer, _block) for key, value in source(self, layer).items()}
        if of_layer:
            replaced = {name for key in of_layer for name in self.names(key)}
            view.values = {key: value for key, value in self.values.items() if key not in replaced} | of_layer
        return view

    def has(self, *keys: str) -> bool:
        """Whether any of the keys, or an alias, has a value in the file."""
        return any(name in self.values for key in keys for name in self.names(key))

    def place(self, key: str) -> str:
        """The key as the file writes it, with the place it is in."""
        return super().place(next((name for name in self.names(key) if name in self.values), self.names(key)[0]))

    def raw(self, key: str, default: Any = _MISSING) -> Any:
        """The value as the file has it, under the key or an alias of it."""
        # All names count as read, whichever the file has: a figure under two names is one figure, or a contradiction.
        names = self.names(key)
        self._asked.update(dict.fromkeys(names))
        present = [name for name in names if name in self.values]
        for other in present[1:]:
            if self.values[other] != self.values[present[0]] and key not in MAY_DIFFER:
                raise InputError(
                    f"{self.place(present[0])}: {self.values[present[0]]!r} and {other} {self.values[other]!r} "
                    "contradict each other; keep the one that is right"
                )
        if present:
            return self.values[present[0]]
        # A null says that the model has no such thing; the family's default is for files that leave the key out.
        if key in self.defaults and not any(name in self.absent for name in names):
            self.assumed[key] = self.defaults[key]
            return self.defaults[key]
        if default is _MISSING:
            raise InputError(f"{super().place(names[0])}: missing; add it as the model's page or code states it")
        return default

    def integer(self, key: str, default: Any = _MISSING, minimum: int = 1, maximum: int = LARGEST) -> int:
        """A whole number of at least ``minimum``; of a list with one entry per layer that of this layer."""
        # Some families write a number and a list by layer (num_key_value_heads_per_layer): the list says more.
        listed = f"{key}_per_layer"
        value = self.raw(listed) if listed in self.values else self.raw(key, default)
        if listed in self.values:
            self.raw(key, None)
        # Not checked: a default may be None or below the minimum, which the readers know and the user did not write.
        if value is default:
            return value
        # Reading a list needs the number of layers, so that this number itself must not be a list.
        if isinstance(value, list) and key not in _COUNTS_OF_LAYERS:
            value = self._of_layer(key, value)
        # JSON's true is an int to Python, and would pass as 1.
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise InputError(f"{self.place(key)}: expected a whole number of at least {minimum}, got {_shown(value)}")
        if value > maximum:
            raise InputError(f"{self.place(key)}: {_shown(value)} is absurd; expected at most {maximum:,}")
        return value

    def _of_layer(self, key: str, values: list[Any]) -> Any:
        layers = self.layers()
        values = self._without_predictors(values, layers)
        if len(values) != layers:
            raise InputError(
                f"{self.place(key)}: {len(values)} entries for {layers} layers; a list needs one entry per layer"
            )
        if self.layer is not None:
            return values[self.layer]
        # Outside of a layer's view one number must do for all: picking the first would cost a whole model
        # by its first layer.
        if any(value != values[0] for value in values):
            raise InputError(f"{self.place(key)}: expected one number for all layers, got {_shown(values)}")
        return values[0]

    def layers(self) -> int:
        """How many layers there are: the number, or the length of a list of them."""
        if not self.has("num_hidden_layers"):
            # Nemotron-H and its kin leave the number out where a list says it.
            for key in ("layers_block_type", "hybrid_override_pattern", "block_configs", "layer_types"):
                if isinstance(self.values.get(key), list | str) and self.values[key]:
                    return len(self.values[key])
        return self.integer("num_hidden_layers", maximum=MOST_LAYERS)

    def entries(self, key: str, kind: type, layers: int | None = None) -> list[Any] | None:
        """The list below ``key`` with entries of ``kind``, ``layers`` of them where it is given; None without."""
        value = self.raw(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise InputError(f"{self.place(key)}: expected a list of entries of type {kind.__name__}")
        value = value if layers is None else self._without_predictors(value, layers)
        if layers is not None and len(value) != layers:
            raise InputError(
                f"{self.place(key)}: {len(value)} entries for {layers} layers; a list needs one entry per layer"
            )
        return list(value)

    def _without_predictors(self, values: list[Any], layers: int) -> list[Any]:
        """A list by layer without the entries of layers that predict further tokens, which come last (Step-3.5)."""
        predictors = self.integer("num_nextn_predict_layers", 0, minimum=0)
        # Only a list of exactly as many more entries: one of any other length is a mistake, and refused by who asked.
        return values[:layers] if predictors and len(values) == layers + predictors else values

    def indices(self, key: str, layers: int, first: int = 0) -> set[int] | None:
        """The layers that the list below ``key`` names, counted from ``first``; None without the list."""
        listed = self.entries(key, int)
        if listed is None:
            return None
        # A negative index would count from the end in Python, and silently name another layer.
        wrong = [item for item in listed if isinstance(item, bool) or not first <= item < layers + first]
        if wrong:
            raise InputError(
                f"{self.place(key)}: there is no layer {wrong[0]!r}; the {layers} layers count from {first}"
            )
        return {item - first for item in listed}

    def expect(self, key: str, *allowed: Any) -> None:
        """``key``, where it is there, must be one of ``allowed``: other values are another structure."""
        value = self.raw(key, None)
        if value is not None and value not in allowed:
            shown = " or ".join(repr(item) for item in allowed)
            raise InputError(f"{self.place(key)}: {value!r} is a structure that is not supported (only {shown})")

    def inner(self, key: str, default: Any = _MISSING) -> Config:
        """The level below ``key``."""
        return Config(self.raw(key, default), self.place(key))

    def level(self, key: str) -> Config:
        """The level below ``key``, always the same one; it is finished with this one."""
        if key not in self.levels:
            # One object per level: several readers ask it for keys, and what each of them read must count
            # when it is finished.
            self.levels[key] = Config(self.raw(key), self.place(key))
        return self.levels[key]

    def skip(self, *keys: str) -> None:
        """These keys need not be read."""
        for key in keys:
            self.raw(key, None)

    def finish(self, ignored: Iterable[str] = ()) -> list[str]:  # type: ignore[override]  # what was passed over
        """Refuse every key that was neither read nor is known to be irrelevant, here and on the levels below.

        The keys among them that add no structure (``_adds_nothing``) are passed over, and returned.
        """
        passed = [f"{name}.{key}" for name, level in self.levels.items() for key in level.finish(ignored)]
        expected = {*ignored, *self._asked}
        unknown = [key for key in [*self.values, *self.absent] if key not in expected and not is_ignored(key)]
        passed += [key for key in unknown if _adds_nothing(key, self.values.get(key))]
        passed = [key for key in passed if key not in KNOWN]  # null, which says nothing
        unknown = [key for key in unknown if key not in passed and key not in self.absent]
        if unknown:
            raise InputError(
                f"unknown structural field '{unknown[0]}' in {self.where}: no reader knows what it does to the model"
                " (remove it if it changes neither shapes nor sizes)"
            )
        return passed


def _is_absent(key: str, value: Any) -> bool:
    """Whether a key has no value: null, or -1 for a window (Grok, Hymba)."""
    return value is None or (value == -1 and "window" in key)


def _adds_nothing(key: str, value: Any) -> bool:
    """Whether a key that no reader knows can state no size or structure: it is off, empty, a word, or a factor.

    A key that some reader knows could mean something in any family, and a level of its own could be a part.
    """
    if value is None:
        return True
    off = value is False or isinstance(value, str | float) or value in ([], {})
    return (off or is_neutral(key, value)) and key not in KNOWN and not key.endswith("_config")


def _per_layer(config: Config, layer: int) -> Mapping[str, Any]:
    """``per_layer_config``: {number of the layer: {key: its value there}}."""
    given = config.raw("per_layer_config", {})
    if not isinstance(given, Mapping):
        raise InputError(f"{config.place('per_layer_config')}: expected a mapping of layers to keys")
    for name, content in given.items():
        if not str(name).isdecimal() or not isinstance(content, Mapping):
            raise InputError(f"{config.place('per_layer_config')}: expected a number and keys, got {_shown(name)}")
        if int(name) == layer:
            return content
    return {}


def _block(config: Config, layer: int) -> Mapping[str, Any]:
    """``block_configs`` of models found by architecture search (DeciLM and Llama-Nemotron, arXiv:2411.19146).

    A block with a ``block_type`` states figures by their usual keys (Nemotron-H Puzzle). In the others
    ``n_heads_in_group`` query heads share a KV head; the feed-forward is ``ffn_mult`` times 2/3 of four hidden sizes,
    rounded up to 256 (``_ffn_mult_to_intermediate_size`` of the published code).
    """
    blocks = config.raw("block_configs", None)
    # A list of another length is refused where the words of the layers are read (``pattern._no_op``), with
    # a better message.
    if not isinstance(blocks, list) or layer >= len(blocks):
        return {}
    level = Config(blocks[layer], f"{config.place('block_configs')}[{layer}]")
    if level.has("block_type"):
        return {key: value for key, value in level.values.items() if key != "block_type"}
    attention, ffn = (Config(level.raw(key, {}), level.place(key)) for key in ("attention", "ffn"))
    # The search may also put a plain linear layer in the place of a block, which is not costed.
    attention.expect("replace_with_linear", False)
    ffn.expect("replace_with_linear", False)
    figures: dict[str, Any] = {}
    group = attention.integer("n_heads_in_group", None)
    if group is not None:
        figures["num_key_value_heads"] = config.integer("num_attention_heads") // group
    factor = ffn.number("ffn_mult", None)
    if factor is not None:
        # Rounded up to 256 as the published code does, since the matrices have that size.
        figures["intermediate_size"] = -(-int(2 * factor * config.integer("hidden_size") / 3) // 256) * 256
    return figures


def all_of(config: Config, key: str, values: Sequence[Any], allowed: Mapping[Any, str]) -> list[str]:
    """Every value replaced by its word in ``allowed``; InputError for one that is not there."""
    for index, value in enumerate(values):
        if not isinstance(value, int | str) or value not in allowed:
            allowed_words = ", ".join(map(str, allowed))
            raise InputError(
                f"{config.place(key)}: unknown layer type {value!r} at layer {index} (known: {allowed_words})"
            )
    return [allowed[value] for value in values]


def _shown(value: Any) -> str:
    # A mutated file may hold a number of thousands of digits: the message must stay a line.
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**60 else f"a number of {len(str(value))} digits"
    return text if len(text) <= 60 else text[:57] + "..."
