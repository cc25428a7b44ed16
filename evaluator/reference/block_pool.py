"""Numbered blocks of a KV cache: who uses them, what they hold, and in which order they are taken again (vLLM v1).

A whole block gets a name for its content and all before it. Blocks count who uses them. One that nobody uses keeps its
content and joins the end of the free list, or the front of it where it has no name; a new block is taken from the front
and forgets what it held: blocks that nobody can find go first, then the least recently used content.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence

from evaluator.reference.request import Request

ROOT = 0


_KEPT = 1_024
"""Requests whose names are kept: more than run at a time, as a rule."""


class PrefixNames:
    """Names of whole blocks: each stands for the content of a block and of all before it."""

    def __init__(self) -> None:
        self._names: dict[tuple[Hashable, int], int] = {}  # (name of the block before, content) -> name
        # Of each request as far as it was asked for: the first that waits is looked up in every iteration.
        self._of: dict[Request, list[Hashable]] = {}

    def first(self, request: Request, blocks: int) -> Iterator[Hashable]:
        """Names of the first blocks of a request, made one after the other as they are asked for."""
        made = self._made(request)
        known = made[:blocks]
        yield from known
        for position in range(len(known), blocks):
            # Others may have asked for more names of this request meanwhile.
            yield made[position] if position < len(made) else self._next(request, made, position)

    def all_first(self, request: Request, blocks: int) -> Sequence[Hashable]:
        """The same, made at once."""
        made = self._made(request)
        for position in range(len(made), blocks):
            self._next(request, made, position)
        return made[:blocks]

    def _made(self, request: Request) -> list[Hashable]:
        made = self._of.get(request)
        if made is None:
            if len(self._of) == _KEPT:
                del self._of[next(iter(self._of))]  # names that are made again are the same
            made = self._of[request] = []
        return made

    def _next(self, request: Request, made: list[Hashable], position: int) -> Hashable:
        name: Hashable
        if position < len(request.content):
            before = (made[-1] if made else ROOT, request.content[position])
            name = self._names.setdefault(before, len(self._names) + 1)
        else:
            # What the request does not say is like nothing else. A name with the request's own number: never equal to
            # another request's, and equal to itself after a preemption.
            name = request.index, position
        made.append(name)
        return name


class BlockPool:
    """vLLM ``BlockPool``."""

    def __init__(self, blocks: int) -> None:
        # Free blocks are taken from the first of these on: those that nobody can find, those that nobody has had, and
        # those that hold something. The second are a count, since a large cache has far more than a run ever takes.
        self._nameless: OrderedDict[int, None] = OrderedDict()
        self._had = 0
        self._named: OrderedDict[int, None] = OrderedDict()
        self._users = [0] * blocks
        self._name: list[Hashable] = [None] * blocks  # of the content, where the block is whole
        self._blocks_named: dict[Hashable, list[int]] = {}  # several may hold the same
        self.known = 0  # blocks with a name
        self.taken: list[int] | None = None  # blocks that requests were given, where host memory wants to know
        self.evicted: list[tuple[int, Hashable]] | None = None  # named blocks that were taken, where the host gets them
        self.hears: Callable[[Hashable, bool], None] | None = None  # told of each block that gets a name or loses it
        self.names = PrefixNames()

    @property
    def free(self) -> int:
        """Blocks that nobody uses, whether they hold something or not."""
        return len(self._nameless) + len(self._users) - self._had + len(self._named)

    @property
    def free_blocks(self) -> list[int]:
        """The same, in the order in which they are taken."""
        return [*self._nameless, *range(self._had, len(self._users)), *self._named]

    def users(self, block: int) -> int:
        """How many requests use a block."""
        return self._users[block]

    def share(self, blocks: Sequence[int]) -> None:
        """One user more of each."""
        self.note(blocks)
        for block in blocks:
            self._users[block] += 1
            # Only what has a name can be found by another.
            self._named.pop(block, None)

    def take(self, count: int) -> list[int]:
        """So many free blocks for one user. Only now is their content lost: until then it could be found."""
        blocks = [self._take() for _ in range(count)]
        self.note(blocks)
        return blocks

    def _take(self) -> int:
        if self._nameless:
            block, _ = self._nameless.popitem(last=False)
        elif self._had < len(self._users):
            block = self._had
            self._had += 1
        else:
            block, _ = self._named.popitem(last=False)
            name = self._name[block]
            self._forget(block)
            if self.evicted is not None and name not in self._blocks_named:
                self.evicted.append((block, name))
        self._users[block] = 1
        return block

    def note(self, blocks: Sequence[int]) -> None:
        """Note that a request got these blocks."""
        if self.taken is not None:
            self.taken += blocks

    def give_back(self, blocks: Sequence[int]) -> None:
        """One user less of each; the first is taken again first."""
        for block in blocks:
            self._users[block] -= 1
            if not self._users[block] and self._name[block] is not None:
                self._named[block] = None
        for block in reversed(blocks):
            if not self._users[block] and self._name[block] is None:
                # No request can find it again: it goes before all that hold something (vLLM ``BlockPool.free_blocks``
                # prepends blocks without a hash to the free queue since PR 42656; before, all went to its end).
                self._nameless[block] = None
                self._nameless.move_to_end(block, last=False)

    def name(self, block: int) -> Hashable:
        """The name of a block's content; None where it has none."""
        return self._name[block]

    def give_name(self, block: int, name: Hashable) -> None:
        """Name a block by what it holds: it can be found from now on."""
        self._name[block] = name
        self.known += 1
        self._blocks_named.setdefault(name, []).append(block)
        if self.hears:
            self.hears(name, True)

    def find(self, name: Hashable) -> int | None:
        """The block of this content that was named first (vLLM ``get_cached_block``); None: no block has it."""
        blocks = self._blocks_named.get(name)
        return blocks[0] if blocks else None

    def first_names(self, request: Request, blocks: int) -> Iterator[Hashable]:
        """See ``PrefixNames.first``."""
        return self.names.first(request, blocks)

    def all_first_names(self, request: Request, blocks: int) -> Sequence[Hashable]:
        """See ``PrefixNames.all_first``."""
        return self.names.all_first(request, blocks)

    def _forget(self, block: int) -> None:
        name = self._name[block]
        if name is None:
            return
        self._name[block] = None
        self.known -= 1
        if self.hears:
            self.hears(name, False)
        blocks = self._blocks_named[name]
        if len(blocks) == 1:
            del self._blocks_named[name]
        else:
            blocks.remove(block)


class OnBlockPool:
    """What every ``Kv`` on a pool of blocks tells of it."""

    pool: BlockPool

    @property
    def free(self) -> int:
        """Blocks that nobody uses, whether they hold something or not."""
        return self.pool.free

    @property
    def known(self) -> int:
        """Blocks that can be found."""
        return self.pool.known
