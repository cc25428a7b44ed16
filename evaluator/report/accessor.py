"""``ds.evaluator``: what people ask of a result in a notebook, as an accessor of its dataset (xarray's way to extend).

It is there once ``evaluator.sweep``, ``optimize``, ``simulate`` or ``read`` was touched, for every dataset of xarray.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from evaluator.errors import InputError
from evaluator.metrics.outcomes import OK
from evaluator.report.page import write_page
from evaluator.report.page.columns import better_of
from evaluator.report.page.page import check_result
from evaluator.report.page.rows import ranked
from evaluator.report.picture.search import plot_search
from evaluator.report.picture.sweep import plot
from evaluator.report.ranking import front
from evaluator.report.table.ranked import ranked_table
from evaluator.report.table.search import search_table
from evaluator.results import read, unstack
from evaluator.results.schema import quantities

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ResultAccessor", "read"]

_STATISTIC = re.compile(r"(?P<name>\w+?)[ _]p(?P<percent>\d+(\.\d+)?)")
_SHOWN = 10
_OBJECTS = (
    "status",
    "engine",
    "provenance",
    "calibration_set",
    "model_error_basis",
    "search_status",
    "goodput_limit",
    "pool_layout",
)


@xr.register_dataset_accessor("evaluator")
class ResultAccessor:
    """The designs of a result: ranked, the best of them, the front of two measures, and as a table of pandas.

    A measure is called by its variable, a quantile of it as ``ttft_s_p90``, its mean as ``ttft_s_mean``.
    Errors: InputError of every method for a dataset that is no result of a sweep or a search, and for a measure that is
    not in it.
    """

    def __init__(self, dataset: xr.Dataset) -> None:
        self._dataset = dataset

    def __repr__(self) -> str:
        return self._text()

    def _repr_html_(self) -> str:
        from html import escape

        # The table of the terminal as it is: columns align by characters, which ``pre`` keeps, and a wide one scrolls.
        return f"<pre style='white-space: pre; overflow-x: auto'>{escape(self._text())}</pre>"

    def _text(self) -> str:
        ds = self._checked()
        return search_table(ds, _SHOWN) if "search" in ds.attrs else ranked_table(ds, _SHOWN)

    def best(self, count: int = 1, by: str | None = None, better: str | None = None) -> xr.Dataset:
        """The best ``count`` designs that ran, as a dataset, the best first.

        The rule is that of the ranked table, or the measure ``by``, of which ``better`` (low or high) comes first;
        where absent as the measure has it: low for times and costs, high for throughputs. Errors: InputError where
        ``count`` is no whole number above 0.
        """
        ds = self._checked()
        # A negative count would slice from the end of the ranking, and give nearly all designs without a word.
        if not isinstance(count, (int, np.integer)) or isinstance(count, bool) or count < 1:
            raise InputError(f"best: expected how many designs, a whole number of at least 1, got {count!r}")
        if by is None:
            order, _ = ranked(ds)
            # The ranking of a page has those that cannot run behind all others.
            order = order[ds["status"].values[order] == OK]
        else:
            values, sign = self._measure(by), self._sign(by, better)
            # Those without the measure are left out rather than sorted last: NaN sorts as the best or the
            # worst by chance of the sign.
            measured = np.flatnonzero(np.isfinite(values) & (ds["status"].values == OK))
            # Stable, so that equal designs stay in the order of the grid.
            order = measured[np.argsort(-sign * values[measured], kind="stable")]
        return ds.isel(config=order[:count])

    def pareto(
        self, x: str = "tok_per_s_per_user", y: str = "tok_per_s_per_gpu", saturated: bool = False
    ) -> xr.Dataset:
        """The designs that no other beats in both measures, as a dataset, from the best in ``x`` to the best in ``y``.

        Saturated designs count only if ``saturated``: their latencies tell how long the run was.
        """
        ds = self._checked()
        first, second = (self._measure(name) * self._sign(name, None) for name in (x, y))
        fits = np.isfinite(first) & np.isfinite(second) & (ds["status"].values == OK)
        if not saturated:
            fits &= ~ds["saturated"].values.astype(bool)
        rows = np.flatnonzero(fits)
        # The front wants more to be better in both: a measure that is better low comes with its sign turned.
        return ds.isel(config=rows[front(first[rows], second[rows])])

    def table(self, measures: Sequence[str] | str | None = None) -> pd.DataFrame:
        """A row for each design, the best first: what was swept, then the measures, in SI units.

        ``measures`` None: all variables; the quantiles of one are columns of their own. The index is ``config``.
        """
        import pandas as pd

        ds = self._checked()
        order, _ = ranked(ds)
        names = [measures] if isinstance(measures, str) else self._columns() if measures is None else list(measures)
        columns = {name: ds[name].values[order] for name in quantities(ds)}
        columns |= {name: self._measure(name, texts=True)[order] for name in names}
        return pd.DataFrame(columns, index=pd.Index(ds["config"].values[order], name="config"))

    def unstack(self) -> xr.Dataset:
        """The full grid with one dimension for each swept axis. Errors: InputError where rows are missing."""
        return unstack(self._dataset)

    def plot(self, path: str | Path) -> Path:
        """Draw the result as ``evaluator sweep --plot`` does, or ``optimize --plot``, and return the path."""
        ds = self._checked()
        return plot_search(ds, path) if "search" in ds.attrs else plot(ds, path)

    def report(self, path: str | Path) -> Path:
        """Write the page of ``evaluator report`` and return the path."""
        return write_page(self._dataset, path)

    def _checked(self) -> xr.Dataset:
        check_result(self._dataset, "the dataset")
        return self._dataset

    def _columns(self) -> list[str]:
        """The names of all variables by design, quantile by quantile."""
        ds, names = self._dataset, []
        for name in map(str, ds.data_vars):
            if ds[name].dims == ("config",):
                names.append(name)
            elif ds[name].dims == ("config", "quantile"):
                names += [f"{name}_p{100 * level:g}" for level in ds["quantile"].values.tolist()]
        return names

    def _measure(self, name: str, texts: bool = False) -> np.ndarray:
        """A measure by design, (config,); numbers, or also texts."""
        ds = self._dataset
        if name in ds.data_vars and ds[name].dims == ("config",) and (texts or ds[name].dtype.kind in "biuf"):
            return ds[name].values if texts else ds[name].values.astype(np.float64)
        statistic = _STATISTIC.fullmatch(name)
        if statistic and statistic["name"] in ds.data_vars and ds[statistic["name"]].dims == ("config", "quantile"):
            levels, level = ds["quantile"].values, float(statistic["percent"]) / 100
            # No interpolation between quantiles: the tail of a latency is anything but straight, and p95 between p90
            # and p99 would be a number that nobody measured.
            if np.isclose(levels, level).any():
                return ds[statistic["name"]].values[:, int(np.argmin(np.abs(levels - level)))]
            reported = ", ".join(f"p{100 * level:g}" for level in levels.tolist())
            raise InputError(f"{name}: not among the reported quantiles, which are {reported}")
        allowed = ", ".join(column for column in self._columns() if "_stderr" not in column and column not in _OBJECTS)
        raise InputError(f"{name}: there is no such measure of a design; allowed: {allowed}")

    def _sign(self, name: str, better: str | None) -> float:
        """1 where high values are the better ones, -1 where low ones are."""
        part = _STATISTIC.fullmatch(name)
        direction = better or better_of(part["name"] if part else name.removesuffix("_mean"))
        if direction not in ("low", "high"):
            reason = f"not {better!r}" if better else "which the measure does not say"
            raise InputError(f"{name}: say whether low or high values are better (better='low'), {reason}")
        return 1.0 if direction == "high" else -1.0
