"""The serving engines that a deployment may name: what each of their schedulers does where nothing is said.

Defaults of TensorRT-LLM: ``TorchLlmArgs`` and ``KvCacheConfig`` of 1.2 (tensorrt_llm/llmapi/llm_args.py: max_batch_size
2048, max_num_tokens 8192, enable_chunked_prefill False, tokens_per_block 32, free_gpu_memory_fraction 0.9). Defaults of
SGLang: ``ServerArgs._handle_gpu_memory_settings`` of 0.5 (python/sglang/srt/server_args.py: chunks and CUDA graphs by
the size of the memory, mem_fraction_static from what they take), page_size 1, enable_mixed_chunk False, and at least
2048 running requests (``ModelRunner``); with data-parallel attention the ranks share a chunk among them
(``_handle_data_parallelism``). Those of vLLM: ``EngineArgs.get_batch_defaults`` of a server (vllm/engine/arg_utils.py:
max_num_batched_tokens and max_num_seqs by the size of the memory, and less on TPUs, on CPUs, and on an A100, on which
large batches of prompts cost throughput: PR 17885), gpu_memory_utilization 0.9 and block_size 16 of ``CacheConfig``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from evaluator.catalog.hardware import Hardware
from evaluator.errors import InputError

MIB, GIB = 2.0**20, 2.0**30


@dataclass(frozen=True)
class SchedulerDefaults:
    """What an engine does where a deployment does not say it; the names are those of the keys in a scenario.

    ``max_num_batched_tokens`` makes room for the longest prompt where prompts are computed whole.
    """

    policy: str  # a name of ``evaluator.policies``
    max_num_seqs: int
    max_num_batched_tokens: int
    memory_fraction: float
    block_tokens: int

    def within(self, max_num_batched_tokens: int | None, decode_tokens: int) -> SchedulerDefaults:
        """No more sequences than decode in a token budget that is said, at so many tokens each; None: none is.

        vLLM's rule (``EngineArgs._set_default_max_num_seqs_and_batched_tokens_args``), taken for every engine: a budget
        that someone lowers would otherwise be refused for a number that they never said.
        """
        if max_num_batched_tokens is None:
            return self
        return replace(self, max_num_seqs=max(1, min(self.max_num_seqs, max_num_batched_tokens // decode_tokens)))


@dataclass(frozen=True)
class ServingEngine:
    """One engine. ``memory_of`` says what ``memory_fraction`` is a fraction of.

    * device: of a device's memory, for weights, activations and KV (vLLM ``gpu_memory_utilization``);
    * static: of a device's memory, for weights and KV; activations take from the rest (SGLang ``mem_fraction_static``);
    * free: of what weights and activations leave, for KV (TensorRT-LLM ``free_gpu_memory_fraction``).

    ``defaults`` are those on a device, for a replica of so many of them, which are divided into so many data-parallel
    ranks that share experts (1: into none). Limits are those of one rank. ``maker``: of the only devices that it runs
    on; None where it runs on those of several. ``whole_blocks``: of weights in fp8 with block scales it loads no shards
    but whole blocks (``cost.blocks``); TensorRT-LLM shares such a matrix among fewer devices instead
    (``DeepseekV3DecoderLayer._compute_mlp_tp_size``). ``copies_queries``: its attention of prompts rotates the queries
    and writes them to a buffer first (``AttentionOp::enqueueContext`` of TensorRT-LLM, which calls
    ``invokeQKVPreprocessing``); others rotate them in an operator of its own. ``profiles_sampling``: the run in which
    it finds what activations take samples ``max_num_seqs`` sequences (``GPUModelRunner._dummy_sampler_run`` of vLLM).
    That of TensorRT-LLM has the prompts that fill an iteration (``KvCacheCreator._create_dummy_context_requests``), and
    SGLang has none: both sample in what their fraction leaves.
    """

    name: str
    label: str
    memory_of: str  # device | static | free
    defaults: Callable[[Hardware, int, int], SchedulerDefaults]
    maker: str | None = None
    whole_blocks: bool = True
    profiles_sampling: bool = False
    copies_queries: bool = False

    def runs_on(self, hardware: Hardware) -> bool:
        """Whether there is such an engine for a device; of an unknown maker's we do not know, and say yes."""
        return self.maker is None or hardware.maker in ("", self.maker)


def _vllm(hardware: Hardware, devices: int, ranks: int) -> SchedulerDefaults:
    # `EngineArgs.get_batch_defaults`, branch by branch, for a server: 256 and 2048 are what it has for devices that
    # it does not know.
    name, sequences, tokens = hardware.name.lower(), 256, 2048
    if hardware.kind == "cpu":
        sequences, tokens = 128 * (devices // ranks), 2048 * (devices // ranks)
    elif hardware.kind == "tpu":
        tokens = next((few for chip, few in {"v5e": 512, "v5p": 256, "v6e": 1024}.items() if chip in name), tokens)
    # `device_memory >= 70 * GiB_bytes and "a100" not in device_name` is one line there.
    elif hardware.memory_bytes >= 70 * GIB and "a100" not in name:
        sequences, tokens = 1024, 8192
    return SchedulerDefaults("chunked", sequences, tokens, 0.9, 16)


def _trtllm(hardware: Hardware, devices: int, ranks: int) -> SchedulerDefaults:
    """Whole prompts beside the decodes, as in-flight batching does without chunked context."""
    # `enable_chunked_prefill` is off, so that a prompt is computed whole, within what the decodes leave of
    # max_num_tokens.
    return SchedulerDefaults("mixed", 2048, 8192, 0.9, 32)


def _sglang(hardware: Hardware, devices: int, ranks: int) -> SchedulerDefaults:
    """Prompts first, decodes wait. SGLang cuts prompts longer than its chunk size; here they are computed whole."""
    mib = hardware.memory_bytes / MIB
    # (GiB below which the row holds, chunk, largest batch with a CUDA graph on less than four devices, and on more),
    # as the branches of `_handle_gpu_memory_settings` have it; what is left is a B200 or an MI300.
    sizes = ((35, 2048, 24, 80), (60, 4096, 32, 160), (90, 8192, 256, 512), (160, 8192, 256, 512))
    chunk, few, many = next((row[1:] for row in sizes if mib < row[0] * 1024), (16384, 512, 512))
    graphs = few if devices < 4 else many
    # MiB that it leaves out of mem_fraction_static: metadata, activations of a chunk, CUDA graphs, and a GiB for
    # every eight devices; then the buffers in which data-parallel attention gathers the tokens of all ranks.
    reserved = 512 + 1.5 * chunk + 2 * graphs + devices / 8 * 1024
    if ranks > 1:
        reserved += graphs * ranks * (4.5 if graphs > 300 else 3.0)
    if mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    return SchedulerDefaults("continuous", 2048, max(1, chunk // ranks), max(0.1, round(1.0 - reserved / mib, 3)), 1)


ENGINES: dict[str, ServingEngine] = {
    engine.name: engine
    for engine in (
        ServingEngine("vllm", "vLLM", "device", _vllm, profiles_sampling=True),
        ServingEngine(
            "trtllm", "TensorRT-LLM", "free", _trtllm, maker="NVIDIA", whole_blocks=False, copies_queries=True
        ),
        ServingEngine("sglang", "SGLang", "static", _sglang),
    )
}

DEFAULT_ENGINE = "vllm"
"""The engine where none is named: the one whose servers were measured, and whose kernels stand in for another's."""


def serving_engine(name: str) -> ServingEngine:
    """The engine of this name. InputError if there is none."""
    if name not in ENGINES:
        raise InputError(f"no serving engine {name!r}; the engines are {', '.join(ENGINES)}")
    return ENGINES[name]
