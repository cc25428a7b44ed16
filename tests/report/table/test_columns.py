from evaluator.report.table.columns import KEPT, Column, lines_of

ROUTERS = ("prefix_aware(events_delay_s=1)", "prefix_aware(events_delay_s=10)", "prefix_approximate(ttl_s=120)")


def column(head, *cells, unit="", rank=KEPT, text=False):
    return Column(head, unit, cells, rank, text)


def names(lines):
    return [line.split()[0] for line in lines[3:6]]


def test_names_that_begin_alike_are_cut_in_their_middle():
    lines = lines_of([column("router", *ROUTERS, text=True), column("TTFT", "1", "2", "3", unit="ms")], 24)
    assert max(map(len, lines)) <= 24
    assert len(set(names(lines))) == 3 and all(name.startswith("prefix_a") for name in names(lines))


def test_names_are_cut_only_as_far_as_they_can_be_told_apart():
    alike = [f"{'a' * 20}{middle}{'b' * 20}" for middle in "xyz"]
    assert len(set(names(lines_of([column("router", *alike, text=True)], 12)))) == 3


def test_names_that_differ_where_they_begin_lose_their_ends():
    lines = lines_of([column("router", "round_robin_by_all", "least_outstanding", "session", text=True)], 10)
    assert names(lines) == ["round_rob…", "least_out…", "session"]


def test_headings_of_designs_take_two_lines_before_a_measure_goes():
    columns = [column("prefix caching", "True", "False"), column("session", "47.7", "80.2", unit="mean, s", rank=85)]
    one, two, *_ = lines_of(columns, 16)
    assert (one.split(), two.split()) == (["prefix", "session"], ["caching", "mean,", "s"])
    assert lines_of(columns, 60)[0].split("  ")[0] == "prefix caching"
    assert "(not shown for want of room: session)" in lines_of(columns, 10)
