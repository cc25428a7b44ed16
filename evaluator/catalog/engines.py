"""The serving engines that a deployment may name: what each of their schedulers does where nothing is said.

Their defaults, release by release and with their sources, are the tables in ``models/engines`` (``engine_rules``). What
of SGLang's follows from the memory by a formula is here: ``ServerArgs._handle_gpu_memory_settings`` of 0.5
(python/sglang/srt/server_args.py: mem_fraction_static is what chunks and CUDA graphs leave); with data-parallel
attention the ranks share a chunk among them (``_handle_data_parallelism``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from evaluator.catalog.engine_rules import PER_RANK, EngineRules, Release, load_engine_rules
from evaluator.catalog.hardware import Hardware
from evaluator.errors import InputError

MIB = 2.0**20


@dataclass(frozen=True)
class SchedulerDefaults:
    """What an engine does where a deployment does not say it; the names are those of the keys in a scenario.

    ``max_num_batched_tokens`` makes room for the longest prompt where prompts are computed whole. ``planning`` is what
    is simulated of it, which may be less than the engine does (``engine_rules.Rule``).
    """

    policy: str  # a name of ``evaluator.policies``
    max_num_seqs: int
    max_num_batched_tokens: int
    memory_fraction: float
    block_tokens: int
    planning: str
    admission: str
    full_prompt: bool
    prefix_caching: bool

    def within(self, max_num_batched_tokens: int | None, decode_tokens: int) -> SchedulerDefaults:
        """No more sequences than decode in a token budget that is said, at so many tokens each; None: none is.

        vLLM's rule (``EngineArgs._set_default_max_num_seqs_and_batched_tokens_args``), taken for every engine: a budget
        that someone lowers would otherwise be refused for a number that they never said.
        """
        if max_num_batched_tokens is None:
            return self
        return replace(self, max_num_seqs=max(1, min(self.max_num_seqs, max_num_batched_tokens // decode_tokens)))


@dataclass(frozen=True)
class PromptSplitting:
    """How an engine splits the tokens of prompts over ranks (``cost.prefill_context``), since which release.

    ``latent``: of models with MLA alone. ``pipelined``: since which release in a pipeline, too. ``dealt``: since which
    its ranks deal out decodes; None: each computes all.
    """

    since: Release
    latent: bool = False
    pipelined: Release = (0,)
    dealt: Release | None = None


@dataclass(frozen=True)
class PenaltyLists:
    """Until which release an engine's host makes a tensor of the lists of what its sequences have said, in every
    iteration, where a penalty for it is asked for (``cost.host``); later releases count on the device.

    ``dense``: the first that counts for models without experts or states, ``others``: for all.
    """

    dense: Release
    others: Release


@dataclass(frozen=True)
class ServingEngine:
    """One engine. ``memory_of`` says what ``memory_fraction`` is a fraction of.

    * device: of a device's memory, for weights, activations and KV (vLLM ``gpu_memory_utilization``);
    * static: of a device's memory, for weights and KV; activations take from the rest (SGLang ``mem_fraction_static``);
    * free: of what weights and activations leave, for KV (TensorRT-LLM ``free_gpu_memory_fraction``).

    ``sized``: the defaults on a device for a replica of so many of them and so many ranks, where the table leaves some
    to a formula; None: it leaves none. ``maker``: of the only devices that it runs on; None where it runs on those of
    several. ``whole_blocks``: of weights in fp8 with block scales it loads no shards
    but whole blocks (``cost.blocks``); TensorRT-LLM shares such a matrix among fewer devices instead
    (``DeepseekV3DecoderLayer._compute_mlp_tp_size``). ``copies_queries``: its attention of prompts rotates the queries
    and writes them to a buffer first (``AttentionOp::enqueueContext`` of TensorRT-LLM, which calls
    ``invokeQKVPreprocessing``); others rotate them in an operator of its own. ``profiles_sampling``: the run in which
    it finds what activations take samples ``max_num_seqs`` sequences (``GPUModelRunner._dummy_sampler_run`` of vLLM).
    That of TensorRT-LLM has the prompts that fill an iteration (``KvCacheCreator._create_dummy_context_requests``), and
    SGLang has none: both sample in what their fraction leaves. ``lists``: until when it penalises by lists; None: it
    has always counted on the device (``penaltylib`` of SGLang, ``penaltyKernels.cu`` of TensorRT-LLM).
    """

    name: str
    memory_of: str  # device | static | free
    sized: Callable[[SchedulerDefaults, Hardware, int, int], SchedulerDefaults] | None = None
    maker: str | None = None
    whole_blocks: bool = True
    profiles_sampling: bool = False
    copies_queries: bool = False
    splits_prompts: PromptSplitting | None = None
    lists: PenaltyLists | None = None

    @property
    def rules(self) -> EngineRules:
        """The table of its defaults."""
        return load_engine_rules(self.name)

    @property
    def label(self) -> str:
        """What its makers call it."""
        return self.rules.label

    def release(self, version: str | None) -> Release:
        """The release whose defaults hold; None: the newest of the table. InputError for an unknown one."""
        return self.rules.release(version)

    def last_read(self, version: str | None) -> Release:
        """A release as numbers; None: the last one whose source was read, which may be later than any rule of the
        table. InputError for an unknown one."""
        return self.rules.read_until if version is None else self.release(version)

    def defaults(self, hardware: Hardware, devices: int, ranks: int, version: str | None = None) -> SchedulerDefaults:
        """The engine's defaults on a device, for a replica of ``devices`` that are divided into so many data-parallel
        ``ranks`` which share experts (1: into none). Limits are those of one rank. InputError: unknown release."""
        table = self.rules  # once: each time its file is looked for
        release = table.release(version)
        limits, rules = table.limits(release, hardware), table.at(release)
        times = devices // ranks if limits.times_devices else 1
        usual = SchedulerDefaults(
            max_num_seqs=limits.max_num_seqs * times,
            max_num_batched_tokens=limits.max_num_batched_tokens * times,
            **{key: rules[name].simulated for key, name in _FIELDS.items()},
        )
        return usual if self.sized is None else self.sized(usual, hardware, devices, ranks)

    def api_servers(self, version: str | None, ranks: int) -> int:
        """How many API servers a replica of so many data-parallel ranks has. InputError: unknown release."""
        said = self.rules.of(version)["api_servers"].value
        return ranks if said == PER_RANK else int(said)

    def runs_on(self, hardware: Hardware) -> bool:
        """Whether there is such an engine for a device; of an unknown maker's we do not know, and say yes."""
        return self.maker is None or (hardware.kind == "gpu" and hardware.maker in ("", self.maker))


_FIELDS = {
    "policy": "batching.policy",
    "planning": "batching.planning",
    "memory_fraction": "kv.memory_fraction",
    "block_tokens": "kv.block_tokens",
    "admission": "kv.admission",
    "full_prompt": "kv.full_prompt",
    "prefix_caching": "kv.prefix_caching",
}


def _sglang(defaults: SchedulerDefaults, hardware: Hardware, devices: int, ranks: int) -> SchedulerDefaults:
    """What the memory says of chunks, and chunks and CUDA graphs of the memory fraction."""
    mib, chunk = hardware.memory_bytes / MIB, defaults.max_num_batched_tokens
    # The largest batch with a CUDA graph on less than four devices, and on more, by the chunk.
    # The chunk tells the class of memory, since SGLang picks both by the same steps of it (below 35, 60, 160
    # GiB and above). Below 20 GiB it keeps graphs of 8 alone, which the chunk does not tell.
    few, many = {2048: (24, 80), 4096: (32, 160), 8192: (256, 512)}.get(chunk, (512, 512))
    graphs = few if devices < 4 else many
    # MiB that it leaves out of mem_fraction_static: metadata, activations of a chunk, CUDA graphs, and a GiB for
    # every eight devices; then the buffers in which data-parallel attention gathers the tokens of all ranks.
    reserved = 512 + 1.5 * chunk + 2 * graphs + devices / 8 * 1024
    if ranks > 1:
        # 3 MiB of padding, and half as much again from 300 on, which SGLang puts down to inefficiencies of
        # torch's allocator or its own.
        reserved += graphs * ranks * (4.5 if graphs > 300 else 3.0)
    if mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    fraction = max(0.1, round(1.0 - reserved / mib, 3))
    return replace(defaults, max_num_batched_tokens=max(1, chunk // ranks), memory_fraction=fraction)


ENGINES: dict[str, ServingEngine] = {
    each.name: each
    for each in (
        # ``PCPManager.validate_config`` and ``ParallelConfig.pcp_shard_decode_requests`` of 0.28, 0.32 and 0.33: what
        # is between the first two was not read.
        ServingEngine(
            "vllm",
            "device",
            profiles_sampling=True,
            splits_prompts=PromptSplitting((0, 28), latent=True, pipelined=(0, 32), dealt=(0, 32)),
            # The second model runner counts on the device (vllm/v1/worker/gpu/sample/penalties.py). What it runs by
            # default is ``VllmConfig.use_v2_model_runner``, read in 0.21, 0.22.1, 0.24, 0.25, 0.28 and 0.29. It runs
            # Qwen3 from 0.22 and some other families from 0.23 or 0.24 on; a model here does not say its family.
            lists=PenaltyLists(dense=(0, 25), others=(0, 29)),
        ),
        ServingEngine("trtllm", "free", maker="NVIDIA", whole_blocks=False, copies_queries=True),
        # ``--enable-prefill-cp`` of 0.5.23: a batch with decodes is not split (``ZigzagCPStrategy.can_apply``).
        ServingEngine("sglang", "static", _sglang, splits_prompts=PromptSplitting((0, 5))),
    )
}

DEFAULT_ENGINE = "vllm"
"""The engine where none is named: the one whose servers were measured, and whose kernels stand in for another's."""


def serving_engine(name: str) -> ServingEngine:
    """The engine of this name. InputError if there is none."""
    if name not in ENGINES:
        raise InputError(f"no serving engine {name!r}; the engines are {', '.join(ENGINES)}")
    return ENGINES[name]
