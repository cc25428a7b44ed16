"""Readers of mixers that keep a state of fixed size: Mamba, linear attention, convolutions."""

from __future__ import annotations

from evaluator.catalog.model import LinearAttention, Recurrence, StateSpace
from evaluator.errors import InputError
from evaluator.huggingface.config import Config
from evaluator.huggingface.mixers import MixerReader


def mamba2(config: Config) -> StateSpace:
    """Mamba-2 (arXiv:2405.21060) in the keys of Bamba, Falcon-H1, Granite, Nemotron-H and Zamba2."""
    _plain_mamba(config)
    heads = config.integer("mamba_num_heads")
    # Falcon-H1 states the inner width; the others follow from the expansion.
    inner = config.integer("mamba_d_ssm", None)
    expansion = config.integer("mamba_expansion", 2)
    size = config.raw("mamba_head_dim", "auto")
    if size == "auto":
        size = _divided(config, inner or expansion * config.integer("hidden_size"), heads)
    else:
        size = config.integer("mamba_head_dim")
    groups = config.integer("mamba_groups", 1)
    _dividing(config, "mamba_groups", groups, heads)
    return StateSpace(
        heads=heads,
        head_dim=size,
        state_size=config.integer("mamba_state"),
        groups=groups,
        conv_kernel=config.integer("mamba_conv", 4),
    )


def _plain_mamba(config: Config) -> None:
    config.skip("hidden_act")
    for key in ("use_bias", "mamba_proj_bias"):
        config.expect(key, False)
    for key in ("use_conv_bias", "mamba_conv_bias"):
        config.expect(key, True)


def mamba1(config: Config) -> Recurrence:
    """Mamba-1 (arXiv:2312.00752): steps, B and C from the convolved channels, steps through ``dt_rank``.

    A stated number of channels goes before the expansion, as in Falcon-Mamba, whose ``expand`` means nothing.
    """
    _plain_mamba(config)
    hidden = config.integer("hidden_size")
    width = config.integer("mamba_inner", config.integer("mamba_expansion", 2) * hidden)
    rank = config.raw("mamba_step_rank", "auto")
    # "auto" is ceil(hidden / 16) in the published code of Mamba.
    rank = -(-hidden // 16) if rank == "auto" else config.integer("mamba_step_rank")
    state, kernel = config.integer("mamba_state", 16), config.integer("mamba_conv", 4)
    return Recurrence(
        "selective_scan", heads=config.integer("mamba_num_heads", width), width=width, projected=2 * width,
        state=width * state, convolved=width, conv_kernel=kernel, gates=2 * rank + 2 * state,
        vectors=state + 3,  # A, D, and the biases of the convolution and the step
    )  # fmt: skip


def gated_delta(config: Config) -> LinearAttention:
    """Gated delta net, Qwen3-Next's keys."""
    keys, values = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    _dividing(config, "linear_num_key_heads", keys, values)
    return LinearAttention(
        key_heads=keys,
        value_heads=values,
        key_head_dim=config.integer("linear_key_head_dim"),
        value_head_dim=config.integer("linear_value_head_dim"),
        conv_kernel=config.integer("linear_conv_kernel_dim"),
    )


def lightning(config: Config) -> Recurrence:
    """Lightning attention with an output gate (MiniMax-01, arXiv:2501.08313, section 2.2)."""
    heads = config.integer("num_attention_heads")
    size = config.integer("head_dim", None) or _divided(config, config.integer("hidden_size"), heads)
    width = heads * size
    # Four projections: queries, keys, values and the output gate. The state is a matrix of keys by values per head.
    return Recurrence("lightning", heads=heads, width=width, projected=4 * width, state=width * size, vectors=1)


def kimi_delta(gate_rank: bool) -> MixerReader:
    """Kimi Delta Attention (arXiv:2510.26692); with ``gate_rank`` decay and output gate pass a rank of one head size,
    the output gate not where ``use_full_rank_gate`` says so (Kimi-K3).

    The keys are below ``linear_attn_config``, as Moonshot publishes them, or on the level itself, where heads are those
    of the attention if no key says otherwise (Ling 3).
    """

    def read(config: Config) -> Recurrence:
        level = config
        if config.has("linear_attn_config"):
            level = config.level("linear_attn_config")
            heads, size, kernel = (level.integer(key) for key in ("num_heads", "head_dim", "short_conv_kernel_size"))
        else:
            heads, size, kernel = (
                config.integer(key if config.has(key) else otherwise)
                for key, otherwise in (
                    ("linear_num_heads", "num_attention_heads"),
                    ("linear_head_dim", "head_dim"),
                    ("linear_conv_kernel_dim", "short_conv_kernel_size"),
                )
            )
        level.skip("gate_lower_bound")
        level.expect("num_kv_heads", heads)
        width, hidden = heads * size, config.integer("hidden_size")
        # How many of the two gates have a full matrix; each of the others passes a rank of one head size, in and out.
        full = 2 if not gate_rank else 1 if level.flag("use_full_rank_gate", False) else 0
        gates = -(-(2 - full) * size * (hidden + width) // width)
        # Queries, keys, values, the gates with a full matrix, and beta, a rate for each head.
        projected = (3 + full) * width + heads
        return Recurrence("kimi_delta", heads=heads, width=width, projected=projected, state=width * size,
                          convolved=3 * width, conv_kernel=kernel, gates=gates, vectors=1)  # fmt: skip

    return read


def short_convolution(config: Config) -> Recurrence:
    """LFM2's gated short convolution: three projections of the hidden size, one convolved."""
    width = config.integer("hidden_size")
    config.expect("conv_bias", False)
    kernel = config.integer("conv_L_cache")
    return Recurrence("short_convolution", heads=width, width=width, projected=3 * width, convolved=width,
                      conv_kernel=kernel)  # fmt: skip


def rg_lru(config: Config) -> Recurrence:
    """Griffin's gated linear recurrence (arXiv:2402.19427, section 2.4): gates of block-diagonal matrices."""
    heads = config.integer("num_attention_heads")
    width = config.integer("lru_width", None) or config.integer("hidden_size")
    # Block-diagonal: a matrix of a head's width for each of two gates, which is 2 x width / heads weights per channel.
    gates = 2 * _divided(config, width, heads)
    return Recurrence("rg_lru", heads=heads, width=width, projected=2 * width, state=width, convolved=width,
                      conv_kernel=config.integer("mamba_conv", 4), gates=gates, vectors=6)  # fmt: skip


def rwkv(config: Config) -> Recurrence:
    """RWKV-4's time mixing (arXiv:2305.13048): key, value, receptance; five vectors of state."""
    width = config.integer("attention_hidden_size", None) or config.integer("hidden_size")
    # Numerator, denominator and maximum of the weighted mean, and the last token of time mixing and of channel mixing.
    return Recurrence("rwkv", heads=width, width=width, projected=3 * width, state=5 * width, vectors=5)


def rwkv7(config: Config) -> Recurrence:
    """RWKV-7's time mixing (arXiv:2503.14456): a matrix per head; decay, rates and gate through low ranks."""
    config.expect("attn", False)
    size, width = config.integer("head_dim", 64), config.integer("hidden_size")
    heads = config.integer("num_attention_heads", None) or _divided(config, width, size)
    ranks = (config.integer(f"{name}_low_rank_dim") for name in ("decay", "a", "v", "gate"))
    return Recurrence("rwkv", heads=heads, width=width, projected=3 * width, state=width * size + 2 * width,
                      gates=2 * sum(ranks), vectors=14)  # fmt: skip


def plamo(config: Config) -> Recurrence:
    """PLaMo 2's Mamba: a step per head; steps, B and C from the convolved channels."""
    heads, size = config.integer("mamba_num_heads"), config.integer("hidden_size_per_head")
    width, state = heads * size, config.integer("mamba_state")
    # PLaMo 2's own rule for the rank of its steps (vLLM: ``Plamo2MambaMixer.time_step_rank``).
    rank = max(64, config.integer("hidden_size") // 16)
    gates = rank + 2 * state + -(-rank * heads // width)
    return Recurrence("selective_scan", heads=heads, width=width, projected=2 * width, state=width * state,
                      convolved=width, conv_kernel=config.integer("mamba_conv", 4), gates=gates)  # fmt: skip


def gated_memory(config: Config) -> Recurrence:
    """Phi-4-mini-flash's gated memory unit (arXiv:2507.06607): an earlier layer's state times a gate of the input."""
    width = config.integer("mamba_expansion", 2) * config.integer("hidden_size")
    return Recurrence("short_convolution", heads=width, width=width, projected=width)


def mlstm(config: Config) -> Recurrence:
    """xLSTM's matrix memory (arXiv:2405.04517, section 2.3): queries and keys are a fraction of the hidden size."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    keys, width = (int(config.number(key) * hidden) for key in ("qk_dim_factor", "v_dim_factor"))
    # A head's memory is its keys by its values; values of all heads together are the width.
    state = _divided(config, keys, heads) * width
    return Recurrence("mlstm", heads=heads, width=width, projected=2 * keys + 2 * width + 2 * heads, state=state,
                      vectors=1)  # fmt: skip


def _divided(config: Config, width: int, heads: int) -> int:
    if width % heads:
        raise InputError(f"{config.where}: {heads} heads do not divide a width of {width}")
    return width // heads


def _dividing(config: Config, key: str, count: int, heads: int) -> None:
    if heads % count:
        raise InputError(f"{config.place(key)}: {count} does not divide {heads} heads")
