"""The KV cache as SGLang keeps it: a radix tree of whole pages, and what requests hold beside it.

The names are those of ``RadixCache`` (sglang/srt/mem_cache/radix_cache.py) of SGLang 0.5.23. A request finds the
longest beginning of its tokens that the tree has, and locks it. What it computes is its own until the batch has ended,
then the tree's, as far as pages are whole. Nodes that nobody locks stay until KV is wanted, and go as a whole, leaves
first, in the order in which they were last walked over.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Sequence

from evaluator.reference.limits import Limits
from evaluator.reference.request import Request

Pages = Sequence[Hashable]
"""Names of what pages hold."""


class _Node:
    __slots__ = ("children", "key", "locks", "parent", "used")

    def __init__(self, parent: _Node | None, key: Pages, used: int, locks: int = 0) -> None:
        self.parent, self.key, self.used, self.locks = parent, key, used, locks
        self.children: dict[Hashable, _Node] = {}

    def __lt__(self, other: _Node) -> bool:
        return self.used < other.used


class RadixCache:
    """Implements ``Kv``; a unit is a page. ``free``: nobody needs them, whether the tree has them or not.

    What prompts take is promised first, and taken by ``settle`` when the batch is known, as SGLang allocates it: only
    then is anything evicted.
    """

    def __init__(self, limits: Limits) -> None:
        self.capacity = self._unused = limits.kv_units
        self._page = limits.block_tokens
        self._root = _Node(None, (), 0, 1)
        self._clock = 0  # of the last walk
        self._evictable = 0
        self._promised = 0
        self.known = 0  # pages of the tree
        self._locked: dict[Request, _Node] = {}
        self._shared: dict[Request, int] = {}  # pages of a request that are the tree's
        self._left: dict[Request, int] = {}  # tokens in the KV of those that have their last token

    @property
    def free(self) -> int:
        return self._unused + self._evictable - self._promised

    def units(self, tokens: int) -> int:
        return -(-tokens // self._page)

    # -- requests

    def lookup(self, request: Request) -> int:
        """Tokens of a prompt that are in the tree; unlike ``touch`` this does not count as a use of them."""
        pages, node, place = self._pages(request, request.target - 1), self._root, 0
        while place < len(pages) and (child := node.children.get(pages[place])) is not None:
            same = _alike(child.key, pages, place)
            place, node = place + same, child
            if same < len(child.key):
                break
        return place * self._page

    def touch(self, request: Request) -> int:
        """Pages of a prompt that are in the tree. They count as used now; the node in which they end is split."""
        return self._depth(self._match(self._pages(request, request.target)))

    def find(self, request: Request) -> int:
        """Tokens that it finds, which are locked until ``unlock`` or ``drop``."""
        node = self._match(self._pages(request, request.target - 1))
        self._locked[request] = node
        self._lock(node, 1)
        return self._depth(node) * self._page

    def unlock(self, request: Request) -> None:
        """Nothing of the tree is its any more."""
        self._lock(self._locked.pop(request), -1)

    def admit(self, request: Request, units: int, hit_tokens: int, keep_free: int, fits: int = 0) -> bool:
        """``find`` has gone before."""
        self._shared[request] = request.units = hit_tokens // self._page
        return self.extend(request, units)

    def extend(self, request: Request, units: int) -> bool:
        more = max(units - request.units, 0)
        if more > self.free:
            return False
        self._promised += more
        request.units += more
        return True

    def settle(self, tokens: int) -> None:
        """The batch takes what it was promised; before that there is to be room for so many tokens."""
        self.make_room(tokens)
        self._unused -= self._promised
        self._promised = 0
        assert self._unused >= 0, "a batch took more KV than there is"

    def make_room(self, tokens: int) -> bool:
        """Evict until so many tokens are unused, or nothing is left to evict; whether they are."""
        short = tokens - self._unused * self._page
        if short > 0:
            self._evict(short)
        return tokens <= self._unused * self._page

    def checkpoint(self, request: Request, tokens: int) -> None:
        """A request's first tokens are computed: the tree takes their whole pages (``RadixCache.checkpoint``)."""
        pages = self._pages(request, tokens)
        prompt = min(request.prompt_tokens, tokens) // self._page
        known = self._insert(pages)
        # The leaf is cut where the prompt ends, so that an answer can be evicted without it.
        if 0 < prompt < len(pages):
            self._insert(pages[:prompt])
        # Where another request was faster the pages are there twice: its own are unused again.
        self._unused += known - self._shared[request]
        node = self._match(pages)
        self._lock(self._locked[request], -1)
        self._locked[request] = node
        self._lock(node, 1)
        self._shared[request] = len(pages)

    def register(self, request: Request, tokens: int) -> None:
        """Nothing is known of a batch before it has ended, see ``checkpoint``."""

    def release(self, request: Request) -> None:
        """A request has its last token; the tree gets what it has computed when the batch is looked at."""
        if request in self._shared:
            self._left[request] = request.computed

    def leave(self, request: Request) -> None:
        """The tree gets what a request that is done has computed."""
        self.checkpoint(request, self._left.pop(request))
        self.drop(request)

    def drop(self, request: Request) -> None:
        """A request gives up its KV; what the tree has of it stays there."""
        self._unused += request.units - self._shared.pop(request)
        request.units = 0
        self.unlock(request)

    def shrink(self, request: Request, units: int) -> None:
        raise NotImplementedError("a radix cache has no branches")

    def ended(self, request: Request) -> bool:
        """Whether a request has its last token and was not looked at since."""
        return request in self._left

    # -- the tree

    def _pages(self, request: Request, tokens: int) -> Pages:
        """Names of its first whole pages. What it does not say is like no other's."""
        count = max(tokens, 0) // self._page
        said = min(len(request.content), count)
        known = (request.content[place] for place in range(said))
        return (*known, *((request.index, place) for place in range(said, count)))

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _match(self, pages: Pages) -> _Node:
        if not pages:
            return self._root
        return self._walk(pages)[0]

    def _walk(self, pages: Pages) -> tuple[_Node, int]:
        """Follow a sequence as far as the tree has it, and split the node where it ends: (node, pages up to it)."""
        used, node, place = self._tick(), self._root, 0
        while place < len(pages) and (child := node.children.get(pages[place])) is not None:
            child.used = used
            same = _alike(child.key, pages, place)
            place += same
            if same < len(child.key):
                return self._split(child, same), place
            node = child
        return node, place

    def _insert(self, pages: Pages) -> int:
        """Add the pages of a sequence; how many of them were in the tree before."""
        if not pages:
            return 0
        node, place = self._walk(pages)
        if place < len(pages):
            leaf = _Node(node, pages[place:], self._tick())
            node.children[pages[place]] = leaf
            self._evictable += len(leaf.key)
            self.known += len(leaf.key)
        return place

    def _split(self, child: _Node, pages: int) -> _Node:
        """A node of the first pages in front of a node, used a little later than it."""
        assert child.parent is not None
        node = _Node(child.parent, child.key[:pages], self._tick(), child.locks)
        child.parent.children[child.key[0]] = node
        child.parent, child.key = node, child.key[pages:]
        node.children[child.key[0]] = child
        return node

    def _path(self, node: _Node) -> Iterable[_Node]:
        while node.parent is not None:
            yield node
            node = node.parent

    def _depth(self, node: _Node) -> int:
        return sum(len(ancestor.key) for ancestor in self._path(node))

    def _lock(self, node: _Node, by: int) -> None:
        for ancestor in self._path(node):
            was, ancestor.locks = ancestor.locks, ancestor.locks + by
            if not was or not ancestor.locks:
                self._evictable -= by * len(ancestor.key)

    def _evict(self, tokens: int) -> None:
        leaves = [node for node in self._nodes() if not node.children and not node.locks]
        heapq.heapify(leaves)
        evicted = 0
        while evicted < tokens and leaves:
            leaf = heapq.heappop(leaves)
            parent = leaf.parent
            assert parent is not None
            del parent.children[leaf.key[0]]
            evicted += len(leaf.key) * self._page
            self._unused += len(leaf.key)
            self._evictable -= len(leaf.key)
            self.known -= len(leaf.key)
            if not parent.children and not parent.locks:
                heapq.heappush(leaves, parent)

    def _nodes(self) -> Iterable[_Node]:
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()


def _alike(key: Pages, pages: Pages, start: int) -> int:
    """How many of a node's pages are those of a sequence from a place on."""
    most = min(len(key), len(pages) - start)
    return next((place for place in range(most) if key[place] != pages[start + place]), most)
