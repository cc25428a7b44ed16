"""The keys of ``deployment.speculative``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.scenario.fields import Field, Place, Reader, Schema, Table, choice, count, number, shown
from evaluator.scenario.figures import model_reader
from evaluator.scenario.tables import read_section, schema_of, section_schema
from evaluator.speculation import METHODS, MOST_TOKENS, Speculative

_rate = number(least=0, most=1)


def _acceptance(value: Any, place: Place) -> float | tuple[float, ...]:
    if isinstance(value, list | tuple):
        if not value:
            raise place.error("expected a rate, or a list of them such as [0.8, 0.6, 0.45], got none")
        return tuple(_rate(each, place.item(index)) for index, each in enumerate(value))
    return _rate(value, place)


def _acceptance_schema() -> Schema:
    rate = schema_of(_rate)
    return {"anyOf": [rate, {"type": "array", "items": rate, "minItems": 1, "maxItems": MOST_TOKENS}]}


SPECULATIVE: Table = {
    "method": Field(
        choice(*METHODS),
        says="Who drafts. draft: a smaller model. mtp: the modules for the tokens after the next that were published "
        "with the model, each one layer and its head. eagle: a layer with a head that was trained for the model "
        "(EAGLE-3). ngram: the host, from the text so far.",
    ),
    "tokens": Field(count(most=MOST_TOKENS), says="Tokens drafted for a sequence, and verified, in an iteration."),
    "acceptance": Field(
        Reader(_acceptance, _acceptance_schema),
        says="Chance that a draft is accepted where all before it were: one rate, or one for each position.",
    ),
    "model": Field(model_reader, None, "Of method draft, the model that drafts, on the same devices."),
    "vocabulary": Field(count(), None, "Of method eagle, tokens that its head can propose; absent: all of the model."),
}


def _speculative(value: Any, place: Place) -> Speculative:
    if not isinstance(value, Mapping):
        raise place.error(
            f"expected a section such as {{method: ngram, tokens: 3, acceptance: 0.6}}, got {shown(value)}"
        )
    found = Speculative(**read_section(value, SPECULATIVE, place))
    rates = found.acceptance
    if isinstance(rates, tuple) and len(rates) != found.tokens:
        raise place.key("acceptance").error(
            f"{len(rates)} rates for {found.tokens} drafted tokens; give one for each position, or one number for all"
        )
    if found.method == "draft" and found.model is None:
        raise place.key("model").error("is required with method draft: the smaller model, such as llama-3.1-8b")
    if found.method != "draft" and found.model is not None:
        raise place.key("model").error(f"is for method draft; with {found.method} no other model drafts: leave it out")
    if found.method != "eagle" and found.vocabulary is not None:
        raise place.key("vocabulary").error(
            f"is for method eagle, whose head has its own; leave it out of {found.method}"
        )
    return found


speculative_reader = Reader(
    _speculative, lambda: {**section_schema(SPECULATIVE), "required": ["method", "tokens", "acceptance"]}
)
"""Reads {method: draft, model: NAME, tokens: 3, acceptance: [0.8, 0.6, 0.45]}."""
