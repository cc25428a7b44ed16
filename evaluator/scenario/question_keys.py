"""Every key of a scenario's ``budget`` and ``demand``: what a search of designs is bounded by and asked for."""

from __future__ import annotations

from evaluator.scenario.fields import Field, Place, Table, count, flag, quantity
from evaluator.scenario.scenario import Budget, Demand
from evaluator.scenario.tables import section

BUDGET: Table = {
    "devices": Field(count(), None, "Most devices of a design, all replicas and pools together."),
    "usd_per_hour": Field(quantity("USD/h", above=0), None, "Most dollars per hour of a design."),
    "fill": Field(flag, Budget.fill, "Whether each design gets as many replicas as the budget takes."),
}

DEMAND: Table = {
    "rate_rps": Field(quantity("1/s", above=0), None, "Requests per second that a design has to serve."),
}


def _check_budget(found: Budget, place: Place) -> None:
    if found.fill and found.devices is None and found.usd_per_hour is None:
        raise place.key("fill").error("needs something to fill: add devices or usd_per_hour")


budget_reader = section(BUDGET, Budget, check=_check_budget)
demand_reader = section(DEMAND, Demand)
