"""Decode attention by kernels other than an engine's own choice, as YAML: models/attention/BACKEND.yaml.

A set of kernels is fitted to those that its engine runs where nothing is said. An engine told to run another library's
reads contexts at that one's rate, which depends on the dtype of the KV: kernels that know none of 8 bits unpack it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from evaluator.catalog.calibration import Calibration
from evaluator.catalog.fields import Fields, devices_of, load_if_any
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.relatives import nearest_figures

AUTO = "auto"
"""The engine's own choice."""
BACKENDS = (AUTO, "flashinfer")


@dataclass(frozen=True)
class DecodeKernel:
    """A library's decode attention on one device, of KV of one dtype: launch, bytes over bandwidth, and sequences."""

    launch_s: float
    bandwidth_efficiency: float
    head_sequence_s: float

    def put_into(self, calibration: Calibration) -> Calibration:
        """The set with this kernel for ordinary decode attention. Its contexts are split into even parts, so that
        nothing waits for the longest one."""
        decodes = replace(
            calibration.of("attention_decode"),
            launch_s=self.launch_s,
            bandwidth_efficiency=self.bandwidth_efficiency,
            activation_efficiency=self.bandwidth_efficiency,
            head_sequence_s=self.head_sequence_s,
            kv_head_sequence_s=0.0,
            join_s=0.0,
            spread=0.0,
            unsplit_s=0.0,
            beside_walk_s=0.0,
        )
        return replace(calibration, efficiencies={**calibration.efficiencies, "attention_decode": decodes})


def decode_kernel(backend: str, kv_dtype: str, hardware: Hardware) -> DecodeKernel | None:
    """The kernel of a backend for KV of a dtype on a device, or on the nearest one of its architecture; None where
    it was not measured. InputError for a file that is not as it should be."""
    by_dtype = nearest_figures(hardware, _by_device(backend))
    # The two kinds of 16 bits are one to a kernel that moves bytes.
    return None if by_dtype is None else by_dtype.get({"fp16": "bf16"}.get(kv_dtype, kv_dtype))


def decode_devices(backend: str) -> tuple[str, ...]:
    """The devices, names of the catalog, on which a backend was measured."""
    return tuple(_by_device(backend))


def _by_device(backend: str) -> Mapping[str, Mapping[str, DecodeKernel]]:
    return load_if_any("attention", backend, _read, {})


def _read(document: Any, where: str, expected_name: str) -> Mapping[str, Mapping[str, DecodeKernel]]:
    given = Fields(document, where)
    given.named(expected_name)
    given.text("note", None)
    given.sources(("devices",))
    listed = given.inner("devices")
    given.finish()
    return {device: _of_device(section) for device, section in devices_of(listed)}


def _of_device(given: Fields) -> Mapping[str, DecodeKernel]:
    kernels = {dtype: _kernel(given.inner(dtype)) for dtype in ("bf16", "fp8") if dtype in given.values}
    given.finish()
    return kernels


def _kernel(given: Fields) -> DecodeKernel:
    kernel = DecodeKernel(
        given.quantity("launch_s", "s", zero=True),
        given.number("bandwidth_efficiency", low=1e-6, high=1.0),
        given.quantity("head_sequence_s", "s", zero=True),
    )
    given.finish()
    return kernel
