"""What an API server takes of its processor for what it passes on; a part of a set, or of a scenario."""

from __future__ import annotations

from dataclasses import dataclass, fields

from evaluator.catalog.fields import Fields


@dataclass(frozen=True)
class ApiServerTimes:
    """Seconds of one process, which does one thing at a time: tokens of all its requests wait there for one another.

    A token is made text of, serialised and sent; a request is read, made tokens of and given to the engine.
    """

    per_token_s: float = 0.0
    per_request_s: float = 0.0  # beside its tokens

    def written(self) -> dict[str, float]:
        """As the section of a scenario that it could have been read from."""
        return vars(self).copy()

    def __str__(self) -> str:
        """As a row of a table has it."""
        return f"{1e6 * self.per_token_s:g} us a token, {1e3 * self.per_request_s:g} ms a request"

    @property
    def any(self) -> bool:
        """Whether anything takes any time, so that something may wait."""
        return self.per_token_s > 0.0 or self.per_request_s > 0.0


def read_api_server_times(given: Fields) -> ApiServerTimes | None:
    """The section ``api_server_times`` of a set; None where it has none."""
    if given.raw("api_server_times", None) is None:
        return None
    inner = given.inner("api_server_times")
    times = ApiServerTimes(
        **{field.name: inner.quantity(field.name, "s", 0.0, zero=True) for field in fields(ApiServerTimes)}
    )
    inner.finish()
    return times
