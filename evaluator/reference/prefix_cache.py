"""The KV cache as numbered blocks that requests with the same beginning share, as in vLLM v1.

A whole block is named by its content and the name of the block before it (a hash chain), so that two blocks of one name
hold the KV of the same tokens in the same place. The last block of a request is given back first, so that ends of
prompts are forgotten before their beginnings; ``block_pool`` has the order in which blocks are taken again.
"""

from __future__ import annotations

from evaluator.reference.block_pool import BlockPool, OnBlockPool
from evaluator.reference.limits import Limits
from evaluator.reference.request import Request


class PrefixCache(OnBlockPool):
    """Implements ``Kv``; a unit is a block."""

    def __init__(self, limits: Limits) -> None:
        self.capacity = limits.kv_units
        self._block = limits.block_tokens
        self.pool = BlockPool(limits.kv_units)

    def users(self, block: int) -> int:
        """How many requests use a block."""
        return self.pool.users(block)

    def units(self, tokens: int) -> int:
        return -(-tokens // self._block)

    def lookup(self, request: Request) -> int:
        """Whole blocks only, and at least one token is left to compute: the one that the next token comes from."""
        return len(self._shared_blocks(request, (request.target - 1) // self._block)) * self._block

    def admit(self, request: Request, units: int, hit_tokens: int, keep_free: int, fits: int = 0) -> bool:
        if request.units:  # it has been given those that were loaded for it
            more = max(units, fits) - request.units
            return max(more, 0) + keep_free <= self.free and self.extend(request, units)
        shared = self._shared_blocks(request, hit_tokens // self._block)
        # Shared blocks without a user count as free. To take them uses up as many free ones without a new block.
        idle = sum(self.users(block) == 0 for block in shared)  # they leave the free list, too
        if max(units, fits) - len(shared) + idle + keep_free > self.free:
            return False
        self.pool.share(shared)
        request.blocks = shared
        request.units = len(shared)
        return self.extend(request, units)

    def extend(self, request: Request, units: int) -> bool:
        more = max(units - request.units, 0)
        if more > self.free:
            return False
        request.blocks += self.pool.take(more)
        request.units += more
        return True

    def register(self, request: Request, tokens: int) -> None:
        whole = tokens // self._block
        named = whole
        # Names are given in order, so that those without one are at the end: go back to the last that has one.
        while named and self.pool.name(request.blocks[named - 1]) is None:
            named -= 1
        if named == whole:
            return
        names = self.pool.all_first_names(request, whole)
        for position in range(named, whole):
            self.pool.give_name(request.blocks[position], names[position])

    def shrink(self, request: Request, units: int) -> None:
        # The last block first, so that the beginning of a prompt, which others may share, is forgotten last (vLLM
        # ``KVCacheManager.free``).
        self.pool.give_back(list(reversed(request.blocks[units:])))
        del request.blocks[units:]
        request.units = len(request.blocks)

    def release(self, request: Request) -> None:
        self.shrink(request, 0)

    def give_up(self, request: Request) -> list[int]:
        """Take a request's blocks from it without freeing them: ``give_back`` does that later."""
        blocks, request.blocks, request.units = request.blocks, [], 0
        return blocks

    def give_back(self, blocks: list[int]) -> None:
        """What a request gave up is free."""
        self.pool.give_back(list(reversed(blocks)))

    def _shared_blocks(self, request: Request, most: int) -> list[int]:
        """The longest chain of blocks that are there, from the beginning."""
        blocks: list[int] = []
        for name in self.pool.first_names(request, most):
            block = self.pool.find(name)
            if block is None:
                break
            blocks.append(block)
        return blocks
