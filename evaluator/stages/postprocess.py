"""What is done to an answer: detokenising, a guard model, a reward model that judges its outcome or its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evaluator.keys import Place, choice, count, key, model_name, quantity
from evaluator.stages.record import StageKind, StageRequests, Work
from evaluator.stages.steps import Delay, Pass, Served

DETOKENISE = "detokenise"


@dataclass(frozen=True)
class Postprocess:
    """``kind`` detokenise takes time per output token. The others are one prefill pass of ``model`` each.

    A guard (Llama Guard, arXiv:2312.06674) and an outcome reward model (Cobbe et al., arXiv:2110.14168) read prompt and
    answer and judge them at the last token. A process reward model (Lightman et al., arXiv:2305.20050) reads them in
    one pass, too, and scores every step at the token that ends it. All of them hold the answer until they have judged.
    """

    kind: str = key(choice(DETOKENISE, "guard", "outcome_reward", "process_reward"), DETOKENISE, "What is done.")
    seconds: float = key(quantity("s", least=0), 0.0, "detokenise: of every request.")
    seconds_per_token: float = key(quantity("s", least=0), 0.0, "detokenise: of every output token.")
    servers: int | None = key(count(), None, "detokenise: answers at a time; any number where absent.")
    model: Any = key(model_name, None, "The guard or reward model, which runs on the stage's pool.")


def _check(stage: Postprocess, place: Place) -> None:
    if stage.kind == DETOKENISE:
        if stage.model is not None:
            raise place.key("model").error("detokenise runs no model; use kind guard, outcome_reward or process_reward")
    elif stage.model is None:
        raise place.key("model").error(f"is required with kind {stage.kind}: the model that reads the answer")
    elif stage.seconds or stage.seconds_per_token or stage.servers is not None:
        raise place.error(
            "seconds, seconds_per_token and servers are of kind detokenise; of a model its pool says the rest"
        )


def work(postprocess: Postprocess, visit: StageRequests) -> Work:
    """By prompt and answer."""
    if postprocess.kind == DETOKENISE:
        seconds = postprocess.seconds + postprocess.seconds_per_token * visit.output_tokens
        # On a pool its replicas are the servers.
        unbounded = postprocess.servers is None and visit.pool is None
        return Work((Delay(seconds) if unbounded else Served(seconds, postprocess.servers),))
    # No token is generated: a guard's verdict is the logits at the last position, so that its cost is one prefill of
    # prompt and answer.
    return Work((Pass(postprocess.model, visit.prompt_tokens + visit.output_tokens),))


def _streams(postprocess: Postprocess) -> bool:
    """Detokenising passes tokens on, later by its time; servers take whole answers."""
    return postprocess.kind == DETOKENISE and postprocess.servers is None


POSTPROCESS = StageKind(
    "postprocess", Postprocess, work, "After the answer: detokenising, a guard, a model that rewards outcome or steps.",
    streams=_streams, check=_check,
)  # fmt: skip
