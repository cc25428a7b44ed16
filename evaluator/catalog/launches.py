"""What it takes a host to launch an iteration that is no whole CUDA graph, layer by layer; a part of a set."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields

from evaluator.catalog.fields import Fields


@dataclass(frozen=True)
class Launches:
    """Seconds of the host, mostly per layer of iterations with prompts.

    Engines keep CUDA graphs of whole iterations for decodes alone. With prompts, attention and layers with a state are
    launched kernel by kernel; what is between them is a graph of its own up to ``captured_tokens``, and launched kernel
    by kernel, too, beyond.
    """

    captured_tokens: float  # the largest batch that graphs are kept of
    attention_s: float  # per layer with attention
    recurrent_s: float  # per layer with a state instead
    state_space_s: float  # the same of Mamba-2, whose scan is many kernels
    sparse_s: float  # per layer whose attention chooses what it attends to (an indexer, a compressor)
    dense_s: float  # per layer without routed experts, beyond the graphs
    experts_s: float  # per layer with them, beyond the graphs
    gathered_s: float  # per layer whose tokens go to the experts of other data-parallel ranks and come back
    agreed_s: float  # per iteration of any kind of such ranks, which agree on its size before
    gathered_beyond_s: float = 0.0  # on top of ``gathered_s``, beyond the graphs
    unjoined_s: float = 0.0  # per layer beyond the graphs of tensor-parallel groups that are such ranks
    prepared_s: float = 0.0  # per iteration beyond the graphs of a model with recurrent layers: the device waits for it


def read_launches(given: Fields) -> Launches | None:
    """The section ``launches`` of a set; None where it has none."""
    if given.raw("launches", None) is None:
        return None
    inner = given.inner("launches")
    seconds = {
        field.name: inner.quantity(field.name, "s", zero=True)
        if field.default is MISSING
        else inner.quantity(field.name, "s", field.default, zero=True)
        for field in fields(Launches)
        if field.name != "captured_tokens"
    }
    # The only one that is no time. All without a default must be stated where any is: one left out would be launched
    # in no time.
    launches = Launches(captured_tokens=inner.number("captured_tokens"), **seconds)
    inner.finish()
    return launches
