"""What the fit needs to know of a device beside its data sheet: tiles that run at once, and the size of its cache."""

from __future__ import annotations

from typing import NamedTuple


class Processors(NamedTuple):
    """Streaming multiprocessors (one tile each at a time) and last-level cache in bytes."""

    tiles: int
    cache_bytes: float


PROCESSORS = {
    "a100-sxm": Processors(108, 40e6),  # NVIDIA A100 Tensor Core GPU Architecture whitepaper (2020)
    "a100-pcie": Processors(108, 40e6),
    "h100-sxm": Processors(132, 50e6),  # NVIDIA H100 Tensor Core GPU Architecture whitepaper (2022)
    "h100-pcie": Processors(114, 50e6),
    "h200-sxm": Processors(132, 50e6),  # the H100's die
    "h800": Processors(132, 50e6),  # the H100's die
    "h20": Processors(78, 60e6),  # as published by resellers
    "b200-sxm": Processors(148, 126e6),  # cudaDeviceProp of a B200; two dies
    "b300-sxm": Processors(148, 126e6),  # as the B200: Blackwell Ultra has the same number of processors
    "gb200": Processors(152, 126e6),  # nvidia-smi's MIG profiles (NVIDIA/gpu-operator #1303); cache as the B200
    "gb300": Processors(152, 126e6),  # as the GB200
    "l40s": Processors(142, 96e6),  # NVIDIA Ada GPU Architecture whitepaper (2023)
    "rtx-4090": Processors(128, 72e6),  # NVIDIA Ada GPU Architecture whitepaper (2022)
    "rtx-pro-6000": Processors(188, 128e6),  # NVIDIA RTX Blackwell GPU Architecture whitepaper (2025)
    "rtx-pro-6000-server": Processors(188, 128e6),  # the same chip
    "b60": Processors(20, 18e6),  # Xe cores: Intel's product page (2025); L2 cache: that of the B580, the same chip
    "mi300x": Processors(304, 256e6),  # AMD CDNA 3 Architecture whitepaper (2023): compute units, Infinity Cache
    "mi308x": Processors(80, 256e6),  # compute units by AITER's tuning; cache as the MI300X
    "mi325x": Processors(304, 256e6),  # as the MI300X, with other memory
    "mi355x": Processors(256, 256e6),  # AMD CDNA 4 Architecture whitepaper (2025)
}

UNKNOWN = Processors(0, 0.0)
"""A device that is not listed: no waves are counted, no measurement is taken for one out of the cache."""
