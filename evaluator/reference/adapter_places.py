"""The places of a device for LoRA adapters: which it holds, and what a batch has to load."""

from __future__ import annotations

from collections.abc import Collection

from evaluator.reference.batch import Batch


class AdapterPlaces:
    """So many ``places``; where a batch names an adapter that none holds, it is loaded into the place of the one that
    no batch has named for longest (vLLM ``LRUCacheLoRAModelManager``)."""

    def __init__(self, places: int) -> None:
        self.loads = 0
        self._places = places
        self._held: dict[int, None] = {}  # longest unused first

    @property
    def held(self) -> Collection[int]:
        """The adapters that are in places."""
        return self._held.keys()

    def take(self, batch: Batch) -> tuple[int, int]:
        """(distinct adapters that a batch names, those of them that are loaded for it)."""
        requests = [chunk.request for chunk in batch.chunks]
        requests += batch.decodes.members if batch.decodes else ()
        named = dict.fromkeys(request.adapter for request in (*requests, *batch.in_vain))
        # All that are held count as used before any is loaded. vLLM goes through a set, and may in between throw out an
        # adapter that the same batch names.
        missing = [adapter for adapter in named if adapter not in self._held]
        for adapter in named:
            if adapter in self._held:
                self._held[adapter] = self._held.pop(adapter)
        for adapter in missing:
            if len(self._held) >= self._places:
                del self._held[next(iter(self._held))]
            self._held[adapter] = None
        self.loads += len(missing)
        return len(named), len(missing)
