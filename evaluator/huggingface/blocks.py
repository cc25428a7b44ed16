"""Readers of feed-forward blocks: each makes the reader of a family from what the family's keys mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from evaluator.catalog.model import DenseFeedForward, FeedForward, MoeFeedForward
from evaluator.errors import InputError
from evaluator.huggingface.config import Config

BlockReader = Callable[[Config], FeedForward]


def dense(
    *,
    gated: bool = True,
    bias: bool = False,
    key: str = "intermediate_size",
    times_hidden: int | None = None,
    activations: tuple[str, ...] = (),
) -> BlockReader:
    """A dense block.

    ``key`` is its width, ``times_hidden`` the width where there is no key; ``activations`` are the only ones that the
    family's code knows (none: any, they change no shape).
    """

    def read(config: Config) -> DenseFeedForward:
        # An activation changes no matrix: it is looked at only where the family's code has one alone, so that another
        # says that the file is of other code.
        if activations:
            config.expect("hidden_act", *activations)
        else:
            config.skip("hidden_act")
        # GPT-2's ``n_inner: null`` and its like mean four hidden sizes; a width that the file states goes before.
        otherwise = times_hidden * config.integer("hidden_size") if times_hidden else None
        width = config.integer(key, otherwise) if otherwise else config.integer(key)
        return DenseFeedForward(width, gated=gated, bias=config.flag("mlp_bias", bias))

    return read


def half_gated(bias: bool = False) -> BlockReader:
    """A gated block whose stated width is that of gate and up together (RecurrentGemma, the first Qwen)."""
    of = dense(bias=bias)

    def read(config: Config) -> FeedForward:
        block = of(config)
        assert isinstance(block, DenseFeedForward)
        # Records count the width of one of the two matrices, as every other family states it.
        return replace(block, intermediate=block.intermediate // 2)

    return read


def gated_silu(key: str = "intermediate_size") -> BlockReader:
    """The gated (SwiGLU) block without biases, and nothing else."""

    def read(config: Config) -> DenseFeedForward:
        config.expect("hidden_act", "silu", "swish")
        config.expect("mlp_bias", False)
        return DenseFeedForward(config.integer(key), gated=True)

    return read


def experts(
    *, gated: bool = True, bias: bool = False, shared_gate: bool = False, key: str = "moe_intermediate_size"
) -> BlockReader:
    """Routed experts of width ``key`` (``intermediate_size`` where there is no such key), and shared ones.

    The shared experts' width is stated, of one of them, or it is the routed experts'; ``shared_gate`` is Qwen's.
    """

    def read(config: Config) -> MoeFeedForward:
        config.skip("hidden_act")
        config.expect("mlp_bias", False)
        # Mixtral and others write the width of an expert where dense models write that of their block.
        width = config.integer(key, None) or config.integer("intermediate_size")
        count, chosen = config.integer("num_experts"), config.integer("num_experts_per_tok")
        # More would be repeated experts: the cost would count weights that are not there.
        if chosen > count:
            raise InputError(f"{config.place('num_experts_per_tok')}: {chosen} of only {count} experts")
        shared = _shared(config, width)
        return MoeFeedForward(
            experts=count,
            experts_per_token=chosen,
            intermediate=width,
            gated=gated,
            shared_intermediate=shared,
            # Qwen's gate weighs the shared expert's output by a sigmoid per token; without a shared expert
            # its config's class has none.
            shared_gate=shared_gate and shared > 0,
            bias=bias,
            latent=config.integer("moe_latent_size", None),
        )

    return read


def _shared(config: Config, width: int) -> int:
    count = config.integer("n_shared_experts", None, minimum=0)
    size = config.integer("shared_expert_intermediate_size", None, minimum=0)
    if size is None:
        return (count or 0) * width
    # Qwen states the width of its one shared expert, DeepSeek how many there are of a routed expert's width, some both.
    return size if count is None else count * size


def with_branch(of: BlockReader, columns: Callable[[Config], int]) -> BlockReader:
    """A dense block with so many columns of low-rank branches beside it."""

    def read(config: Config) -> FeedForward:
        block = of(config)
        assert isinstance(block, DenseFeedForward)
        # Whatever hangs beside the block as products through a small rank (adapters, LAUREL, inputs by layer) is kept
        # as one number of columns: its parameters and its time are those of one product of that rank.
        return replace(block, branch=columns(config))

    return read


def without_experts_dense(moe: BlockReader, otherwise: BlockReader) -> BlockReader:
    """``moe``, or ``otherwise`` where the number of experts is 0, 1 or absent."""

    def read(config: Config) -> FeedForward:
        if (config.integer("num_experts", 0, minimum=0) or 0) > 1:
            return moe(config)
        config.skip("num_experts_per_tok", "moe_intermediate_size")
        return otherwise(config)

    return read
