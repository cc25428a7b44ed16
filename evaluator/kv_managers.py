"""Ways to keep the KV cache that a user's program adds: one record each, by the name that ``kv.manager`` says.

Those of the package need no name: ``kv.admission`` says whether units are reserved or taken as tokens come, and
``kv.prefix_caching`` whether blocks are kept by their content. A manager of one's own is given to ``register``
(docs/parts.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluator.errors import InputError
from evaluator.registry import Registry


@dataclass(frozen=True, eq=False)
class KvManager:
    """How a replica keeps its KV, in either of two forms, or both.

    ``units``: how much a request takes whose KV fills so many units, int64 (request,). It is reserved on admission, so
    that it goes with ``kv.admission: reserve`` alone. None: as many.

    ``hooks`` and ``reference``: what happens to the KV when a request is admitted, computes, decodes and leaves, for
    the vectorised engine an object with the hooks of ``KvPart``, for the reference what makes a cache with the methods
    of ``reference.kv.Kv`` of its ``Limits``. Both must do the same, which ``evaluator.validate`` shows. What a manager
    keeps for itself must leave room for the largest request, or that is never admitted.

    Errors: ValueError for neither form, or one of ``hooks`` and ``reference`` alone.
    """

    # An implementer holds to this, which ``evaluator.validate`` shows on scenarios of his own: hooks are
    # functions from state to state that JAX traces once, they change nothing where ``on`` is false, and their
    # own state has arrays of fixed shape; the class for the reference comes to the same units after each of its
    # calls (``reference.kv.Kv``).
    name: str  # in scenario files
    says: str
    units: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None
    hooks: Any = None
    reference: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        # Both or neither: hooks alone would be run by the vectorised engine only, and nothing could show
        # whether they are right.
        if (self.hooks is None) != (self.reference is None):
            raise ValueError(f"KV manager {self.name} needs hooks and reference, which do the same, or neither")
        if self.hooks is None and self.units is None:
            raise ValueError(f"KV manager {self.name} needs units, or hooks and reference")


# Empty: the package's own ways are chosen by keys of ``kv`` and are parts of the programs, not records of this
# kind.
MANAGERS: Registry[KvManager] = Registry("KV manager", ())
register = MANAGERS.register


def manager(name: str | None) -> KvManager | None:
    """The manager of this name; None where none is said. InputError if there is none of that name."""
    if name is None:
        return None
    if name not in MANAGERS:
        registered_names = f"; those registered are {', '.join(MANAGERS)}" if MANAGERS else ""
        raise InputError(f"no KV manager {name!r} is registered{registered_names}; see docs/parts.md")
    return MANAGERS[name]
