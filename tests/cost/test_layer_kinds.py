"""KV, state and work of the layer kinds beside plain attention: by hand from the papers' sizes."""

from dataclasses import replace

import pytest

from evaluator.catalog.model import (
    DenseFeedForward,
    LatentAttention,
    LayerKind,
    Model,
    MoeFeedForward,
    Recurrence,
    SoftmaxAttention,
    StateSpace,
)
from evaluator.cost import Parallel, kv_bytes_per_token, memory_plan, model_window, operators, weight_bytes
from evaluator.cost.layer_state import kv_bytes, state_bytes
from evaluator.cost.precision import Precision
from tests.cost.fixtures import H100

BF16 = Precision(weights="bf16")
MLA = LatentAttention(128, 512, 128, 64, 128, q_lora_rank=1536)
DSA = replace(MLA, index_top_k=2048, index_heads=64, index_head_dim=128)  # DeepSeek-V3.2
LIGHTNING = Recurrence("lightning", heads=64, width=8192, projected=32768, state=8192 * 128, vectors=1)  # MiniMax-01


def model(*layers: LayerKind) -> Model:
    return Model("m", "test", 1024, 1000, 100_000, layers)


def named(layers):
    return {each.name: each for each in operators(model(*layers), BF16, Parallel())}


def test_kv_of_latent_and_sparse_attention():
    """576 elements of latent, and of the indexer's key 128 bytes of fp8 with a scale of 4."""
    assert kv_bytes(MLA, "bf16", 8) == 576 * 2
    assert kv_bytes(DSA, "bf16", 8) == 576 * 2 + 132
    assert kv_bytes(DSA, "fp8", 1) == 576 + 132
    assert kv_bytes(replace(DSA, index_heads=0, index_head_dim=0), "bf16", 1) == 576 * 2  # the choice of another layer


def test_sparse_attention_works_on_its_choice_and_indexes_everything():
    found = named([LayerKind(2, DSA, None)])
    decode, index = found["attention.decode_sparse"], found["attention.indexer.decode"]
    assert decode.scaling == "decode_window"
    assert decode.flops == 2 * 2 * 128 * (2 * 512 + 64)
    assert decode.activation_bytes == 2 * 576 * 2
    assert index.scaling == "decode"
    assert index.flops == 2 * 2 * 64 * 128
    assert index.activation_bytes == 2 * 132
    assert found["attention.indexer.prefill"].scaling == "prefill"
    assert found["attention.indexer.key"].outputs == 128 + 64
    assert model_window(model(LayerKind(2, DSA, None))) == 2048


def test_sparse_attention_keeps_every_token():
    """What is not chosen now may be chosen later: nothing leaves the cache."""
    layout = memory_plan(model(LayerKind(2, DSA, None)), H100, BF16, Parallel()).kv
    assert layout.bytes_per_token_full == 2 * (576 * 2 + 132)
    assert (layout.bytes_per_token_window, layout.window) == (0, 2048)


def test_a_layer_that_shares_kv_keeps_none_and_reads_it():
    own = SoftmaxAttention(8, 2, 128)
    shared = replace(own, shared_kv=True)
    assert kv_bytes(shared, "bf16", 1) == 0
    assert kv_bytes_per_token(model(LayerKind(2, own, None), LayerKind(2, shared, None)), "bf16") == 2 * 2 * 2 * 128 * 2
    alone, beside = named([LayerKind(1, own, None)]), named([LayerKind(1, shared, None)])
    assert alone["attention.decode"].activation_bytes == beside["attention.decode"].activation_bytes
    assert alone["attention.decode"].flops == beside["attention.decode"].flops
    assert beside["attention.qkv"].outputs == 8 * 128
    assert alone["attention.qkv"].outputs == (8 + 2 * 2) * 128


def test_values_of_another_size():
    """MiMo-V2: keys of 192, values of 128."""
    mixer = SoftmaxAttention(64, 4, 192, value_dim=128)
    assert kv_bytes(mixer, "bf16", 1) == 4 * (192 + 128) * 2
    decode = named([LayerKind(1, mixer, None)])["attention.decode"]
    assert decode.flops == 2 * 64 * (192 + 128)


def test_windows_between_full_layers_share_the_cache_out():
    """Gemma 3: five windowed layers to one full."""
    attention = SoftmaxAttention(32, 16, 128)
    layers = (LayerKind(52, replace(attention, window=1024), None), LayerKind(10, attention, None))
    layout = memory_plan(model(*layers), H100, BF16, Parallel()).kv
    per_layer = 2 * 16 * 128 * 2
    assert (layout.bytes_per_token_full, layout.bytes_per_token_window) == (10 * per_layer, 52 * per_layer)
    assert layout.window == 1024


def test_state_of_mamba_2():
    """128 heads of 64 x 128 in fp32, and three inputs of the convolution of 8192 + 2 x 128 channels."""
    mixer = StateSpace(128, 64, 128, 1, 4)
    assert state_bytes(mixer, "bf16", 1) == 128 * 64 * 128 * 4 + 3 * (8192 + 256) * 2
    assert kv_bytes(mixer, "bf16", 1) == 0


def test_state_of_lightning_attention():
    assert state_bytes(LIGHTNING, "bf16", 1) == 64 * 128 * 128 * 4
    assert state_bytes(LIGHTNING, "bf16", 8) == 8 * 128 * 128 * 4
    update = named([LayerKind(1, LIGHTNING, None)])["recurrence.update"]
    assert update.flops == 5 * 64 * 128 * 128


def test_state_of_a_short_convolution():
    """LFM2: the last two inputs of every channel, no recurrence."""
    mixer = Recurrence("short_convolution", 2048, 2048, 3 * 2048, convolved=2048, conv_kernel=3)
    assert state_bytes(mixer, "bf16", 1) == 2 * 2048 * 2
    assert named([LayerKind(1, mixer, None)])["recurrence.update"].flops == 0


def test_shared_weights_are_held_once_and_read_every_time():
    kind = LayerKind(6, SoftmaxAttention(8, 8, 128), DenseFeedForward(4096))
    shared = replace(kind, weight_sets=2)
    assert operators(model(kind), BF16, Parallel()) == operators(model(shared), BF16, Parallel())
    table = 2 * (2 * 1000 * 1024 + 1024)
    own = weight_bytes(model(kind), BF16, Parallel()) - table
    assert weight_bytes(model(shared), BF16, Parallel()) - table == pytest.approx(own / 3)


def test_encoders_and_tables_take_memory_and_no_time():
    plain = model(LayerKind(2, SoftmaxAttention(8, 8, 128), DenseFeedForward(4096)))
    more = replace(plain, encoder_parameters=1_000_000, lookup_parameters=500_000)
    assert weight_bytes(more, BF16, Parallel()) - weight_bytes(plain, BF16, Parallel()) == 3_000_000
    assert operators(more, BF16, Parallel()) == operators(plain, BF16, Parallel())


def test_experts_in_a_latent_space():
    """Nemotron 3: the experts' matrices are of the latent size; two projections lead there and back."""
    found = named([LayerKind(1, None, MoeFeedForward(16, 2, 256, gated=False, latent=512))])
    assert found["experts.up"].flops == 2 * 2 * 512 * 256
    assert (found["experts.latent_in"].inputs, found["experts.latent_in"].outputs) == (1024, 512)


@pytest.mark.parametrize("mixer", [DSA, LIGHTNING, SoftmaxAttention(64, 8, 128, q_rank=256, value_dim=64)])
def test_shards_hold_the_whole(mixer):
    whole = weight_bytes(model(LayerKind(4, mixer, None)), BF16, Parallel())
    parts = 4 * weight_bytes(model(LayerKind(4, mixer, None)), BF16, Parallel(4))
    assert 1.0 <= parts / whole < 2.1
