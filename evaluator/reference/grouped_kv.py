"""The KV cache of a hybrid model as vLLM v1 keeps it: groups of layers that take their blocks from one pool.

Each group has a row of blocks of every request. A group of full attention keeps all of them; one with a sliding window
gives those back that no token to come attends to, as does one of chunks (Llama 4); one of recurrent states (Mamba) has
a single block a request, since vLLM makes the block of such a group as long as a sequence may be. All groups have the
same number of layers, and blocks of the same size in bytes, so that any block fits any group (``cost.kv_groups``).

A prefix is found where all groups have it: full attention from the beginning, a window as many blocks as it spans, a
chunk from where it begins.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from evaluator.cost.kv_groups import KvGroup
from evaluator.reference.block_pool import BlockPool, OnBlockPool
from evaluator.reference.request import Request

if TYPE_CHECKING:
    from evaluator.reference.limits import Limits


@dataclass
class _Row:
    """What a request has in one group: its blocks from the beginning, None for those that were given back."""

    blocks: list[int | None] = field(default_factory=list)
    named: int = 0  # of them, how many have been looked at for a name


class GroupedKv(OnBlockPool):
    """Implements ``Kv``. What the scheduler counts in is tokens: how many blocks they take is known here alone."""

    def __init__(self, limits: Limits) -> None:
        self.capacity = limits.kv_units
        self._block = limits.block_tokens
        self._caches = limits.prefix_caching
        self._groups = limits.kv_groups
        self.pool = BlockPool(limits.kv_units)
        self._rows: dict[Request, list[_Row]] = {}
        # Groups of one kind are looked up together, those of full attention first (vLLM
        # ``HybridKVCacheCoordinator.verify_and_split_kv_cache_groups``).
        kinds = dict.fromkeys(sorted(self._groups, key=lambda group: group.window is not None))
        self._looks_once = len(kinds) == 2 and KvGroup() in kinds
        self._alike = [(kind, [i for i, group in enumerate(self._groups) if group == kind]) for kind in kinds]
        under_way = limits.max_num_batched_tokens * (2 if limits.asynchronous else 1)
        self._most = [group.most_blocks(under_way, self._block) for group in self._groups]

    def units(self, tokens: int) -> int:
        return tokens

    def lookup(self, request: Request) -> int:
        """Whole blocks only, and at least one token is left to compute."""
        return self._find(request, request.target - 1)[0] * self._block if self._caches else 0

    def admit(self, request: Request, units: int, hit_tokens: int, keep_free: int, fits: int = 0) -> bool:
        # Looked for as in ``lookup``, and not among the tokens that it found: where chunks begin within blocks, that
        # would be another prefix.
        whole, blocks_found = self._find(request, request.target - 1) if hit_tokens else (0, [[] for _ in self._groups])
        assert whole * self._block == hit_tokens
        computed = whole * self._block
        needed = self._first_need(units, computed, blocks_found, [None] * len(self._groups))
        if fits:
            # vLLM ``allocate_slots``, ``full_sequence_must_fit``: two questions, the first with a bound on windows.
            needed = max(needed, self._first_need(fits, computed, blocks_found, self._most))
        if needed + keep_free > self.free:
            return False
        rows = self._rows[request] = [_Row() for _ in self._groups]
        for group, row, blocks in zip(self._groups, rows, blocks_found, strict=True):
            passed = min(self._passed(group, computed), len(blocks))
            row.blocks = [*(None for _ in range(passed)), *blocks[passed:]]
            row.named = len(row.blocks)
            self.pool.share([block for block in row.blocks if block is not None])
        self._take(rows, units)
        request.units = units
        return True

    def extend(self, request: Request, units: int) -> bool:
        rows = self._rows[request]
        # vLLM ``allocate_slots`` gives back what no token to come attends to before it asks for more, and even where
        # it then finds too little.
        for group, row in zip(self._groups, rows, strict=True):
            self._give_back(row, 0, self._passed(group, self._settled(request)))
        more = sum(
            max(self._length(group, units) - len(row.blocks), 0) for group, row in zip(self._groups, rows, strict=True)
        )
        if more > self.free:
            return False
        self._take(rows, units)
        request.units = max(request.units, units)
        return True

    def shrink(self, request: Request, units: int) -> None:
        for group, row in zip(self._groups, self._rows[request], strict=True):
            length = self._length(group, units)
            self._give_back(row, length, len(row.blocks))
            del row.blocks[length:]
        request.units = min(request.units, units)

    def register(self, request: Request, tokens: int) -> None:
        if not self._caches:
            return
        names = self.pool.all_first_names(request, tokens // self._block)
        for index, row in enumerate(self._rows[request]):
            for position in range(row.named, len(names)):
                block = row.blocks[position]
                if block is not None:
                    self.pool.give_name(block, (index, names[position]))
            row.named = max(row.named, len(names))

    def release(self, request: Request) -> None:
        for row in self._rows.pop(request, ()):
            # Group by group, each from its end (vLLM ``KVCacheCoordinator.free``).
            self.pool.give_back([block for block in reversed(row.blocks) if block is not None])
        request.units = 0

    def _settled(self, request: Request) -> int:
        """Computed tokens of a request, without those of batches under way, which still read their windows."""
        computed = request.computed if request.group is None else request.group.computed(request)
        return max(computed - request.under_way, 0)

    def _length(self, group: KvGroup, tokens: int) -> int:
        """Blocks in a row of so many tokens, those given back included."""
        return min(tokens, 1) if group.state else -(-tokens // self._block)

    def _passed(self, group: KvGroup, computed: int) -> int:
        """Whole blocks before the window of the next token."""
        return group.passed_tokens(computed) // self._block

    def _give_back(self, row: _Row, low: int, high: int) -> None:
        """Blocks of a row, the last first. What was given back before lies before a None."""
        freed: list[int] = []
        for position in range(min(high, len(row.blocks)) - 1, low - 1, -1):
            block = row.blocks[position]
            if block is None:
                break
            freed.append(block)
            row.blocks[position] = None
        self.pool.give_back(freed)

    def _first_need(
        self, tokens: int, computed: int, blocks_found: Sequence[Sequence[int | None]], most: Sequence[int | None]
    ) -> int:
        """Free blocks that an admission takes, those included that are found but used by nobody."""
        needed = 0
        for group, blocks, bound in zip(self._groups, blocks_found, most, strict=True):
            length, passed = self._length(group, tokens), self._passed(group, computed)
            length = length if bound is None else min(length, bound)
            idle = sum(block is not None and not self.pool.users(block) for block in blocks[passed:])
            needed += max(length - max(passed, len(blocks)), 0) + idle
        return needed

    def _take(self, rows: Sequence[_Row], tokens: int) -> None:
        for group, row in zip(self._groups, rows, strict=True):
            row.blocks += self.pool.take(self._length(group, tokens) - len(row.blocks))

    def _find(self, request: Request, tokens: int) -> tuple[int, list[list[int | None]]]:
        """The longest prefix that all groups have: how many blocks, and which they are in each group.

        vLLM ``HybridKVCacheCoordinator.find_longest_cache_hit``: each kind takes the length or shortens it, until all
        take it.
        """
        most = tokens // self._block
        names = self.pool.all_first_names(request, most)
        while True:
            length, blocks_of = most, dict[int, list[int | None]]()
            for kind, members in self._alike:
                blocks = self._find_alike(kind, members, names[:length])
                length = len(blocks[0])
                blocks_of.update(zip(members, blocks, strict=True))
            # vLLM (``is_simple_hybrid``) looks once where there is one kind beside full attention: where a chunk begins
            # within a block, it takes a prefix that ends in the chunk before, of which it has nothing.
            if length == most or self._looks_once:
                return length, [blocks_of[index][:length] for index in range(len(self._groups))]
            most = length

    def _find_alike(
        self, kind: KvGroup, members: Sequence[int], names: Sequence[Hashable]
    ) -> tuple[list[int | None], ...]:
        def at(position: int) -> list[int] | None:
            blocks = [self.pool.find((member, names[position])) for member in members]
            cached = [block for block in blocks if block is not None]
            return cached if len(cached) == len(blocks) else None

        chosen: dict[int, list[int]] = {}
        if kind.window is None:
            for position in range(len(names)):
                blocks = at(position)
                if blocks is None:
                    break
                chosen[position] = blocks
            length = len(chosen)
        elif kind.chunked:
            # Of what is before the chunk nothing is needed, so that it counts as there.
            length = kind.passed_tokens(len(names) * self._block) // self._block
            while length < len(names) and (blocks := at(length)) is not None:
                chosen[length] = blocks
                length += 1
        else:
            # From the right, until as many in a row are there as a window spans; at the beginning fewer will do.
            spans = -(-(kind.window - 1) // self._block)
            length, in_a_row = 0, 0
            for position in range(len(names) - 1, -1, -1):
                blocks = at(position)
                in_a_row = 0 if blocks is None else in_a_row + 1
                if blocks is not None:
                    chosen[position] = blocks
                if in_a_row >= spans:
                    length = position + in_a_row
                    break
            else:
                length = in_a_row
        return tuple(
            [chosen[position][which] if position in chosen else None for position in range(length)]
            for which in range(len(members))
        )
