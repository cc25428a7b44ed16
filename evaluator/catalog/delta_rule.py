"""What an engine's kernels of the gated delta rule take of prompts, as YAML: models/delta_rule/ENGINE.yaml.

A layer of this kind updates a state token by token. Kernels for prompts work in chunks, but carry the state from one
chunk to the next, so that a head walks along a prompt at a speed that nothing else on the device makes faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluator.catalog.engine_rules import Release, release_of
from evaluator.catalog.fields import Fields, devices_of, load_if_any


@dataclass(frozen=True)
class DeltaRule:
    """One layer of one device. Heads are of values, as the kernels count them."""

    start_s: float  # per round of heads
    walk_s: float  # per token of a prompt that a head walks along
    head_token_s: float  # per token and head: the work inside chunks, which all processors share
    heads: float  # that walk at the same time, of all prompts; more do so in rounds


@dataclass(frozen=True)
class DeltaRuleKernel:
    """``since``: the first release that runs it, by architecture; empty: where no other kernel does."""

    since: Mapping[str, Release]
    devices: Mapping[str, DeltaRule]


def delta_rule_kernel(engine: str, architecture: str, release: Release) -> DeltaRuleKernel | None:
    """The kernel that an engine's release runs on GPUs of an architecture; None where none was measured.

    Errors: InputError for a file that is not as it should be.
    """
    none: tuple[DeltaRuleKernel, ...] = ()
    kernels = load_if_any("delta_rule", engine, _read, none)
    for kernel in kernels:
        first = kernel.since.get(architecture)
        if first is not None and release[: len(first)] >= first:
            return kernel
    return next((kernel for kernel in kernels if not kernel.since), None)


def _read(document: Any, where: str, expected_name: str) -> tuple[DeltaRuleKernel, ...]:
    given = Fields(document, where)
    given.named(expected_name)
    given.text("note", None)
    listed = given.inner("kernels")
    given.sources([str(name) for name in listed.values])
    given.finish()
    return tuple(_kernel(listed.inner(name)) for name in listed.values)


def _kernel(given: Fields) -> DeltaRuleKernel:
    since = given.inner("since", {})
    first = {str(architecture): release_of(since, architecture) for architecture in since.values}
    devices = given.inner("devices")
    given.finish()
    return DeltaRuleKernel(first, {device: _figures(section) for device, section in devices_of(devices)})


def _figures(given: Fields) -> DeltaRule:
    seconds = {name: given.quantity(name, "s", zero=True) for name in ("start_s", "walk_s", "head_token_s")}
    # For whoever reads the file: what the fit misses.
    given.inner("errors", {})
    figures = DeltaRule(**seconds, heads=given.number("heads", low=1.0))
    given.finish()
    return figures
