"""Names of published models <-> those of the catalog."""

from __future__ import annotations

import re

from evaluator.catalog.read_model import load_model
from evaluator.catalog.store import has, names, suggestion
from evaluator.errors import InputError

_FORMATS = "fp8|fp4|nvfp4|mxfp4|int[48]|[48]bit|awq|gptq|bnb|w[0-9]+a[0-9]+"
_TUNED = re.compile(
    r"[-_.](instruct|chat|base|hf|it|python|thinking-2507|v0\.[0-9]+|[0-9]{4}"  # training
    rf"|quantized|dynamic|static|kv|bf16|fp16|{_FORMATS})(?=[-_.]|$)"
)
_QUANTISED = re.compile(rf"[-_.]({_FORMATS})(?=[-_.]|$)")
_WEIGHTS = (
    ("nvfp4|fp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
    ("fp8", "fp8"),
    ("int8|8bit|w8a[0-9]+", "int8"),
    ("int4|4bit|awq|gptq|bnb|w4a[0-9]+", "int4"),
)
"""What names of published quantisations say, and the precision of weights that it is."""
_ENTRY = re.compile(r"config\.json of ([\w./-]*\w)")
_SAME_LAYERS = {
    "llama-3-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.1-70b",
    "llama-3.3-70b": "llama-3.1-70b",
    "llama-3.1-nemotron-70b": "llama-3.1-70b",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "deepseek-r1-distill-llama-70b": "llama-3.1-70b",
    "deepseek-r1-distill-qwen-1.5b": "qwen2.5-1.5b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "deepseek-r1-qwen3-8b": "qwen3-8b",
    "qwen2-7b": "qwen2.5-7b",
    "qwen2-72b": "qwen2.5-72b",
    "qwen2.5-coder-7b": "qwen2.5-7b",
    "qwen2.5-coder-14b": "qwen2.5-14b",
    "qwen2.5-coder-32b": "qwen2.5-32b",
    "qwen2.5-math-7b": "qwen2.5-7b",
    "qwen2.5-math-72b": "qwen2.5-72b",
    "qwq-32b": "qwen2.5-32b",
    "phi-4-reasoning": "phi-4",
    "mistral-small-3.1-24b": "mistral-small-24b",
    "mistral-small-3.2-24b": "mistral-small-24b",
    "devstral-small": "mistral-small-24b",
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
    "deepseek-v3.1": "deepseek-v3",
    "deepseek-coder-v2-lite": "deepseek-v2-lite",
}
"""Published models with the layers of one in the catalog: only position tables and training differ."""


def model_name(published: str) -> str:
    """The catalog's name of a published model, whatever its organisation, tuning and quantisation.

    Raises InputError where no entry has these layers, and where several do.
    """
    entries = names("models")
    short = published.strip().rstrip("/ ").rsplit("/", 1)[-1].lower()
    # Training and quantisation change no shape, but an entry of the catalog in fp8 has another precision: it is
    # looked for first.
    plain = plain_model(short)
    name_in_catalog = f"{plain}-fp8" if "fp8" in short else plain
    # From the exact name to the loosest one: an entry that is called as it was written must not
    # lose to one without its tuning.
    for name in (published, short, name_in_catalog, _SAME_LAYERS.get(plain, plain)):
        if name in entries:
            return name
    matching = [name for name in entries if plain and plain_model(_origin(name)) == plain]
    # Such entries may differ in precision: to pick one would change the answer in silence.
    if len(matching) > 1:
        raise InputError(f"model {published} is one of {', '.join(matching)}: name the entry of the catalog instead")
    if matching:
        return matching[0]
    raise InputError(
        f"model {published} is not in the catalog{suggestion(plain, entries)}; remedy: `evaluator catalog import "
        f"config.json --out my/models/llm/{plain}.yaml` with its published config.json, and EVALUATOR_PATH=my"
    )


def entry_named(name: str) -> str:
    """The catalog's name of a model, or the ``name`` itself, as of a file: what users write may be a published one.

    ``meta-llama/Llama-3.3-70B-Instruct`` is ``llama-3.1-70b``. Raises InputError for a published quantisation of which
    there is no entry, since the entry's own precision would stand for it in silence, and where several entries match.
    """
    # A name of no entry, whatever it looks like, gets the catalog's message about it where it is loaded.
    if name.endswith((".json", ".yaml", ".yml")) or has("models", name):
        return name
    try:
        entry = model_name(name)
    except InputError:
        if "/" in name and not name.startswith((".", "/")):
            raise
        return name
    quantised = _QUANTISED.search(name.rsplit("/", 1)[-1].lower())
    if quantised and quantised[1] not in entry:
        weights = next((precision for words, precision in _WEIGHTS if re.fullmatch(words, quantised[1])), "fp8")
        raise InputError(
            f"model {name} is {entry} with quantised weights; write model: {entry}, and their format beside it, such "
            f"as precision: {{weights: {weights}}}"
        )
    return entry


def plain_model(short: str) -> str:
    """The name of a model without what says its tuning or quantisation."""
    return re.sub(r"^meta-(?=llama)", "", _TUNED.sub("", short))


def _origin(name: str) -> str:
    """Whose published configuration the entry is, without the organisation; empty where its source says none."""
    stated = _ENTRY.search(load_model(name).source)
    return stated[1].rsplit("/", 1)[-1].lower() if stated else ""


_REPOSITORY = re.compile(r"(?<![\w/:])([A-Za-z0-9][\w.-]*/[\w.-]*\w)(?![\w/])")
_CONFIG_OF = re.compile(r"config\.json of ([\w.-]+/[\w.-]*\w)(?! \()")


def repository_of(name: str, source: str) -> str | None:
    """The Hugging Face repository of a model of the catalog by what its ``source`` says; None where it says none.

    The one that is called as the model is, its tuning left out; else the one whose config.json it is.
    """
    # A source may name several repositories (base and instruct, a paper's code): the one called as the model goes
    # first.
    for repository in _REPOSITORY.findall(source):
        if plain_model(repository.rsplit("/", 1)[-1].lower()) == plain_model(name):
            return repository
    stated = _CONFIG_OF.search(source)
    return stated[1] if stated else None
