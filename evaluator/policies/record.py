"""What is known of a batching policy: the decisions that make one, as data that every engine and check reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchingPolicy:
    """Which requests take part in an iteration, and how the KV cache is dealt out to them.

    Every iteration gives each decoding request a token, computes prompts, or does both; the fields say which, within
    which limits, and what KV a request must get to be admitted. ``preemptive_program`` says which program of the
    vectorised engine it needs. Errors: ValueError for decisions that no engine can combine.
    """

    name: str  # in scenario files
    label: str  # the system that batches so
    source: str  # where that is written down
    whole_prompts: bool = True  # a prompt is computed in one iteration (else in chunks that fill the token budget)
    prefill_alone: bool = False  # decodes wait while an iteration computes prompts (else they share it)
    drain_first: bool = False  # nothing is admitted before every running request has finished
    token_budget: bool = True  # max_num_batched_tokens bounds an iteration (else only max_num_seqs and KV do)
    whole_kv: bool = False  # KV on demand: a prompt cut into chunks gets the KV of its whole length on admission
    admission: str | None = None  # the only kv.admission that it has, reserve or on_demand; None: either
    # Admits by a share of the tokens that the running requests may still generate; who has generated least gives up its
    # KV where that was too little (SGLang's ``new_token_ratio`` and ``retract_decode``).
    token_ratio: bool = False
    look_every: int = 0  # decode iterations between two looks at who waits, see ``by_future_peak``; 0: looks always
    preemptive_program: bool = False  # needs the program ``preemptive`` even with KV reserved, first come, first served
    plans_ahead: bool = False  # its next batch may be planned before the one under way ends, as by vLLM and SGLang

    def __post_init__(self) -> None:
        # A record of a user's own comes through here, too (``register``). Each row is a combination for which the
        # engines have no rule; without the check the vectorised program and the reference would settle it
        # differently.
        peak = self.by_future_peak
        for contradicts, why in (
            (self.drain_first and peak, "drain_first and look_every both say when waiting requests are looked at"),
            ((self.drain_first or peak) and not self.prefill_alone, "drain_first and look_every need prefill_alone"),
            (
                self.prefill_alone and not self.whole_prompts and not self.token_ratio,
                "prefill_alone needs whole_prompts: chunks share iterations",
            ),
            (self.admission not in (None, "reserve", "on_demand"), f"admission {self.admission!r} is unknown"),
            (
                self.token_ratio
                and (self.admission != "on_demand" or not self.prefill_alone or self.drain_first or peak),
                "token_ratio needs prefill_alone and admission on_demand, without drain_first and look_every",
            ),
            # Else a plan would give it the program of requests in their order, which knows no retraction.
            (self.token_ratio and not self.preemptive_program, "token_ratio needs preemptive_program"),
            (self.token_ratio and self.whole_prompts, "token_ratio cuts prompts into chunks: say whole_prompts False"),
            (peak and self.admission != "on_demand", "look_every needs admission on_demand"),
            (peak and not self.preemptive_program, "look_every needs preemptive_program"),
        ):
            if contradicts:
                raise ValueError(f"policy {self.name}: {why}")

    @property
    def by_future_peak(self) -> bool:
        """Admits a request if all running ones and it fit into the KV cache when they hold most of it.

        Then KV must be counted by the token, and every layer must keep every token.
        """
        return self.look_every > 0
