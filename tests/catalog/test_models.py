"""The model files: they read back as written, and hold as many parameters as their cards say."""

import pytest

from evaluator.catalog import active_parameters, load_model, model_to_yaml, names, parameter_count, parameters_by_part
from evaluator.catalog.model import (
    DenseFeedForward,
    LayerKind,
    LinearAttention,
    Model,
    MoeFeedForward,
    SoftmaxAttention,
    StateSpace,
)
from evaluator.catalog.parameters import PARTS, layer_parameters, mixer_parameters
from evaluator.catalog.read_model import read_model
from evaluator.errors import InputError
from evaluator.yaml import loads_yaml

# Left out of the 1 % test: cards that round to one digit or count more than the text model. Their own bound, relative.
LOOSE = {
    "kimi-k2.5": 0.03,  # the card says 1T
    "kimi-k2": 0.03,  # the card says 1T
    "deepseek-v4-pro": 0.02,  # the card says 1.6T
    "llama-4-scout-17b-16e": 0.02,  # the card counts the vision tower
    "llama-4-scout-17b-16e-fp8": 0.02,
}
GOOD = """
name: small
source: 'nowhere'
hidden: 64
vocabulary: 100
max_positions: 128
layers:
  - count: 2
    softmax_attention: {heads: 4, kv_heads: 2, head_dim: 16}
    dense: {intermediate: 256}
"""


@pytest.mark.parametrize("name", names("models"))
def test_reads_back_as_written(name):
    model = load_model(name)
    assert read_model(loads_yaml(model_to_yaml(model)), "text") == model


TOWERS = ("qwen3.5-vision",)
"""Encoders of multimodal models, of which no card states the parameters (``tests/stages/test_encode.py`` counts)."""
STATED = [name for name in names("models") if name not in TOWERS]


@pytest.mark.parametrize("name", STATED)
def test_parameters_equal_the_card(name):
    model = load_model(name)
    assert parameter_count(model) == pytest.approx(model.published_parameters, rel=LOOSE.get(name, 0.01))


def test_at_least_twenty_models_are_within_one_percent():
    models = [load_model(name) for name in STATED]
    within = [model for model in models if abs(parameter_count(model) / model.published_parameters - 1) < 0.01]
    assert len(models) >= 28
    assert len(within) >= 20


EXACT = {  # counts of the published tensors, to the last parameter or nearly
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "mistral-nemo-12b": 12_247_782_400,
    "yi-34b": 34_388_917_248,
    "deepseek-v3": 671_026_419_200,
}


@pytest.mark.parametrize(("name", "count"), EXACT.items())
def test_parameters_equal_the_published_tensors(name, count):
    assert parameter_count(load_model(name)) == pytest.approx(count, rel=1e-6)


def test_parts_of_a_hand_counted_model():
    moe = MoeFeedForward(8, 2, 32, shared_intermediate=16, shared_gate=True, bias=True)
    layers = (
        LayerKind(3, SoftmaxAttention(4, 2, 16, output_gate=True), moe),
        LayerKind(1, None, DenseFeedForward(128)),
    )
    model = Model("m", "s", 64, 1000, 128, layers)
    parts = parameters_by_part(model)
    assert tuple(parts) == PARTS
    assert parts["attention"] == 3 * (64 * (2 * 64 + 2 * 32) + 64 * 64)
    assert parts["feed_forward"] == 3 * (8 * 65 + 3 * 64 * 16 + 64) + 3 * 64 * 128
    assert parts["experts"] == 3 * 8 * (3 * 64 * 32 + 2 * 32 + 64)
    assert parts["embedding"] == parts["head"] == 64_000
    assert parts["norm"] == 3 * 128 + 64 + 64
    assert layer_parameters(model, layers[1])["experts"] == 0


def test_tied_embeddings_count_once():
    tied, untied = (
        parameters_by_part(
            Model("m", "s", 64, 1000, 128, (LayerKind(1, None, DenseFeedForward(4)),), tied_embeddings=t)
        )
        for t in (True, False)
    )
    assert (tied["head"], untied["head"]) == (0, 64_000)
    assert tied["embedding"] == untied["embedding"]


def test_recurrent_mixers():
    linear = LinearAttention(key_heads=2, value_heads=4, key_head_dim=8, value_head_dim=8, conv_kernel=4)
    assert mixer_parameters(linear, 64) == 64 * (2 * 16 + 2 * 32 + 2 * 4) + 32 * 64 + 4 * 64 + 2 * 4 + 8
    mamba = StateSpace(heads=4, head_dim=8, state_size=16, groups=2, conv_kernel=4)
    assert mixer_parameters(mamba, 64) == 64 * (32 + 96 + 4) + 32 * 64 + 5 * 96 + 3 * 4 + 32


REFUSED = {
    r"small.yaml: layers\[0\].softmax_attention.rotary: unknown key": (
        "head_dim: 16",
        "head_dim: 16, rotary: 8",
    ),
    "hidden: expected a whole number of at least 1, got -64": ("hidden: 64", "hidden: -64"),
    "vocabulary: missing": ("vocabulary: 100\n", ""),
    "layers: expected a list with at least one entry": ("layers:", "layers: []\nold:"),
    "old: unknown key": ("layers:", "old: 1\nlayers:"),
    "4 heads cannot share 3 kv_heads evenly": ("kv_heads: 2", "kv_heads: 3"),
    "weight_sets: 3 sets of weights for 2 layers": ("- count: 2", "- count: 2\n    weight_sets: 3"),
    "notes: expected a list of texts": ("layers:", "notes: [1]\nlayers:"),
    "recurrence.form: 'mamba3' is unknown": (
        "softmax_attention: {heads: 4, kv_heads: 2, head_dim: 16}",
        "recurrence: {form: mamba3, heads: 1, width: 8, projected: 8}",
    ),
    "an indexer needs both index_heads and index_head_dim": (
        "softmax_attention: {heads: 4, kv_heads: 2, head_dim: 16}",
        "latent_attention: {heads: 4, kv_lora_rank: 8, nope_head_dim: 8, rope_head_dim: 8, v_head_dim: 8, "
        "index_heads: 2}",
    ),
    "chunked needs a window": ("head_dim: 16", "head_dim: 16, chunked: true"),
    "chunked: expected true or false, got 1": ("head_dim: 16", "head_dim: 16, chunked: 1"),
    "softmax_attention and state_space exclude each other": ("    dense:", "    state_space: {heads: 1}\n    dense:"),
    "experts_per_token 9 exceeds experts 8": (
        "dense: {",
        "moe: {experts: 8, experts_per_token: 9, ",
    ),
    "checkpoint.attention: 'fp9' is unknown; did you mean fp8": ("layers:", "checkpoint: {attention: fp9}\nlayers:"),
    "source: expected a text, got 3": ("'nowhere'", "3"),
}


@pytest.mark.parametrize(("message", "change"), REFUSED.items())
def test_bad_model_files_are_refused(message, change):
    assert change[0] in GOOD
    with pytest.raises(InputError, match=message):
        read_model(loads_yaml(GOOD.replace(*change)), "small.yaml")


@pytest.mark.parametrize("name", ["true", "1e5", "a: b", "it's", "Plain Name", "llama-3.1-8b"])
def test_any_name_reads_back(name):
    model = Model(name, "s", 8, 8, 8, (LayerKind(1, None, DenseFeedForward(8)),))
    assert read_model(loads_yaml(model_to_yaml(model)), "text") == model


def test_a_layer_needs_a_part():
    with pytest.raises(InputError, match=r"small.yaml: layers\[0\]: a layer needs one of softmax_attention, latent"):
        read_model({**loads_yaml(GOOD), "layers": [{"count": 1}]}, "small.yaml")


def test_the_name_is_the_file_name(tmp_path):
    path = tmp_path / "other.yaml"
    path.write_text(GOOD)
    with pytest.raises(InputError, match=r"other.yaml: name: 'small' is not the file's name 'other'"):
        load_model(str(path))


def test_a_model_by_its_path(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(GOOD)
    assert load_model(str(path)).hidden == 64


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gpt-oss-120b", 5.13), ("gpt-oss-20b", 3.61), ("qwen3-30b-a3b", 3.04), ("llama-3.1-8b", 7.50)],
)
def test_active_parameters(name, billions):
    """gpt-oss by its model card (arXiv:2508.10925), whose counts leave the embedding out; the others by hand."""
    assert active_parameters(load_model(name)) / 1e9 == pytest.approx(billions, rel=0.01)
