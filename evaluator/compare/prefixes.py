"""What the prompts of an experiment share in the prefix cache of its server."""

from __future__ import annotations

import numpy as np

from evaluator.compare.servers import Server
from evaluator.cost.memory import kv_units
from evaluator.experiments.traffic import MeasuredRequests


def kept_units(server: Server, load: MeasuredRequests) -> int | None:
    """KV units that the prompts take in the prefix cache for good; None where nothing is shared.

    The fixed prompts stay, as long as they are sent again and again; their whole blocks are there once, the system
    prompt of a group once for all its prompts. Without the cache, or where they would fill half of it, nothing is.
    """
    experiment, workload, kv = server.experiment, server.experiment.workload, server.replica.kv
    block, fixed = experiment.block_tokens, workload.groups * workload.prompts_per_group
    # The first requests are the fixed prompts, each once, in the order in which generators send them: later
    # ones repeat them.
    distinct = kv_units(kv, whole_blocks(load, block)[:fixed])
    system = int(kv_units(kv, workload.system_tokens // block * block))
    # Each group's system prompt is in the blocks of all its prompts, and is there once.
    resident = int(distinct.sum()) - system * (len(distinct) - workload.groups)
    # Half: a cache that is nearly full of them would evict some between two uses, which no constant of resident
    # units tells.
    if not (experiment.prefix_caching and experiment.chunked_prefill) or resident > kv.capacity_units / 2:
        return None
    return max(resident, 0)


def whole_blocks(load: MeasuredRequests, block_tokens: int) -> np.ndarray:
    """Prompt tokens of each request in whole blocks, (request,); one token at least is left to compute."""
    return (load.prompt_tokens - 1) // block_tokens * block_tokens
