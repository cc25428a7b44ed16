"""``evaluator estimate``: one batch on one deployment, without a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args

import typer

from evaluator.cli.options import AttentionWeightsOption, KvOption, WeightsOption
from evaluator.cli.output import tell
from evaluator.errors import InputError

ModelOption = Annotated[str, typer.Option(help="A model of the catalog, or a path to a model's YAML or config.json.")]
HardwareOption = Annotated[str, typer.Option(help="Hardware of the catalog.")]
TpOption = Annotated[int, typer.Option(min=1, help="Tensor parallelism.")]
PpOption = Annotated[int, typer.Option(min=1, help="Pipeline parallelism.")]
EpOption = Annotated[int, typer.Option(min=1, help="Expert parallelism.")]
DpOption = Annotated[int, typer.Option(min=1, help="Data-parallel ranks of TP x PP devices, which share experts.")]
RedundantExpertsOption = Annotated[int, typer.Option(min=0, help="Copies of popular experts, placed by a balancer.")]
ExpertExchangeOption = Annotated[
    str, typer.Option(metavar="KERNELS", help="How data-parallel ranks send tokens to experts.")
]
TwoBatchOverlapOption = Annotated[
    bool, typer.Option("--two-batch-overlap", help="Half of a batch exchanges tokens while the other half computes.")
]
DcpOption = Annotated[int, typer.Option(min=1, help="TP ranks over which the KV of a sequence is split.")]
PcpOption = Annotated[int, typer.Option(min=1, help="Copies of the TP group that split the tokens of prompts.")]
AttentionBackendOption = Annotated[
    str, typer.Option(metavar="auto|flashinfer", help="Whose kernels decode attention runs.")
]
FeedForwardDevicesOption = Annotated[
    int | None, typer.Option(min=1, max=4096, help="Devices of their own for feed-forwards (AFD).")
]
AttentionRanksOption = Annotated[
    int | None, typer.Option(min=1, max=4096, help="With these, TP groups that compute attention; 1 where absent.")
]
MicroBatchesOption = Annotated[
    int | None, typer.Option(min=1, max=64, help="With these, parts of a batch under way; 3 where absent.")
]
PromptOption = Annotated[int, typer.Option(min=1, metavar="TOKENS", help="Tokens of a prompt.")]
OutputOption = Annotated[int, typer.Option(min=1, metavar="TOKENS", help="Tokens of an output.")]
BatchOption = Annotated[int, typer.Option(min=1, metavar="SEQUENCES", help="Sequences decoded together.")]
RateOption = Annotated[
    float | None, typer.Option(metavar="RPS", help="Requests per second: is this rate sustained, at which load?")
]
ActivationsOption = Annotated[str, typer.Option(metavar="DTYPE", help="dtype of the activations.")]
EngineOption = Annotated[
    str, typer.Option(metavar="vllm|trtllm|sglang", help="The serving engine: its kernels, host and memory.")
]
EngineVersionOption = Annotated[
    str | None, typer.Option(metavar="RELEASE", help="Of the engine, for its defaults; the newest that is known.")
]
MaxNumSeqsOption = Annotated[
    int | None, typer.Option(min=1, help="Most sequences of an iteration; as the engine has it.")
]
MaxNumBatchedTokensOption = Annotated[
    int | None, typer.Option(min=1, help="Most tokens of an iteration; as the engine has it.")
]
MemoryFractionOption = Annotated[
    float | None, typer.Option(metavar="FRACTION", help="Of the memory, for the engine; as the engine has it.")
]
EagerOption = Annotated[bool, typer.Option("--eager", help="The engine captures no CUDA graphs (--enforce-eager).")]
MaxLorasOption = Annotated[
    int | None, typer.Option(min=1, help="Places for LoRA adapters; --adapters says how many are named.")
]
LoraRankOption = Annotated[
    int | None, typer.Option(min=1, max=4096, help="Of the adapters, with --max-loras; 16 where absent.")
]
AdaptersOption = Annotated[
    int | None, typer.Option(min=1, help="Adapters that requests name, all alike; as many as --max-loras.")
]
CalibrationOption = Annotated[str, typer.Option(help="Efficiencies: auto (the best there are), or a set's name.")]
SpeculativeOption = Annotated[
    str | None, typer.Option(metavar="draft|mtp|eagle|ngram", help="Speculative decoding: who drafts.")
]
DraftsOption = Annotated[int | None, typer.Option(min=1, metavar="TOKENS", help="Tokens drafted in an iteration.")]
AcceptanceOption = Annotated[
    str | None, typer.Option(metavar="RATES", help="Chance that a draft is accepted: 0.8, or by position 0.8,0.6.")
]
DraftModelOption = Annotated[str | None, typer.Option(metavar="MODEL", help="Of --speculative draft.")]
DraftVocabularyOption = Annotated[
    int | None, typer.Option(min=1, metavar="TOKENS", help="Of the head of --speculative eagle.")
]


def estimate(
    model: ModelOption,
    hardware: HardwareOption,
    tp: TpOption = 1,
    pp: PpOption = 1,
    ep: EpOption = 1,
    dp: DpOption = 1,
    redundant_experts: RedundantExpertsOption = 0,
    expert_exchange: ExpertExchangeOption = "gather",
    two_batch_overlap: TwoBatchOverlapOption = False,
    dcp: DcpOption = 1,
    pcp: PcpOption = 1,
    prompt: PromptOption = 2048,
    output: OutputOption = 256,
    batch: BatchOption = 1,
    rate: RateOption = None,
    weights: WeightsOption = "checkpoint",
    activations: ActivationsOption = "bf16",
    kv: KvOption = "bf16",
    attention_weights: AttentionWeightsOption = None,
    engine: EngineOption = "vllm",
    engine_version: EngineVersionOption = None,
    max_num_seqs: MaxNumSeqsOption = None,
    max_num_batched_tokens: MaxNumBatchedTokensOption = None,
    memory_fraction: MemoryFractionOption = None,
    eager: EagerOption = False,
    attention_backend: AttentionBackendOption = "auto",
    feed_forward_devices: FeedForwardDevicesOption = None,
    attention_ranks: AttentionRanksOption = None,
    micro_batches: MicroBatchesOption = None,
    max_loras: MaxLorasOption = None,
    lora_rank: LoraRankOption = None,
    adapters: AdaptersOption = None,
    calibration: CalibrationOption = "auto",
    speculative: SpeculativeOption = None,
    drafts: DraftsOption = None,
    acceptance: AcceptanceOption = None,
    draft_model: DraftModelOption = None,
    draft_vocabulary: DraftVocabularyOption = None,
) -> None:
    """Time, memory and throughput of one batch, operator by operator."""
    from evaluator.catalog import load_calibration, load_hardware, load_model
    from evaluator.cost.precision import Precision
    from evaluator.estimation import estimate as run_estimate
    from evaluator.report.estimate import format_estimate

    of_attention = {} if attention_weights is None else {"--attention-weights": attention_weights}
    check_dtypes({"--weights": weights, "--activations": activations, "--kv": kv, **of_attention})
    device, loaded = load_hardware(hardware), load_model(model)
    # Before the result and on stderr: what was assumed of a config that does not tell holds for every number below.
    for assumption in loaded.assumptions:
        typer.echo(f"{loaded.name}: {assumption}", err=True)
    result = run_estimate(
        loaded,
        device,
        calibration=load_calibration(calibration, device, engine=engine),
        engine=engine,
        engine_version=engine_version,
        precision=Precision(weights, activations, kv, attention_weights),
        tensor_parallel=tp,
        pipeline_parallel=pp,
        expert_parallel=ep,
        data_parallel=dp,
        redundant_experts=redundant_experts,
        expert_exchange=expert_exchange,
        two_batch_overlap=two_batch_overlap,
        decode_context_parallel=dcp,
        prefill_context_parallel=pcp,
        prompt_tokens=prompt,
        output_tokens=output,
        batch=batch,
        rate_rps=rate,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        memory_fraction=memory_fraction,
        eager=eager,
        attention_backend=attention_backend,
        feed_forward_apart=_apart(feed_forward_devices, attention_ranks, micro_batches),
        **_adapters(max_loras, lora_rank, adapters),
        speculative=_speculative(speculative, drafts, acceptance, draft_model, draft_vocabulary),
    )
    # Also of what cannot run: its memory plan says by how much it does not fit. The exit code says the rest.
    tell(lambda: format_estimate(result), estimate=result)
    if result.status != "ok":
        raise InputError(f"{model} cannot run so on {hardware}: {result.status}")


def check_dtypes(chosen: Mapping[str, str]) -> None:
    """InputError where an option names no dtype."""
    from evaluator.catalog.model import DTypeName

    for option, dtype in chosen.items():
        # Only weights have a published dtype to keep.
        allowed = [*(["checkpoint"] if option in ("--weights", "--attention-weights") else []), *get_args(DTypeName)]
        if dtype not in allowed:
            raise InputError(f"{option} {dtype}: is no dtype; allowed: {', '.join(allowed)}")


def _apart(devices: int | None, ranks: int | None, micro_batches: int | None) -> dict[str, Any] | None:
    """The options of feed-forwards apart as a scenario has them."""
    given = {"attention_ranks": ranks, "micro_batches": micro_batches}
    # The scenario's reader has their defaults.
    given_options = {key: value for key, value in given.items() if value is not None}
    if devices is None:
        if given_options:
            raise InputError("--attention-ranks and --micro-batches need --feed-forward-devices")
        return None
    return {"devices": devices, **given_options}


def _adapters(places: int | None, rank: int | None, named: int | None) -> dict[str, Any]:
    """The options of adapters as a scenario has them."""
    if places is None:
        given = [option for option, value in (("--adapters", named), ("--lora-rank", rank)) if value is not None]
        if given:
            raise InputError(f"{given[0]} needs --max-loras, the adapters that the engine holds")
        return {}
    lora = {"max_loras": places} | ({} if rank is None else {"rank": rank})  # the scenario's reader has the default
    return {"lora": lora, "adapters": {"count": named or places}}


def _speculative(
    method: str | None, tokens: int | None, acceptance: str | None, model: str | None, vocabulary: int | None
) -> dict[str, Any] | None:
    """The options as a scenario has them."""
    given = {"tokens": tokens, "acceptance": _rates(acceptance), "model": model, "vocabulary": vocabulary}
    # Keys that were not given stay away: the scenario's reader has their defaults, and refuses those that a
    # method has not.
    given_options = {key: value for key, value in given.items() if value is not None}
    if method is None and given_options:
        raise InputError("--drafts, --acceptance, --draft-model and --draft-vocabulary need --speculative METHOD")
    if method is None:
        return None
    if tokens is None or acceptance is None:
        raise InputError(
            f"--speculative {method}: needs --drafts and --acceptance, such as --drafts 3 --acceptance 0.7"
        )
    return {"method": method, **given_options}


def _rates(text: str | None) -> float | list[float] | None:
    if text is None:
        return None
    try:
        rates = [float(rate) for rate in text.split(",")]
    except ValueError:
        raise InputError(f"--acceptance {text}: expected a rate, or several with commas between: 0.8,0.6") from None
    # One rate holds for every position, several are by position: the two readings that ``speculative.acceptance`` has.
    return rates if len(rates) > 1 else rates[0]
