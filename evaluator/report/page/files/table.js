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
    "ahead_of_first",
    "tok_per_s_per_gpu",
    "output_tok_per_s",
    "usd_per_mtok",
    "joule_per_tok",
  ];
  return [...new Set(wanted)].filter((id) => data.byId.has(id));
}

function rankingTable(page) {
  const { data } = page;
  const wanted = kept("columns").split(",").filter((id) => data.byId.has(id));
  const shown = { columns: wanted.length ? wanted : firstColumns(data), first: 0, rows: data.rows };
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
      cell: (row) => verdictCell(data, row),
    },
    ...(data.steady.levels.includes("no") ? [steadyColumn(data)] : []),
    ...shown.columns
      .map((id) => data.byId.get(id))
      .map((series) => ({
        name: series.name,
        unit: series.unit,
        about: series.about,
        number: true,
        measured: true,
        key: (row) => series.values[row],
        down: series.better === "high",
        cell: (row) => figureCell(series, row),
      })),
  ];

  /** The column that the table is sorted by and whether it falls: `sort=-cost` in the address; none for the ranking. */
  function order() {
    const name = kept("sort").replace(/^-/, "");
    return { by: columns().find((column) => column.name === name), down: kept("sort").startsWith("-") };
  }

  function sortBy(column) {
    const { by, down } = order();
    const falls = by?.name === column.name ? !down : Boolean(column.down);
    keep("sort", `${falls ? "-" : ""}${column.name}`);
    refresh();
  }

  /** Rows in the order asked for; either way saturated ones come behind in a measure, and what is not known last. */
  function sorted(rows) {
    const { by, down } = order();
    if (!by) return rows;
    const place = (key, row) => (!isKnown(key) ? 2 : by.measured && data.saturated[row] ? 1 : 0);
    const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
    const keyed = rows.map((row) => [by.key(row), row]).map(([key, row]) => [place(key, row), key, row]);
    keyed.sort((a, b) => a[0] - b[0] || (a[0] < 2 && (down ? -1 : 1) * compare(a[1], b[1])) || a[2] - b[2]);
    return keyed.map(([, , row]) => row);
  }

  function refresh(first = 0) {
    shown.rows = sorted(matching(data));
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
    const { by, down } = order();
    const behind = by?.measured && data.saturated.includes(1) ? ", saturated ones behind" : "";
    const range = visible.length ? `${shown.first + 1} to ${shown.first + visible.length} of ` : "";
    document.getElementById("table-state").textContent =
      `${range}${shown.rows.length.toLocaleString("en-US")} designs${shown.rows.length < data.count ? ` that pass the filters, out of ${data.count.toLocaleString("en-US")}` : ""}; ` +
      `${by ? `sorted by ${by.name}, ${down ? "falling" : "rising"}${behind}` : "in the order of the ranking"}. ± is one standard error.`;
    pager();
  }

  function heading(column) {
    const { by, down } = order();
    const sorts = by?.name === column.name;
    const mark = sorts ? (down ? " ▼" : " ▲") : "";
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
        data: { "aria-sort": sorts ? (down ? "descending" : "ascending") : "none" },
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

  buildFilters(page, shown, () => refresh());
  page.onChoice.push(() => turn(shown.first));
  refresh();
}

const stateCell = (state) => make("span", {}, make("i", { className: `dot state-${state.split(" ")[0]}` }), state);

/** What became of a design, and with what chance it meets its objectives; never quite 0 or 100 %. */
function verdictCell(data, row) {
  const cell = stateCell(data.state(row));
  const chance = data.byId.get("slo_chance")?.values[row];
  if (isKnown(chance)) {
    const text = chance < 0.5 ? "<1 %" : chance >= 99.5 ? ">99 %" : `${Math.round(chance)} %`;
    cell.append(make("small", { title: "chance that all objectives hold, given the expected errors of the model and of the run" }, ` ${text}`));
  }
  return cell;
}

function figureCell(series, row) {
  const value = series.values[row];
  if (!isKnown(value)) return "–";
  const error = series.stderr?.[row];
  return isKnown(error)
    ? make("span", {}, `${figure(value, series.whole)} `, make("small", {}, `±${errorFigure(error, value)}`))
    : figure(value, series.whole);
}

/** Whether the run of a design was long enough for its statistics; that of a saturated one never is. */
function steadyColumn(data) {
  const word = (row) => (data.ran(row) && !data.saturated[row] ? data.steady.levels[data.steady.at[row]] : null);
  return {
    name: "steady",
    unit: "",
    about: "whether the run was long enough for its statistics",
    key: word,
    cell: (row) => word(row) ?? "–",
  };
}
