"""Names that drivers, data sheets and experiment files give to devices -> entries of the catalog."""

from __future__ import annotations

import re

from evaluator.catalog.hardware import load_hardware
from evaluator.catalog.store import has, names

_VENDOR = re.compile(r"^(nvidia|amd|intel|google|geforce|instinct|tesla|habana)-")
_DETAIL = re.compile(
    r"-(\d+-?gi?b|hbm\d\w*|gpu|oam|vf|ac|nvl72|blackwell|(server|(max-q-)?workstation)-edition)(?=-|$)"
)
_MEMORY = re.compile(r"(\d+)[ _-]?gi?b\b", re.IGNORECASE)
_OTHERWISE = {"tpu-v5-lite": "tpu-v5e", "tpu-v6-lite": "tpu-v6e", "tpu-7x": "tpu-ironwood", "tpu-7": "tpu-ironwood"}
"""Names that tell nothing of the catalog's."""


def recognised(name: str) -> str | None:
    """The catalog's entry for a device called so, whoever made the name; None where there is none.

    A name that says another memory than the entry's is another device.
    """
    entry = called_alike(name)
    return entry if entry is None or _fits(name, entry) else None


def entry_called(name: str) -> str:
    """The catalog's entry for a device that a user calls so, or the ``name`` itself where there is none, or no telling.

    ``H200`` and ``NVIDIA GeForce RTX 4090`` are told; ``H100`` is not, which may be the SXM or the PCIe build.
    """
    if name.endswith((".yaml", ".yml")) or has("hardware", name):
        return name
    entry, plain = recognised(name), plain_device(name)
    builds = [other for other in names("hardware") if other.startswith(f"{plain}-")]
    # Drivers call the SXM build of the H100 "H100 80GB HBM3" and the other one "H100 PCIe".
    told = plain in builds or len(builds) < 2 or "hbm3" in name.lower()
    return entry if entry is not None and told else name


def called_alike(name: str) -> str | None:
    """The entry of that name, whatever memory the name says; None where there is none."""
    entries = names("hardware")
    if name in entries:
        return name
    plain = plain_device(name)
    # Without dashes: drivers write "RTX 4090" and "L40 S" where the catalog has one word, and the other way round.
    whole = {entry.replace("-", ""): entry for entry in entries}
    others = {other.replace("-", ""): entry for other, entry in _OTHERWISE.items()}
    joined = plain.replace("-", "")
    # H100 alone is the SXM build where both are there: what clouds rent out under that name.
    return whole.get(joined) or whole.get(f"{joined}sxm") or others.get(joined)


def plain_device(name: str) -> str:
    """The name in lower case without vendor, memory and build: ``H100 SXM5 80 GB`` is ``h100-sxm``."""
    plain = re.sub(r"[\s_]+", "-", name.strip().lower()).strip("-")
    # More than one: "NVIDIA GeForce RTX 4090", "AMD Instinct MI300X".
    while _VENDOR.match(plain):
        plain = _VENDOR.sub("", plain)
    return re.sub(r"sxm\d(?=-|$)", "sxm", _DETAIL.sub("", plain))


def _fits(name: str, entry: str) -> bool:
    stated = _MEMORY.search(name)
    # Makers count 10^9 and drivers 2^30 bytes, and some state what ECC leaves: 15 % covers all three, and tells 40 GB
    # from 80.
    return not stated or 0.85 < float(stated[1]) / (load_hardware(entry).memory_bytes / 1e9) < 1.15
