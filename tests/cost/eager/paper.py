"""BestServe's own replica: CodeLlama-34b on four Ascend 910B3, with the numbers that its table 3 was computed from.

The paper does not print the memory bandwidth. With 1.6 TiB/s (read from the common "1.6 TB/s") RMSNorm and attention
of its table 3 come out to all digits, and with no other value do both. It prints no rates of copies either: its decode
attention leaves no time for them. Both modules' communication is 0.100 ms in the prefill and in the decode, which
equation 8 gives for neither: it must be the least that a transmission takes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from evaluator.catalog import load_hardware, load_model
from evaluator.cost.eager import AsPrinted, Corrected, EagerCost, best_serve_cost

LINK = 90e9  # byte/s: "three HCCS links, providing a maximum bandwidth of 90 GB/s", section 4.1
MEMORY = 1.6 * 2**40  # byte/s


def paper_cost(tables: AsPrinted | Corrected | None = None, tensor_parallel: int = 4) -> EagerCost:
    hardware = replace(load_hardware("ascend-910b3"), memory_bandwidth=MEMORY)
    tables = AsPrinted() if tables is None else tables
    cost = best_serve_cost(load_model("codellama-34b"), hardware, tensor_parallel, tables, LINK)
    unseen = {"update": math.inf, "repeat_kv": math.inf, "upcast": math.inf, "message_s": 100e-6}
    return cost._replace(prefill=cost.prefill._replace(**unseen), decode=cost.decode._replace(**unseen))
