"""The KV cache as numbered blocks that requests with the same beginning share, as in vLLM v1.

A whole block is named by its content and the name of the block before it (a hash chain), so that two blocks of one name
hold the KV of the same tokens in the same place. Blocks count who uses them. One that nobody uses keeps its content
and joins the end of the free list, the last block of a request first, or the front of the list where it has no name; a
new block is taken from the front of the list and forgets what it held: blocks that nobody can find go first, then the
least recently used content, ends of prompts before their beginnings.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from evaluator.reference.limits import Limits
from evaluator.reference.request import Request

_ROOT = 0


class PrefixCache:
    """Implements ``Kv``; a unit is a block."""

    def __init__(self, limits: Limits) -> None:
        self.capacity = limits.kv_units
        self._block = limits.block_tokens
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(limits.kv_units))
        self._users = [0] * limits.kv_units
        self._name: list[Hashable] = [None] * limits.kv_units  # of the content, where the block is whole
        self._blocks_named: dict[Hashable, list[int]] = {}  # several may hold the same
        self.known = 0
        self._names: dict[tuple[Hashable, int], int] = {}  # (name of the block before, content) -> name

    @property
    def free(self) -> int:
        """Blocks that nobody uses, whether they hold something or not."""
        return len(self._free)

    def users(self, block: int) -> int:
        """How many requests use a block."""
        return self._users[block]

    def units(self, tokens: int) -> int:
        return -(-tokens // self._block)

    def lookup(self, request: Request) -> int:
        """Whole blocks only, and at least one token is left to compute: the one that the next token comes from."""
        return len(self._shared_blocks(request, (request.target - 1) // self._block)) * self._block

    def admit(self, request: Request, units: int, hit_tokens: int, keep_free: int, fits: int = 0) -> bool:
        shared = self._shared_blocks(request, hit_tokens // self._block)
        # Shared blocks that nobody uses count as free. To take them uses up as many free ones without a new block.
        idle = sum(self._users[block] == 0 for block in shared)  # they leave the free list, too
        if max(units, fits) - len(shared) + idle + keep_free > self.free:
            return False
        for block in shared:
            self._users[block] += 1
            self._free.pop(block, None)
        request.blocks = shared
        request.units = len(shared)
        return self.extend(request, units)

    def extend(self, request: Request, units: int) -> bool:
        more = max(units - request.units, 0)
        if more > self.free:
            return False
        for _ in range(more):
            block, _ = self._free.popitem(last=False)
            # Only now is the content lost: a free block that was not taken can still be found.
            self._forget(block)
            self._users[block] = 1
            request.blocks.append(block)
        request.units += more
        return True

    def register(self, request: Request, tokens: int) -> None:
        whole = tokens // self._block
        named = whole
        # Names are given in order, so that those without one are at the end: go back to the last that has one.
        while named and self._name[request.blocks[named - 1]] is None:
            named -= 1
        name = self._name[request.blocks[named - 1]] if named else _ROOT
        for position in range(named, whole):
            name = self._name_of(request, position, name)
            block = request.blocks[position]
            self._name[block] = name
            self.known += 1
            self._blocks_named.setdefault(name, []).append(block)

    def shrink(self, request: Request, units: int) -> None:
        # The last block first, so that the beginning of a prompt, which others may share, is forgotten last (vLLM
        # ``KVCacheManager.free``).
        freed = list(reversed(request.blocks[units:]))
        for block in freed:
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None
        for block in reversed(freed):
            if not self._users[block] and self._name[block] is None:
                # Nobody can find it again: it goes before all that hold something (vLLM ``BlockPool.free_blocks``
                # prepends blocks without a hash to the free queue since PR 42656; before, all went to its end).
                self._free.move_to_end(block, last=False)
        del request.blocks[units:]
        request.units = len(request.blocks)

    def release(self, request: Request) -> None:
        self.shrink(request, 0)

    def _shared_blocks(self, request: Request, most: int) -> list[int]:
        """The longest chain of blocks that are there, from the beginning."""
        blocks: list[int] = []
        name: Hashable = _ROOT
        for position in range(most):
            name = self._name_of(request, position, name)
            if name not in self._blocks_named:
                break
            # Of several blocks with the same content the one that was named first (vLLM
            # ``BlockPool.get_cached_block``).
            blocks.append(self._blocks_named[name][0])
        return blocks

    def _name_of(self, request: Request, position: int, before: Hashable) -> Hashable:
        """Stands for the content and all before it. What the request does not say is like nothing else."""
        if position >= len(request.content):
            # A name with the request's own number: never equal to another request's, and equal to itself after a
            # preemption.
            return request.index, position
        return self._names.setdefault((before, request.content[position]), len(self._names) + 1)

    def _forget(self, block: int) -> None:
        name = self._name[block]
        if name is None:
            return
        self._name[block] = None
        self.known -= 1
        blocks = self._blocks_named[name]
        if len(blocks) == 1:
            del self._blocks_named[name]
        else:
            blocks.remove(block)
