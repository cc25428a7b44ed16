"""The page in a real browser: opened from disk, sorted, filtered, hovered, on a desk and on a phone.

Where no Chromium is installed these tests skip; EVALUATOR_BROWSER names one that is elsewhere.
"""

import csv
import io

import numpy as np
import pytest

from evaluator.report.page import write_page
from evaluator.report.page.rows import ranked
from tests.report.page.browser import Browser, find
from tests.report.test_search import dataset
from tests.results.build import HARDWARE, PARALLEL, POLICY, RATE, axis, measured, sweep, with_objectives

pytest.importorskip("plotly")

CHARTS = ("#front", "#curves", "#heat")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find()
    if program is None:
        pytest.skip("no Chromium or Chrome is installed (Debian: apt install chromium)")
    one = Browser(program, tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def design_sweep():
    return sweep(HARDWARE, PARALLEL, POLICY, RATE)  # 144 designs


@pytest.fixture(scope="module")
def file(design_sweep, tmp_path_factory):
    return write_page(design_sweep, tmp_path_factory.mktemp("pages") / "page.html")


@pytest.fixture
def page(browser, file):
    """The page on a desk, freshly opened; at the end nothing has failed and nothing was asked of a network."""
    browser.open(file)
    yield browser
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def column(page, heading):
    """The cells of a column of the table, as shown."""
    return page.run(
        f"""(() => {{
        const at = [...document.querySelectorAll('#ranking thead th')].findIndex(
            (cell) => cell.innerText.startsWith({heading!r}));
        return [...document.querySelectorAll('#ranking tbody tr')].map((row) => row.cells[at].innerText);
        }})()"""
    )


def test_the_state_says_how_sure_it_is(browser, tmp_path):
    ds = with_objectives(sweep(HARDWARE, RATE))
    browser.open(write_page(ds, tmp_path / "sure.html"))
    order = ranked(ds)[0]
    chances = np.round(100 * ds["slo_chance"].values[order]).astype(int)
    shown = column(browser, "state")
    assert shown[0] == f"meets objectives {chances[0]} %"
    assert any(text.endswith(" <1 %") or text.endswith(" >99 %") for text in shown)
    assert column(browser, "ahead of #1")[0] == "0" and browser.errors == []


def heading(name):
    return f"#ranking thead th:nth-child({name}) button"


def choose(page, control, value):
    """Set a control of the filters or of a chart, by the words of its label."""
    page.run(
        f"""(() => {{
        const [root, words] = {list(control)!r};
        const label = [...document.querySelectorAll(root + ' label')].find((one) => one.firstChild.data === words);
        const field = label.querySelector('select, input');
        field.value = {value!r};
        field.dispatchEvent(new Event(field.tagName === 'SELECT' ? 'change' : 'input'));
        }})()"""
    )


def numbers(cells):
    return [float(cell.split()[0].replace(",", "")) for cell in cells if cell != "–"]


def test_the_table_is_there_best_first(page, design_sweep):
    order, _ = ranked(design_sweep)
    assert [int(cell) for cell in column(page, "#")] == list(range(1, 21))
    assert column(page, "hardware") == design_sweep["hardware"].values[order[:20]].tolist()
    assert set(column(page, "state")) == {"meets objectives"}
    assert "±" in column(page, "TTFT p90")[0]


def test_a_heading_sorts_down_and_up_and_what_is_not_known_stays_last(page):
    at = page.run(
        "[...document.querySelectorAll('#ranking thead th')].findIndex((c) => c.innerText.startsWith('TTFT'))"
    )
    page.click(heading(at + 1))
    rising = numbers(column(page, "TTFT p90"))
    assert rising == sorted(rising) and len(rising) == 20
    assert page.run(f"document.querySelector('#ranking th:nth-child({at + 1})').ariaSort") == "ascending"
    page.press("Enter")  # the heading keeps the focus
    falling = numbers(column(page, "TTFT p90"))
    assert falling == sorted(falling, reverse=True) and max(falling) > max(rising)
    page.click("#pager button:nth-child(4)")
    assert column(page, "TTFT p90")[-1] == "–"


def test_filters_by_axis_words_and_measure(page, design_sweep):
    choose(page, ("#filters", "hardware"), "l40s")
    assert set(column(page, "hardware")) == {"l40s"}
    choose(page, ("#filters", "words"), "chunked cannot")
    assert set(column(page, "policy")) == {"chunked"} and set(column(page, "state")) == {"cannot run"}
    choose(page, ("#filters", "words"), "")
    choose(page, ("#filters", "hardware"), "")
    count = int(design_sweep["slo_met"].sum())
    choose(page, ("#filters", "state"), "meets objectives")
    assert f"of {count} designs that pass the filters, out of 144" in page.run(
        "document.querySelector('#table-state').innerText"
    )


def test_pages_of_the_table(page):
    page.click("#pager button:nth-child(3)")
    assert column(page, "#")[0] == "21"
    page.click("#pager button:nth-child(4)")
    assert column(page, "#")[-1] == "144" and page.run("document.querySelector('#pager button:nth-child(3)').disabled")


def test_a_row_chooses_the_design(page, design_sweep):
    order, _ = ranked(design_sweep)
    page.click("#ranking tbody tr:nth-child(5) td:nth-child(2)")
    text = page.run("document.querySelector('#design').innerText")
    row = design_sweep.isel(config=order[4])
    assert text.startswith(f"#5: {row['hardware'].item()}, tensor parallel {row['tensor_parallel'].item()}")
    assert f"--set deployment.hardware={row['hardware'].item()}" in text and "time to first token" in text


def test_charts_are_drawn_and_tell_of_a_point_under_the_mouse(page):
    for chart in CHARTS:
        page.show(chart)
        assert page.run(f"document.querySelector('{chart} figcaption').innerText.length") > 40
    page.show("#curves")
    assert page.run("document.querySelectorAll('#curves .errorbar').length") > 0
    assert page.run("document.querySelectorAll('#curves .shapelayer path').length") == 1  # the objective
    page.hover("#curves .chart .scatterlayer .trace:nth-child(2) .point:nth-child(3)")
    page.wait("document.querySelector('#curves .hovertext')")
    assert "TTFT p90" in page.run("document.querySelector('#curves .hovertext').textContent")


def test_a_point_of_a_chart_chooses_its_design(page):
    page.show("#curves")
    point = "#curves .chart .scatterlayer .trace:nth-child(2) .point:nth-child(2)"
    page.hover(point)
    page.wait("document.querySelector('#curves .hovertext')")
    page.click(point)
    page.wait("!document.querySelector('#design').innerText.startsWith('#1:')")
    assert "arrival rate 2 requests/s" in page.run("document.querySelector('#design').innerText")


def test_a_heat_map_over_any_two_axes(page):
    page.show("#heat")
    choose(page, ("#heat", "across"), "policy")
    choose(page, ("#heat", "up"), "tensor_parallel")
    choose(page, ("#heat", "measure"), "tpot_s p99")
    page.wait("document.querySelector('#heat .xtitle').textContent === 'policy'")
    assert page.run("document.querySelector('#heat .ytitle').textContent") == "tensor parallel"
    assert page.run("document.querySelector('#heat .chart').data[0].z.length") == 3


def test_a_sample_of_numbers_is_mapped_in_steps_and_drawn_as_points(browser, tmp_path):
    rates = axis("workload.arrivals.rate_rps", *np.linspace(1.0, 8.0, 60).tolist())
    browser.open(write_page(sweep(HARDWARE, rates), tmp_path / "page.html"))
    browser.show("#heat")
    levels = browser.run("document.querySelector('#heat .chart').data[0].x")
    assert len(levels) == 10 and levels[0] == "1 to 1.7"
    browser.show("#curves")
    assert browser.run("document.querySelector('#curves .chart').data[1].mode") == "markers"
    assert browser.errors == []


def test_curves_over_a_wide_range_stand_by_logarithms(browser, tmp_path):
    rates = axis("workload.arrivals.rate_rps", *np.geomspace(0.01, 10.0, 16).tolist())
    browser.open(write_page(sweep(HARDWARE, rates), tmp_path / "page.html"))
    browser.show("#curves")
    assert browser.run("document.querySelector('#curves .chart').layout.xaxis.type") == "log"
    low, high = browser.run("document.querySelector('#curves .chart').layout.xaxis.range")
    assert -2.1 < low < -2.0 and 1.0 < high < 1.4
    assert browser.errors == []


def test_a_number_that_some_designs_do_not_set_is_an_axis_of_those_that_do(browser, tmp_path):
    tokens = axis("deployment.batching.max_num_batched_tokens", 512, 1024, 2048, None)
    browser.open(write_page(sweep(HARDWARE, tokens), tmp_path / "page.html"))
    browser.show("#curves")
    assert browser.run("document.querySelector('#curves .chart').layout.xaxis.range")[1] > 2048
    assert browser.errors == []


def test_values_stand_in_the_cells_of_a_map_where_there_is_room(browser, file):
    for width, told in ((1280, True), (390, False)):
        browser.open(file, width=width, height=844)
        browser.show("#heat")
        texts = browser.run("document.querySelector('#heat .chart').data[1].text")
        assert any(any(letter.isdigit() for letter in text) for text in texts) == told and any(texts)


def test_the_front_has_no_design_that_another_beats(page):
    page.show("#front")
    choose(page, ("#front", "up"), "1/usd_per_mtok")
    page.wait("document.querySelector('#front .ytitle').textContent.startsWith('output per dollar')")
    x, y = page.run(
        "(({x, y}) => [x, y])(document.querySelector('#front .chart').data.find((trace) => trace.name === 'front'))"
    )
    assert len(x) > 1 and (np.diff(x) > 0).all() and (np.diff(y) > 0).all()


def test_of_very_many_designs_neighbours_are_one_point_and_come_apart_in_a_part_of_the_chart(browser, tmp_path):
    rates = axis("workload.arrivals.rate_rps", *np.linspace(1.0, 8.0, 150).tolist())
    browser.open(write_page(sweep(HARDWARE, PARALLEL, POLICY, rates), tmp_path / "page.html"))
    browser.show("#front")
    chart = "document.querySelector('#front .chart')"
    points = f"{chart}.data.filter((one) => one.mode === 'markers' && one.name !== 'chosen design')"
    count = "Number(/and ([\\d,]+) more/.exec(text)?.[1] ?? 0) + 1"
    told = f"{points}.map((one) => one.text.map((text) => {count})).flat()"
    caption = browser.run("document.querySelector('#front figcaption').innerText")
    ran = int(caption.split()[0].replace(",", ""))
    counts = browser.run(told)
    assert ran > 1500 >= len(counts) and max(counts) > 1 and sum(counts) <= ran
    assert "neighbours of one colour as one point" in caption
    whole = browser.run(f"[{chart}.layout.xaxis.range, {chart}.layout.yaxis.range]")
    drawn = browser.run(f"{chart}.dataset.drawn")
    browser.run(
        f"Plotly.relayout({chart}, {{'xaxis.range[0]': {whole[0][0]}, 'xaxis.range[1]': {sum(whole[0]) / 2},"
        f" 'yaxis.range[0]': 0, 'yaxis.range[1]': {whole[1][1] / 8}}}).then(() => 0)"
    )
    browser.wait(f"{chart}.dataset.drawn > {drawn}")
    part = browser.run(told)
    assert max(part) < max(counts) and browser.run(f"{chart}.layout.yaxis.range[1]") == whole[1][1] / 8
    browser.run(f"Plotly.relayout({chart}, {{'xaxis.autorange': true, 'yaxis.autorange': true}}).then(() => 0)")
    browser.wait(f"{chart}.dataset.drawn > {drawn} + 1")
    assert browser.run(told) == counts
    assert browser.run(f"[{chart}.layout.xaxis.range, {chart}.layout.yaxis.range]") == whole
    browser.hover("#front .chart .scatterlayer .trace:nth-child(1) .point:nth-child(3)")
    browser.wait("document.querySelector('#front .hovertext')")
    assert browser.errors == []


def test_where_time_goes_adds_up_to_the_end_to_end_time(browser, tmp_path):
    ds = measured((HARDWARE, RATE))
    browser.open(write_page(ds, tmp_path / "page.html"))
    browser.show("#time")
    stacks = browser.run("document.querySelector('#time .chart').data.map((trace) => trace.y)")
    rows = browser.run("document.querySelector('#time .chart').data[0].customdata")
    order, _ = ranked(ds)
    np.testing.assert_allclose(np.sum(stacks, axis=0), ds["e2e_s_mean"].values[order[rows]], rtol=2e-4)
    assert browser.errors == []


def test_a_phone_scrolls_only_down_and_the_table_and_charts_are_there(browser, file):
    browser.open(file, width=390, height=844)
    for chart in CHARTS:
        browser.show(chart)
        assert browser.run(f"document.querySelector('{chart} .chart').clientWidth") <= 390
    assert browser.run("document.documentElement.scrollWidth") == 390
    assert len(column(browser, "hardware")) == 20 and browser.errors == []


def test_dark_where_the_reader_has_it_so_and_by_the_button(browser, file):
    browser.open(file, dark=True)
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = browser.run(ground)
    browser.click("#theme")
    assert dark == "rgb(20, 23, 26)" and browser.run(ground) == "rgb(255, 255, 255)"


def test_the_keyboard_reaches_the_table(page):
    page.press("Tab")
    assert page.run("document.activeElement.className") == "skip"
    page.run("document.querySelector('#ranking .rank').focus()")
    page.press("Tab")
    assert page.run("document.activeElement.className") == "rank"
    page.press("Enter")
    assert page.run("document.querySelector('#design').innerText").startswith("#2: ")


def test_texts_of_the_user_run_no_script(browser, tmp_path):
    hostile = "</script><img src=x onerror=\"document.title='broken'\">"
    ds = sweep(HARDWARE, PARALLEL, RATE)
    names = np.where(ds["hardware"] == "h100-sxm", hostile, ds["hardware"]).astype(str)
    ds = ds.assign_coords(hardware=("config", names, ds["hardware"].attrs))
    ds.attrs |= {"title": hostile, "scenario": f"# {hostile}\nname: x\n"}
    ds["status"] = ("config", np.where(ds["status"] == "ok", "ok", f"infeasible: {hostile}"), ds["status"].attrs)
    browser.open(write_page(ds, tmp_path / "page.html"))
    for chart in CHARTS:
        browser.show(chart)
    choose(browser, ("#filters", "state"), "cannot run")
    browser.click("#ranking tbody tr:nth-child(1) td:nth-child(2)")
    assert hostile in browser.run("document.querySelector('#design').innerText")
    assert browser.run("document.title").endswith("– Evaluator") and browser.run("document.images.length") == 0
    assert browser.errors == []


def test_an_old_browser_says_what_it_lacks_and_keeps_the_text(browser, file):
    name = browser.before("delete window.DecompressionStream")
    browser.open(file)
    browser.after(name)
    assert (
        browser.run("document.querySelector('#failure').innerText")
        == "Tables and charts need a browser of 2023 or later."
    )
    assert "meet the objectives" in browser.run("document.querySelector('#answer').innerText")


def test_a_page_in_a_sandbox_has_no_history_and_no_frames_and_works(browser, file):
    name = browser.before(
        "Object.defineProperty(HTMLIFrameElement.prototype, 'contentDocument', {get: () => null});"
        "history.replaceState = () => { throw new DOMException('sandboxed', 'SecurityError'); }"
    )
    browser.open(file)
    browser.after(name)
    choose(browser, ("#filters", "hardware"), "l40s")
    assert set(column(browser, "hardware")) == {"l40s"} and browser.errors == []


def test_pages_without_choices(browser, tmp_path):
    lost = sweep(HARDWARE, RATE)
    lost = lost.assign({name: lost[name] * np.nan for name in lost.data_vars if lost[name].dtype.kind == "f"})
    none = sweep(HARDWARE, RATE, room=False)
    for ds in (sweep(), sweep(HARDWARE, room=False), none, lost, sweep(HARDWARE, RATE, objectives=(), price=False)):
        browser.open(write_page(ds, tmp_path / "page.html"))
        for part in ("#best-of", *CHARTS, "#help", "#time"):
            browser.show(part)
        assert browser.errors == [] and browser.run("document.querySelector('#failure').hidden")


# --- what a reader chooses stands in the address


def test_sort_filters_columns_design_and_theme_stand_in_the_address(browser, file):
    browser.open(file)
    browser.click("#theme")
    choose(browser, ("#filters", "hardware"), "mi300x")
    choose(browser, ("#filters", "words"), "chunked tensor")
    browser.run(
        "[...document.querySelectorAll('#ranking th button')].find((b) => b.innerText.startsWith('TPOT')).click()"
    )
    browser.click("#ranking tbody tr:nth-child(3) td:nth-child(2)")
    browser.run("document.querySelector('nav a[href=\"#heat\"]').click()")
    browser.wait("location.hash.startsWith('#heat&')")
    shown = "[document.querySelector('#ranking').innerText, document.querySelector('#design').innerText]"
    before, link = browser.run(shown), browser.run("location.hash")
    browser.open(file)
    assert browser.run(shown) != before
    browser.open(file, fragment=link)
    assert browser.run(shown) == before and set(column(browser, "policy")) == {"chunked"}
    assert browser.run("document.documentElement.dataset.theme") == "dark"
    browser.wait("scrollY > 500")  # at the section of the link
    assert browser.errors == []


def test_what_charts_show_stands_in_the_address(browser, file):
    browser.open(file)
    for section, control, value in (
        ("#front", "up", "output_tok_per_s"), ("#curves", "measure", "tpot_s p90"),
        ("#curves", "a curve for each", "(percentiles)"), ("#heat", "across", "hardware"),
    ):  # fmt: skip
        browser.show(section)
        choose(browser, (section, control), value)
    titles = "[...document.querySelectorAll('.xtitle, .ytitle')].map((title) => title.textContent)"
    browser.wait("document.querySelector('#heat .xtitle').textContent === 'hardware'")
    before, link = browser.run(titles), browser.run("location.hash")
    browser.open(file, fragment=link)
    for section in CHARTS:
        browser.show(section)
    assert browser.run(titles) == before and "output (tokens/s)" in before and "TPOT (ms)" in before
    assert browser.errors == []


@pytest.fixture(scope="module")
def plain_design(browser, file):
    """What is said of the design that a page shows under an address without choices."""
    browser.open(file)
    return browser.run("document.querySelector('#design').innerText")


@pytest.mark.parametrize("fragment", [
    "#designs", "#&%E0%A4%A&=&&", "#a&sort",
    "#front&front.x=none&front.colour=&curves.x=hardware&curves.y=none&heat.x=hardware&heat.y=hardware&time.scale=first",
    "#none&sort=none&design=999999&is.hardware=none&measure=none&bound=x&columns=,",
])  # fmt: skip
def test_an_address_that_fits_nothing_shows_the_page_as_it_is(browser, file, plain_design, fragment):
    browser.open(file, fragment=fragment)
    assert browser.run("document.querySelector('#design').innerText") == plain_design
    for section in CHARTS:
        browser.show(section)
    assert len(column(browser, "hardware")) == 20 and browser.errors == []


# --- saturated designs


def test_saturated_designs_are_not_steady_and_do_not_lead_a_table_sorted_by_a_measure(browser, tmp_path):
    ds = sweep(HARDWARE, PARALLEL, RATE)
    ds["steady"] = ("config", np.arange(72) % 2 == 0)
    browser.open(write_page(ds, tmp_path / "page.html"), fragment="#designs&sort=cost")
    for _ in range(3):
        states = column(browser, "state")
        calm = [state != "saturated" for state in states]
        assert calm == sorted(calm, reverse=True)
        told = [word != "–" for word in column(browser, "steady")]
        assert told == [state not in ("saturated", "cannot run") for state in states]
        browser.click("#pager button:nth-child(3)")
    assert "saturated" in states
    assert "sorted by cost, rising, saturated ones behind" in browser.run(
        "document.querySelector('#table-state').innerText"
    )


# --- stages of a pipeline


def piped(count=3):
    """A dataset of a pipeline: retrieval, which a third of the requests pass, prefill, decode and a postprocess."""
    ds = measured((axis("workload.arrivals.rate_rps", *map(float, range(1, count + 1))),))
    names, ones = ["retrieval", "prefill", "decode", "post"], np.ones((count, 1))
    wait, service = np.array([0.3, 0.1, 0.0, 0.0]), np.array([0.6, 0.2, 2.0, 0.1])
    share = np.array([0.5, 1.0, 1.0, 1.0])
    found = {
        "stage_wait_s_mean": wait,
        "stage_service_s_mean": service,
        "stage_share": share,
        "stage_utilisation": share,
    }
    ds = ds.assign({name: (("config", "stage"), ones * each) for name, each in found.items()}).assign_coords(
        stage=names
    )
    for name in ("stage_wait_s", "stage_service_s"):
        shape = (count, len(names), ds.sizes["quantile"])
        ds[name] = (("config", "stage", "quantile"), np.ones(shape), {"units": "s"})
    ds["queue_wait_s_mean"][:], ds["ttft_s_mean"][:], ds["e2e_s_mean"][:] = 0.85, 0.8, 2.9
    return ds


def test_the_time_of_a_pipeline_goes_to_its_stages(browser, tmp_path):
    browser.open(write_page(piped(), tmp_path / "page.html"))
    browser.show("#time")
    traces = browser.run("document.querySelector('#time .chart').data.map(({name, y}) => [name, y[0]])")
    assert dict(traces) == pytest.approx({
        "the server's front": 0.05, "waiting for retrieval": 0.15, "retrieval": 0.3, "waiting for prefill": 0.1,
        "prefill": 0.2, "decode": 2.0, "post": 0.1,
    })  # fmt: skip
    assert sum(seconds for _, seconds in traces) == pytest.approx(2.9)
    choose(browser, ("#time", "as"), "first")
    browser.wait("document.querySelector('#time .chart').data.length === 5")
    card = browser.run("document.querySelector('#design').innerText")
    assert "retrieval\t50\t50\t0.300\t0.600\n" in card
    assert browser.errors == []


# --- what the charts say


def test_curves_mark_and_count_what_lies_beyond_the_chart(page):
    page.show("#curves")
    chart = "document.querySelector('#curves .chart')"
    top = page.run(f"10 ** {chart}.layout.yaxis.range[1]")
    values = page.run(f"{chart}.data.filter((one) => one.opacity === 0.4).flatMap((one) => one.y)")
    marks = page.run(f"{chart}.data.filter((one) => one.cliponaxis === false).flatMap((one) => one.y.filter(Boolean))")
    beyond = sum(value > top for value in values)
    assert beyond == len(marks) > 0 and marks == pytest.approx([top] * beyond)
    assert f"△: {beyond} of {len(values)} designs lie beyond" in page.run(
        "document.querySelector('#curves figcaption').innerText"
    )


def test_the_heading_of_curves_names_what_they_are_over(browser, file, tmp_path):
    browser.open(file)
    browser.show("#curves")
    assert browser.run("document.querySelector('#curves h2').innerText") == "Over the load"
    seqs = axis("deployment.batching.max_num_seqs", 64, 128, 256)
    browser.open(write_page(sweep(HARDWARE, seqs), tmp_path / "page.html"))
    browser.show("#curves")
    assert browser.run("document.querySelector('#curves h2').innerText") == "Over max num seqs"


def test_alternative_texts_are_findings_and_no_captions(page):
    for chart in CHARTS:
        page.show(chart)
        told = page.run(f"document.querySelector('{chart} .chart').ariaLabel")
        assert any(figure.isdigit() for figure in told) and told != page.run(
            f"document.querySelector('{chart} figcaption').innerText"
        )
    assert "the front goes from" in page.run("document.querySelector('#front .chart').ariaLabel")
    assert "h100-sxm from 0.197 at 1 to" in page.run("document.querySelector('#curves .chart').ariaLabel")
    assert "highest" in page.run("document.querySelector('#heat .chart').ariaLabel")


def test_sensitivities_without_any_effect_are_said_and_a_search_has_no_such_section(browser, tmp_path):
    ds = measured((HARDWARE,)).assign_coords(input=("input", ["flops"], {"description": "what it is"}))
    for name in ("ttft_s", "tpot_s", "slo_attainment", "usd_per_mtok", "output_tok_per_s"):
        wide = ("quantile",) if name in ("ttft_s", "tpot_s") else ()
        for suffix in ("", "_stderr", "_step_error"):
            shape = tuple(ds.sizes[each] for each in ("config", "input", *wide))
            ds[f"{name}_elasticity{suffix}"] = (("config", "input", *wide), np.zeros(shape))
    browser.open(write_page(ds, tmp_path / "page.html"))
    browser.show("#help")
    assert browser.run("document.querySelector('#help .chart').hidden")
    assert "changes none of its measures" in browser.run("document.querySelector('#help').innerText")
    browser.open(write_page(dataset(), tmp_path / "search.html"))
    assert browser.run("document.querySelector('#help')") is None
    assert browser.run("document.querySelector('nav a[href=\"#help\"]')") is None and browser.errors == []


# --- reading it: contrast, width, paper, spreadsheets

CONTRAST = """(() => {
const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d');
const parts = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
};
const light = (colour) => {
    const [r, g, b] = colour.map((part) => part / 255).map(
        (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (node) => {
    for (; node; node = node.parentElement) {
        const found = parts(getComputedStyle(node).backgroundColor);
        if (found[3] === 255) return found;
    }
    return [255, 255, 255];
};
const cells = (label) => {  // the colour of the cell of a heat map that a text stands in
    const chart = label.closest('.chart');
    if (chart?.data[0].type !== 'heatmap' || !label.closest('.textpoint')) return null;
    const {data: [heat, marks]} = chart, at = [...chart.querySelectorAll('.textpoint text')].indexOf(label);
    const [i, j] = [heat.y.indexOf(marks.y[at]), heat.x.indexOf(marks.x[at])];
    const share = Math.min(1, Math.max(0, (heat.z[i][j] - heat.zmin) / (heat.zmax - heat.zmin)));
    const scale = heat.colorscale.map(([, colour]) => parts(colour));
    if (heat.reversescale) scale.reverse();
    const place = share * (scale.length - 1), [low, high] = [scale[Math.floor(place)], scale[Math.ceil(place)]];
    return low.map((part, k) => part + (place % 1) * (high[k] - part));
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || !node.getClientRects().length || node.closest('script, style, :disabled') || text === '●') continue;
    const style = getComputedStyle(node), label = node.closest('text');
    const [one, two] = [parts(label ? style.fill : style.color), cells(label ?? node) ?? ground(node)].map(light);
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (ratio < 4.5) found.push([Number(ratio.toFixed(2)), text.slice(0, 40)]);
}
return found;
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_a_contrast_of_at_least_4_5_to_1(browser, tmp_path, dark):
    browser.open(write_page(sweep(HARDWARE, PARALLEL, POLICY, RATE), tmp_path / "page.html"), dark=dark)
    for chart in CHARTS:
        browser.show(chart)
    assert browser.run(CONTRAST) == []
    choose(browser, ("#heat", "measure"), "ttft_s p90")  # of which low is better
    browser.wait("document.querySelector('#heat .chart').data[0].reversescale")
    assert browser.run(CONTRAST) == []


def test_the_table_uses_the_width_of_the_screen(browser, file):
    browser.open(file, width=1400)
    box = "document.querySelector('#designs .scroll')"
    assert browser.run(f"{box}.clientWidth") > 1300 and browser.run(f"{box}.scrollWidth <= {box}.clientWidth")
    assert browser.run("document.documentElement.scrollWidth") == 1400


def test_a_page_that_is_printed_without_scrolling_has_its_charts_whole_tables_and_colours(browser, file):
    browser.open(file, dark=True)
    browser.wait("document.readyState === 'complete'")  # what prints pages by itself waits for that
    before = browser.run("[document.documentElement.dataset.theme, document.querySelector('main').clientWidth]")
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    browser.run("Promise.resolve()")
    sheet = browser.run("document.querySelector('main').clientWidth")
    for chart in CHARTS:
        assert browser.run(f"document.querySelector('{chart} .chart .main-svg').width.baseVal.value") <= sheet
    for box in browser.run(
        "[...document.querySelectorAll('main .scroll')].map((box) => [box.scrollWidth, box.clientWidth])"
    ):
        assert box[0] <= box[1] + 1
    assert browser.run("document.documentElement.dataset.theme") == "light"
    browser.run("window.dispatchEvent(new Event('afterprint'))")
    assert browser.run("[document.documentElement.dataset.theme, document.querySelector('main').clientWidth]") == before
    browser.open(file)
    browser.wait("document.readyState === 'complete'")
    assert browser.printed().startswith(b"%PDF")
    assert all(browser.run(f"document.querySelector('{chart} .chart').dataset.drawn") for chart in CHARTS)
    assert browser.errors == []


def test_no_cell_of_saved_csv_is_a_formula(browser, tmp_path):
    ds = sweep(HARDWARE, RATE)
    names = np.select([ds["hardware"] == "h100-sxm", ds["hardware"] == "l40s"], ["=1+1", "@SUM(A1)\r"], '-2+3,"x"')
    ds = ds.assign_coords(hardware=("config", names, ds["hardware"].attrs))
    ds["usd_per_mtok"][:] = -1.5  # a number may be negative
    browser.open(write_page(ds, tmp_path / "page.html"))
    browser.run("window.URL.createObjectURL = (blob) => { window.saved = blob; return 'blob:none'; }; 0")
    browser.click("#pager .push")
    rows = list(csv.reader(io.StringIO(browser.run("saved.text()"), newline="")))
    assert len(rows) == 25 and {row[1] for row in rows[1:]} == {"'=1+1", "'@SUM(A1)\r", '\'-2+3,"x"'}
    cost = rows[0].index("usd_per_mtok [USD/Mtok]")
    assert {row[cost] for row in rows[1:]} == {"-1.5"}
