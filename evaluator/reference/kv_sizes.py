"""Units of the KV cache that a request takes, by how many of its tokens are computed."""

from __future__ import annotations

from collections.abc import Iterable

from evaluator.reference.kv import Kv
from evaluator.reference.limits import Limits
from evaluator.reference.request import DecodeGroup, Request


class KvSizes:
    """KV units of so many computed tokens; branches of a request share the whole blocks of its prompt."""

    def __init__(self, limits: Limits, kv: Kv) -> None:
        self.limits, self.kv = limits, kv

    def computed(self, request: Request, tokens: int) -> int:
        """Units that the first tokens of what it computes take, but for those that it shares with other requests."""
        # Up to the end of the prompt all branches are one sequence.
        if not request.branches or tokens <= request.prompt_tokens:
            return max(self.kv.units(tokens) - request.shared_units, 0)
        return self._forked(request, [(high, 1) for _, high in request.spans(request.prompt_tokens, tokens)])

    def decoding(self, request: Request, tokens: int) -> int:
        """KV units of a request whose sequences that go on have so many tokens each."""
        if not request.branches:
            return self.computed(request, tokens)
        return self._forked(request, [(tokens, request.width_at(request.generated_by_now))])

    def lacking(self, group: DecodeGroup, members: Iterable[Request], tokens: int) -> int:
        """Units that members of a group take beyond what they have, for so many tokens more on each sequence."""
        sizes = ((request, self.decoding(request, group.computed(request) + tokens)) for request in members)
        return sum(max(units - request.units, 0) for request, units in sizes)

    def lacking_of_prompts(self, prompts: Iterable[Request]) -> int:
        """Units that prompts under way take beyond what they have, until they are computed whole."""
        return sum(max(self.computed(prompt, prompt.target) - prompt.units, 0) for prompt in prompts)

    def _forked(self, request: Request, ends: Iterable[tuple[int, int]]) -> int:
        """Units of branches, (tokens of each, how many), and of the prompt's whole blocks, which all of them share."""
        prompt, block = request.prompt_tokens, self.limits.block_tokens
        branch_units, shared = self.limits.units_of_branch, self.limits.units_of_prefix
        # A unit is a block: each branch holds what lies behind the prompt's whole blocks, the last block of the
        # prompt included where it is not full (vLLM v0 copies it on write).
        if branch_units is None or shared is None:
            whole = prompt // block
            units = sum(count * (-(-tokens // block) - whole) for tokens, count in ends)
        else:
            whole = shared(prompt)
            units = sum(count * branch_units(prompt, tokens) for tokens, count in ends)
        return max(whole - request.shared_units, 0) + units
