"""The page as a file: the template with its parts put in."""

from __future__ import annotations

import base64
import gzip
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import numpy as np

from evaluator.errors import InputError
from evaluator.metrics.outcomes import OK
from evaluator.report.axes import axes_shown
from evaluator.report.page import sections, words
from evaluator.report.page.anatomy import anatomy, configuration_of
from evaluator.report.page.columns import measures_of
from evaluator.report.page.data import keys_of_bounds, page_json
from evaluator.report.page.rows import MOST, ranked, sample
from evaluator.report.places import with_places
from evaluator.results.files import replacing

if TYPE_CHECKING:
    import xarray as xr

MOST_PLACES = 200
"""Designs of which a page says whether they change places with the best: the best."""
SUFFIXES = (".html", ".htm")
_SCRIPTS = "address numbers designs controls charts filters table design front curves heat help time paper main".split()
_NEEDED = ("status", "provenance", "slo_met", "saturated", "ttft_s", "tpot_s", "quantile")


def write_page(ds: xr.Dataset, path: str | Path, most: int = MOST) -> Path:
    """Write the result of a sweep or a search as one HTML file that needs no network, and return the path.

    At most ``most`` designs are on it, see ``rows.sample``; sentences and counts are of all of them.
    Errors: InputError for another suffix, for a dataset that is no result, where plotly is missing, and where the file
    cannot be written.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"{path}: a page is written as {' or '.join(SUFFIXES)}, not {path.suffix or 'without a suffix'}"
        )
    check_plotly(path)
    check_result(ds, "the dataset")
    # Made whole before the file is touched: an error leaves the page of before.
    text = page_of(ds, most)
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def check_plotly(path: str | Path) -> None:
    """InputError where the charts' library is missing."""
    if find_spec("plotly") is None:
        raise InputError(f"{path}: a page needs plotly; install it with: pip install 'evaluator[report]'")


def check_result(ds: xr.Dataset, name: str | Path) -> None:
    """InputError where a dataset, called ``name`` in the message, is none of a sweep or a search."""
    lacking = [name for name in _NEEDED if name not in ds.variables]
    if lacking or not ds.sizes.get("config"):
        what = f"there is no {lacking[0]} in it" if lacking else "it has no designs"
        if not lacking and "config" not in ds.dims:
            what = "it has no dimension config; take the dataset of before unstack(), a design by isel(config=[0])"
        raise InputError(f"{name}: not a result of evaluator sweep or optimize: {what}")


def page_of(ds: xr.Dataset, most: int = MOST) -> str:
    """The page's HTML."""
    order, rule = ranked(ds)
    ds = with_places(ds, order[:MOST_PLACES][ds["status"].values[order[:MOST_PLACES]] == OK])
    axes = axes_shown(ds)
    places = sample(axes, order, most)
    rows = order[places]
    measures = measures_of(ds, rows)
    # Counts of missed objectives are over all designs, also where the page holds a sample.
    everything = measures_of(ds, np.arange(order.size), keys_of_bounds(ds))
    best = int(order[0])
    configuration = configuration_of(ds, best)
    data = page_json(ds, rows, places, measures, axes, anatomy(ds, axes, best, configuration))
    # ``substitute`` and not ``safe_substitute``: a place of the template without its part is an error of ours.
    return Template(_file("page.html")).substitute(
        title=sections.escaped(ds.attrs.get("title", "sweep")),
        created=sections.escaped(str(ds.attrs.get("created", "")).partition("T")[0]),
        style=_file("style.css"),
        question=sections.question(ds, axes, rule),
        verdict=sections.escaped(words.verdict(ds)),
        answer=sections.answer(ds, axes, best, measures, configuration),
        sampled=sections.paragraph(_sampled(ds, places), "caution"),
        breaks=sections.breaks(ds, everything),
        provenance=sections.provenance(ds, measures),
        scenario=sections.scenario(ds),
        data=packed(data),
        plotly=_charts(),
        scripts="\n".join(_file(f"{name}.js") for name in _SCRIPTS),
    )


def _sampled(ds: xr.Dataset, places: np.ndarray) -> str:
    """What the page leaves out; empty where it holds every design."""
    total = ds.sizes["config"]
    if places.size == total:
        return ""
    return (
        f"This page holds {places.size:,} of {total:,} designs: the best, the best of every cell of the heat maps, "
        "those near the best design, and an even sample of the ranking. Sentences, counts and ranks are of all of "
        "them; the table and the charts show those held."
    )


@cache
def _charts() -> str:
    """The charts' library as it stands in the page."""
    from plotly.offline import get_plotlyjs

    # Kept: compressing its 4 MB takes longer than all else of a page.
    return packed(get_plotlyjs())


def packed(text: str) -> str:
    """A text as base64 of gzip, which no character of it can end early; the browser unpacks it."""
    # Level 5 takes a seventh of the time of 9 for columns of numbers, which come out 2 % smaller with that.
    # ``mtime=0``: the same result gives the same file, byte for byte.
    return base64.b64encode(gzip.compress(text.encode(), 5, mtime=0)).decode("ascii")


def _file(name: str) -> str:
    return (files("evaluator.report.page") / "files" / name).read_text(encoding="utf-8")
