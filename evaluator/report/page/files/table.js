// The table of all designs: sorted by a click on a heading, filtered by the form above, a page of rows at a time.

const PAGE_ROWS = 20;

/** Measures that stand in the table at first, by their ids; latencies at the statistic of their objective, or p90. */
function firstColumns(data) {
  const at = (key) => data.objectives.find((each) => each.key === key)?.part ?? "p90";
  const wanted = [
    ...(data.search ? ["devices", "usd_per_hour"] : []),
    "goodput_rps",
    "goodput_rps_per_gpu",
    "goodput_per_usd",
    ...["ttft_s", "tpot_s"].map((key) => `${key} ${at(key)}`),
    ...data.objectives.map((each) => `${each.key} ${each.part}`),
    "slo_attainment",
    "tok_per_s_per_gpu",
    "output_tok_per_s",
    "usd_per_mtok",
    "joule_per_tok",
  ];
  return [...new Set(wanted)].filter((id) => data.byId.has(id));
}

function rankingTable(page) {
  const { data } = page;
  const shown = { columns: firstColumns(data), sort: null, down: false, first: 0, rows: data.rows };
  const filters = { words: "", state: "", axes: {}, measure: "", sign: "≤", bound: null };
  const table = document.getElementById("ranking");

  const columns = () => [
    {
      name: "#",
      unit: "",
      key: (row) => data.ranks[row],
      cell: (row) =>
        make(
          "button",
          { type: "button", className: "rank", ariaLabel: `choose design ${data.ranks[row] + 1}` },
          String(data.ranks[row] + 1),
        ),
      number: true,
    },
    ...data.axes.map((axis) => ({
      name: axis.label,
      unit: axis.unit,
      number: axis.numeric,
      key: (row) => (axis.numeric ? axis.levels[axis.at[row]] : levelText(axis, axis.at[row])),
      cell: (row) => levelText(axis, axis.at[row]),
    })),
    {
      name: "state",
      unit: "",
      key: (row) => REACHED.concat("cannot run").indexOf(data.state(row)),
      cell: (row) => stateCell(data.state(row)),
    },
    ...(data.steady.levels.includes("no") ? [steadyColumn(data)] : []),
    ...shown.columns
      .map((id) => data.byId.get(id))
      .map((series) => ({
        name: series.name,
        unit: series.unit,
        about: series.about,
        number: true,
        key: (row) => series.values[row],
        down: series.better === "high",
        cell: (row) => figureCell(series, row),
      })),
  ];

  function sortBy(column) {
    shown.down = shown.sort === column.name ? !shown.down : Boolean(column.down);
    shown.sort = column.name;
    refresh();
  }

  function matching() {
    const words = filters.words.toLowerCase().split(/\s+/).filter(Boolean);
    const series = data.byId.get(filters.measure);
    return data.rows.filter((row) => {
      if (filters.state && data.state(row) !== filters.state) return false;
      if (!Object.values(filters.axes).every((fits) => fits(row))) return false;
      if (series && filters.bound !== null) {
        const value = series.values[row];
        if (!isKnown(value) || (filters.sign === "≤" ? value > filters.bound : value < filters.bound)) return false;
      }
      if (!words.length) return true;
      const text = `${inWords(data, row)} ${data.state(row)} ${data.status.levels[data.status.at[row]]}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }

  /** Rows in the order asked for; what is not known comes last either way. */
  function sorted(rows) {
    const column = columns().find((each) => each.name === shown.sort);
    if (!column) return rows;
    const keyed = rows.map((row) => [column.key(row), row]);
    const known = keyed.filter(([key]) => isKnown(key)),
      unknown = keyed.filter(([key]) => !isKnown(key));
    const order = typeof known[0]?.[0] === "string" ? (a, b) => a[0].localeCompare(b[0]) : (a, b) => a[0] - b[0];
    known.sort((a, b) => (shown.down ? -order(a, b) : order(a, b)) || a[1] - b[1]);
    return [...known, ...unknown].map(([, row]) => row);
  }

  function refresh(first = 0) {
    shown.rows = sorted(matching());
    turn(first);
  }

  function turn(first) {
    shown.first = Math.max(0, Math.min(first, Math.floor((shown.rows.length - 1) / PAGE_ROWS) * PAGE_ROWS));
    const visible = shown.rows.slice(shown.first, shown.first + PAGE_ROWS),
      list = columns();
    table.replaceChildren(
      make("caption", { className: "note", hidden: true }, "All designs, ranked"),
      make("thead", {}, make("tr", {}, ...list.map((column) => heading(column)))),
      make("tbody", {}, ...visible.map((row) => line(row, list))),
    );
    const range = visible.length ? `${shown.first + 1} to ${shown.first + visible.length} of ` : "";
    document.getElementById("table-state").textContent =
      `${range}${shown.rows.length.toLocaleString("en-US")} designs${shown.rows.length < data.count ? ` that pass the filters, out of ${data.count.toLocaleString("en-US")}` : ""}; ` +
      `${shown.sort ? `sorted by ${shown.sort}, ${shown.down ? "falling" : "rising"}` : "in the order of the ranking"}. ± is one standard error.`;
    pager();
  }

  function heading(column) {
    const sorts = shown.sort === column.name;
    const mark = sorts ? (shown.down ? " ▼" : " ▲") : "";
    const button = make(
      "button",
      {
        type: "button",
        title: column.about ?? "",
        onclick: () => {
          sortBy(column);
          document.querySelector("#ranking th[aria-sort$='ending'] button")?.focus({ preventScroll: true });
        },
      },
      `${column.name}${mark}`,
      make("small", {}, column.unit || "\u00a0"),
    );
    return make(
      "th",
      {
        scope: "col",
        className: column.number ? "number" : "",
        data: { "aria-sort": sorts ? (shown.down ? "descending" : "ascending") : "none" },
      },
      button,
    );
  }

  function line(row, list) {
    const cells = list.map((column) => make("td", { className: column.number ? "number" : "" }, column.cell(row)));
    return make(
      "tr",
      {
        className: row === page.chosen ? "chosen" : "",
        onclick: () => page.choose(row),
      },
      ...cells,
    );
  }

  function pager() {
    const last = Math.max(0, Math.floor((shown.rows.length - 1) / PAGE_ROWS) * PAGE_ROWS);
    const step = (text, to, off) => make("button", { type: "button", disabled: off, onclick: () => turn(to) }, text);
    document
      .getElementById("pager")
      .replaceChildren(
        step("First", 0, shown.first === 0),
        step("Previous", shown.first - PAGE_ROWS, shown.first === 0),
        step("Next", shown.first + PAGE_ROWS, shown.first >= last),
        step("Last", last, shown.first >= last),
        make(
          "button",
          { type: "button", className: "push", onclick: () => download("designs.csv", asCsv(data, shown.rows)) },
          "Save these as CSV",
        ),
      );
  }

  buildFilters(page, filters, shown, () => refresh());
  page.onChoice.push(() => turn(shown.first));
  refresh();
}

const stateCell = (state) => make("span", {}, make("i", { className: `dot state-${state.split(" ")[0]}` }), state);

function figureCell(series, row) {
  const value = series.values[row];
  if (!isKnown(value)) return "–";
  const error = series.stderr?.[row];
  return isKnown(error)
    ? make("span", {}, `${figure(value, series.whole)} `, make("small", {}, `±${errorFigure(error, value)}`))
    : figure(value, series.whole);
}

/** Whether the run of a design was long enough for its statistics. */
function steadyColumn(data) {
  const word = (row) => (data.ran(row) ? data.steady.levels[data.steady.at[row]] : null);
  return {
    name: "steady",
    unit: "",
    about: "whether the run was long enough for its statistics",
    key: word,
    cell: (row) => word(row) ?? "–",
  };
}
