"""Decode attention by kernels other than an engine's own choice."""

from __future__ import annotations

import pytest

from evaluator.catalog import load_hardware
from evaluator.catalog.attention_kernels import AUTO, decode_devices, decode_kernel
from evaluator.cost.batch import decode_batch
from evaluator.cost.iteration import iteration_time
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.replica.build import build
from evaluator.replica.spec import ReplicaSpec


def context_ns(backend, kv):
    """What a token of context costs a decode of Llama-3.1-70B on one B200."""
    spec = ReplicaSpec(
        "llama-3.1-70b", "b200-sxm", precision=Precision("nvfp4", kv=kv), attention_backend=backend, unequal=0.0
    )
    (cost,) = build(spec).ready.pipeline_ranks
    short, long = (float(iteration_time(cost, decode_batch(32.0, tokens, None))) for tokens in (2000, 4000))
    return (long - short) / (32 * 2000) * 1e9


def test_kv_in_8_bits_is_read_more_slowly_than_by_the_engines_choice():
    """2.7 TB/s instead of 7 and more: 164 kB a token take 60 ns, as calibration/host.md says of these kernels."""
    assert context_ns("flashinfer", "fp8") == pytest.approx(163840 / 2.7e12 * 1e9, rel=0.02)
    assert context_ns(AUTO, "fp8") < 0.6 * context_ns("flashinfer", "fp8")
    assert context_ns("flashinfer", "bf16") == pytest.approx(context_ns("flashinfer", "fp8"), rel=0.05)


def test_nothing_waits_for_the_longest_context():
    spec = ReplicaSpec("llama-3.1-70b", "b200-sxm", precision=Precision("nvfp4", kv="fp8"), unequal=3.0)
    own, other = (build(ReplicaSpec(**(vars(spec) | {"attention_backend": name}))) for name in (AUTO, "flashinfer"))
    assert own.ready.pipeline_ranks[0].late_s > 0.0 == other.ready.pipeline_ranks[0].late_s


def test_what_was_not_measured_is_refused():
    for hardware, kv in (("h100-sxm", "fp8"), ("b200-sxm", "int8")):
        spec = ReplicaSpec("llama-3.1-8b", hardware, precision=Precision(kv=kv), attention_backend="flashinfer")
        assert build(spec).status.startswith("unsupported: attention_backend flashinfer on ")
        assert f"with KV in {kv}: it was measured with KV in 16 bits and in fp8, on b200-sxm" in build(spec).status
    assert decode_kernel(AUTO, "fp8", load_hardware("b200-sxm")) is None and decode_devices(AUTO) == ()
    assert decode_kernel("flashinfer", "fp16", load_hardware("b200-sxm")).bandwidth_efficiency > 0.6


def test_models_without_keys_and_values_of_heads_have_kernels_of_their_own():
    spec = ReplicaSpec("deepseek-v2-lite", "b200-sxm", attention_backend="flashinfer")
    assert build(spec).status == (
        "unsupported: attention_backend flashinfer on deepseek-v2-lite, none of whose layers keeps keys and values of "
        "heads, which is what it was measured on; use auto"
    )


def test_a_file_of_an_unknown_device(tmp_path, monkeypatch):
    monkeypatch.setenv("EVALUATOR_PATH", str(tmp_path))
    file = tmp_path / "models" / "attention" / "flashinfer.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("name: flashinfer\ndevices: {b2000: {}}\nsources: {devices: mine}\n")
    with pytest.raises(InputError, match=r"devices\.b2000: no such device; did you mean"):
        decode_kernel("flashinfer", "fp8", load_hardware("b200-sxm"))
