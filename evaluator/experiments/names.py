"""Names in experiment files -> names of the catalog."""

from __future__ import annotations

from evaluator.catalog import load_hardware
from evaluator.catalog.devices import called_alike, plain_device, recognised
from evaluator.catalog.published import model_name
from evaluator.catalog.store import names, suggestion
from evaluator.errors import InputError

__all__ = ["hardware_name", "model_name"]


def hardware_name(published: str) -> str:
    """The catalog's name of a GPU such as ``H100-SXM-80GB``, ``A100-80GB`` or ``RTXPRO6000``; else InputError.

    A GPU whose name says another memory than the catalog's is another one.
    """
    name = recognised(published)
    if name is not None:
        return name
    plain, alike = plain_device(published), called_alike(published)
    if alike is not None:
        memory = load_hardware(alike).memory_bytes / 1e9
        raise InputError(f"GPU {published} is not in the catalog: its {alike} has {memory:.0f} GB")
    raise InputError(
        f"GPU {published} is not in the catalog{suggestion(plain, names('hardware'))}; remedy: its data sheet as "
        f"my/models/hardware/{plain}.yaml, like the ones there, and EVALUATOR_PATH=my"
    )
