"""Models, devices and efficiencies for tests of the cost model, by hand, so that figures can be worked on paper."""

from __future__ import annotations

from evaluator.catalog.calibration import OPERATOR_CLASSES, Calibration, OperatorEfficiency
from evaluator.catalog.hardware import Hardware, Link
from evaluator.catalog.model import (
    CheckpointPrecision,
    DenseFeedForward,
    LatentAttention,
    LayerKind,
    LinearAttention,
    Model,
    MoeFeedForward,
    SoftmaxAttention,
    StateSpace,
)


def _model(name: str, hidden: int, vocabulary: int, *layers: LayerKind, **more) -> Model:
    return Model(name, "by hand", hidden, vocabulary, 131072, layers, **more)


def llama(name: str, layers: int, hidden: int, heads: int, intermediate: int) -> Model:
    """A Llama 3.1 (8 KV heads of 128)."""
    return _model(
        name, hidden, 128256, LayerKind(layers, SoftmaxAttention(heads, 8, 128), DenseFeedForward(intermediate))
    )


LLAMA_8B = llama("llama-8b", 32, 4096, 32, 14336)
LLAMA_70B = llama("llama-70b", 80, 8192, 64, 28672)
LLAMA_405B = llama("llama-405b", 126, 16384, 128, 53248)
QWEN3_235B = _model(
    "qwen3-235b", 4096, 151936, LayerKind(94, SoftmaxAttention(64, 4, 128), MoeFeedForward(128, 8, 1536))
)
_MLA = LatentAttention(128, 512, 128, 64, 128, 1536)
DEEPSEEK_V3 = _model(
    "deepseek-v3",
    7168,
    129280,
    LayerKind(3, _MLA, DenseFeedForward(18432)),
    LayerKind(58, _MLA, MoeFeedForward(256, 8, 2048, shared_intermediate=2048)),
    checkpoint=CheckpointPrecision("fp8", "fp8", "fp8", "bf16", "bf16"),
)
GPT_OSS_20B = _model(
    "gpt-oss-20b",
    2880,
    201088,
    LayerKind(12, SoftmaxAttention(64, 8, 64, window=128, bias=True), MoeFeedForward(32, 4, 2880, bias=True)),
    LayerKind(12, SoftmaxAttention(64, 8, 64, bias=True), MoeFeedForward(32, 4, 2880, bias=True)),
    checkpoint=CheckpointPrecision(experts="mxfp4"),
)
QWEN3_NEXT = _model(
    "qwen3-next",
    2048,
    151936,
    LayerKind(36, LinearAttention(16, 32, 128, 128, 4), MoeFeedForward(512, 10, 512, True, 512, True)),
    LayerKind(12, SoftmaxAttention(16, 2, 256, output_gate=True), MoeFeedForward(512, 10, 512, True, 512, True)),
)
NEMOTRON_H = _model(
    "nemotron-h",
    8192,
    131072,
    LayerKind(54, StateSpace(256, 64, 256, 8, 4), None),
    LayerKind(10, SoftmaxAttention(64, 8, 128), None),
    LayerKind(54, None, DenseFeedForward(32768, gated=False)),
)
LLAMA4 = _model(
    "llama-4",
    5120,
    202048,
    LayerKind(12, SoftmaxAttention(40, 8, 128), DenseFeedForward(16384)),
    LayerKind(12, SoftmaxAttention(40, 8, 128, window=8192, chunked=True), DenseFeedForward(16384)),
    LayerKind(
        24,
        SoftmaxAttention(40, 8, 128, window=8192, chunked=True),
        MoeFeedForward(128, 1, 8192, shared_intermediate=8192),
    ),
)
MAMBA = _model("mamba", 4096, 50288, LayerKind(64, StateSpace(128, 64, 128, 8, 4), None))
ALL_MODELS = (
    LLAMA_8B, LLAMA_70B, LLAMA_405B, QWEN3_235B, DEEPSEEK_V3, GPT_OSS_20B, QWEN3_NEXT, NEMOTRON_H, LLAMA4, MAMBA,
)  # fmt: skip

H100 = Hardware(
    "h100",
    "gpu",
    {"bf16": 989e12, "fp16": 989e12, "fp8": 1979e12, "int8": 1979e12},
    80e9,
    3.35e12,
    (Link("nvlink", 450e9, 1e-6, 8), Link("infiniband", 50e9, 5e-6, None)),
    700.0,
    None,
    None,
    {},
)


def calibration(flops=0.7, bandwidth=0.8, knee=0.2, launch_s=1.5e-6, link=0.8, step_s=1e-3, sequence_s=1e-5):
    """The same efficiencies for every operator class."""
    efficiency = OperatorEfficiency(flops, bandwidth, knee, launch_s)
    return Calibration(
        "test", "any", "datasheet", dict.fromkeys(OPERATOR_CLASSES, efficiency), link, step_s, sequence_s, sources={}
    )


PERFECT = calibration(1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
