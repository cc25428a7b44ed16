"""What data-parallel ranks send one another around routed experts, and what kernels do with what arrives.

``gather``: the states of all ranks' tokens are gathered on every device, and the experts' results are summed and
scattered. So do vLLM (its default ``allgather_reducescatter``, ``AgRsAll2AllManager``, with sequence-parallel experts),
SGLang (``moe_a2a_backend`` none) and TensorRT-LLM without all-to-all kernels. A reduce-scatter sends what an all-gather
does.

``all_to_all``: every state goes to the devices of the experts that it visits, once to each, and a sum over these
experts comes back; what goes to several devices of another node is sent there once. Its figures are those of NCCL.
``deepep`` does the same by DeepEP's normal kernels (github.com/deepseek-ai/DeepEP; vLLM ``--all2all-backend
deepep_high_throughput``, SGLang ``--moe-a2a-backend deepep``), ``nvlink`` by TensorRT-LLM's one-sided ones
(vLLM ``flashinfer_nvlink_one_sided``); ``deepep_low_latency`` sends a copy to every expert, whatever devices share.
These have figures of their own (``catalog.exchange_kernels``).
States go in the dtype in which the experts compute, results come back in 16 bits. Routers that limit a token to some
groups of experts (DeepSeek) send to fewer nodes than the even ones that are counted here.

In either, devices of one rank have a slice of its tokens each, and gather the rest of these afterwards. The router's
choices, a few bytes per token, are left out.
"""

from __future__ import annotations

from evaluator.catalog.exchange_kernels import SIDES
from evaluator.catalog.model import Model, MoeFeedForward
from evaluator.cost.collectives import Spread
from evaluator.cost.dtypes import compute_dtype, is_unpacked, stream_bytes, weight_dtypes
from evaluator.cost.gemm import input_bytes
from evaluator.cost.kernel import Operator
from evaluator.cost.parallel import ALL_TO_ALL, DEEPEP_LOW_LATENCY, GATHER, Parallel
from evaluator.cost.precision import Precision


def exchange(model: Model, moe: MoeFeedForward, precision: Precision, parallel: Parallel) -> list[Operator]:
    """The collectives of one layer's experts, of several data-parallel ranks."""
    width, stream = moe.latent or model.hidden, stream_bytes(precision.activations)
    devices = range(parallel.expert_devices)
    if parallel.exchange != GATHER:
        dtype = compute_dtype(weight_dtypes(model, precision)["experts"], precision.activations)
        # In low latency a token goes to each of its experts, so that devices and nodes get several copies.
        spread = None if parallel.exchange == DEEPEP_LOW_LATENCY else _spread(moe, parallel)
        copies = _copies(moe, parallel) if spread is None else spread.groups(parallel.expert_devices)
        # A rank's devices share out its tokens, so that each sends a tensor-th part of them.
        sent = width * copies / parallel.tensor
        messages = [
            Operator(f"experts.{side}", "all_to_all", "gathered", message_bytes=sent * size, ranks=devices,
                     collective="all_to_all" if parallel.exchange == ALL_TO_ALL else side, spread=spread,
                     sent_tokens=1.0 / parallel.tensor)
            for side, size in zip(SIDES, (input_bytes(dtype, stream), stream), strict=True)
        ]  # fmt: skip
    else:
        # The unit of ``gathered`` is a token of every rank, hence ``data`` states.
        gathered = parallel.token_ranks * width * stream
        messages = [
            Operator(
                f"experts.{side}",
                "all_reduce",
                "gathered",
                message_bytes=gathered,
                collective="all_gather",
                ranks=devices,
            )
            for side in SIDES
        ]
    if parallel.tensor > 1:
        messages.append(
            Operator("experts.all_gather", "all_reduce", "linear_tokens", message_bytes=width * stream,
                     collective="all_gather", ranks=range(parallel.tensor))
        )  # fmt: skip
    return messages


def visits(moe: MoeFeedForward, parallel: Parallel) -> float:
    """Experts of one device that D tokens visit, one of each data-parallel rank.

    A token visits all k in part, or under expert parallelism k/EP on average.
    """
    return parallel.token_ranks * moe.experts_per_token / parallel.expert


def _spread(moe: MoeFeedForward, parallel: Parallel) -> Spread:
    return Spread(moe.experts_per_token, parallel.expert)


def _copies(moe: MoeFeedForward, parallel: Parallel) -> float:
    """Copies of a token where every expert is sent one of its own: to all devices that share it."""
    return float(moe.experts_per_token * parallel.expert_shards)


def rows_kept(model: Model, moe: MoeFeedForward, precision: Precision, parallel: Parallel) -> float:
    """Rows that a device keeps around the experts' products for one token of each rank: its own visits, or all.

    Where a device has every token, kernels of 16 bits that know the experts of other devices by a map alone (vLLM
    ``TritonExperts``, SGLang's ``fused_moe``) keep a row for every visit, and so do those that unpack weights (Marlin,
    ``fused_marlin_moe``). Kernels of 8 and 4 bits permute the visits of their own experts and sum up these alone
    (DeepGEMM under vLLM's ``ep_scatter`` and ``ep_gather``, CUTLASS under ``finalizeMoeRouting``).
    """
    weight = weight_dtypes(model, precision)["experts"]
    by_map = compute_dtype(weight, precision.activations) in ("fp32", "bf16", "fp16")
    if parallel.exchange == GATHER and (by_map or is_unpacked(weight, precision.activations)):
        return parallel.token_ranks * float(moe.experts_per_token)
    return visits(moe, parallel)


def routing_elements(model: Model, moe: MoeFeedForward, precision: Precision, parallel: Parallel) -> float:
    """Elements that kernels around the experts' products read and write on a device, for one token of each rank: the
    activation function, what is put at 0, and the weighted sum over the experts of a token.

    Kernels that keep the rows of other devices' experts (``rows_kept``) activate and sum over all rows. Those of 16
    bits put them at 0 after each product (``write_zeros_to_output``); Marlin puts all rows of the last product at 0
    before it.
    """
    here, rows = visits(moe, parallel), rows_kept(model, moe, precision, parallel)
    inside, hidden = moe.intermediate / parallel.expert_shards, model.hidden
    sides = 3 if moe.gated else 2
    if parallel.exchange != GATHER:
        visited = _spread(moe, parallel).groups(parallel.expert_devices)  # devices
        summed = here + (2.0 * visited + 1.0) / parallel.tensor  # of tokens that came, and of sums that come back
        return sides * rows * inside + summed * hidden
    summed = rows + parallel.token_ranks
    # Marlin empties its output before it writes, and needs to only where rows of other devices' experts stay
    # unwritten. Kernels by a map write zeros behind each of their products, as wide as its output.
    if is_unpacked(weight_dtypes(model, precision)["experts"], precision.activations):
        emptied = rows * hidden * (rows > here)
    else:
        emptied = (rows - here) * ((sides - 1) * inside + hidden)
    return sides * rows * inside + emptied + summed * hidden
