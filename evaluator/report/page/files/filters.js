// The form above the table: what it filters by, which columns it shows; and its rows as CSV.

const FEW_LEVELS = 12; // of a number, up to which they are listed

/** The form above the table. */
function buildFilters(page, filters, shown, refresh) {
  const { data } = page;
  const form = document.getElementById("filters");
  form.onsubmit = (event) => event.preventDefault();
  const search = make("input", {
    type: "search",
    placeholder: "b200 chunked",
    oninput: () => {
      filters.words = search.value;
      refresh();
    },
  });
  const states = [...new Set(data.rows.map(data.state))].map((state) => [state, state]);
  const numberField = (changed, label) =>
    make("input", {
      type: "number",
      step: "any",
      ariaLabel: label,
      oninput: (event) => changed(event.target.value === "" ? null : Number(event.target.value)),
    });
  const axisFilter = (axis) => {
    if (!axis.numeric || axis.levels.length <= FEW_LEVELS)
      return choice(
        axis.label,
        [["", "all"], ...axis.levels.map((_, at) => [at, levelText(axis, at)])],
        "",
        (value) => {
          filters.axes[axis.key] = (row) => value === "" || axis.at[row] === Number(value);
          refresh();
        },
      );
    const range = { from: null, to: null };
    filters.axes[axis.key] = (row) => {
      const level = axis.levels[axis.at[row]];
      return (range.from === null || level >= range.from) && (range.to === null || level <= range.to);
    };
    return make(
      "div",
      { className: "group" },
      axis.unit ? `${axis.label}, ${axis.unit}` : axis.label,
      make(
        "div",
        { className: "pair" },
        numberField((value) => {
          range.from = value;
          refresh();
        }, `${axis.label} from`),
        numberField((value) => {
          range.to = value;
          refresh();
        }, `${axis.label} to`),
      ),
    );
  };
  const bound = numberField((value) => {
    filters.bound = value;
    refresh();
  }, "bound of the measure");
  form.replaceChildren(
    make("label", {}, "words", search),
    choice("state", [["", "all"], ...states], "", (value) => {
      filters.state = value;
      refresh();
    }),
    ...data.axes.map(axisFilter),
    make(
      "div",
      { className: "group" },
      "a measure",
      make(
        "div",
        { className: "pair" },
        choice(
          "",
          [["", "none"], ...seriesOptions(data.series)],
          "",
          (value) => {
            filters.measure = value;
            refresh();
          },
          "measure to filter by",
        ),
        choice(
          "",
          [
            ["≤", "≤"],
            ["≥", "≥"],
          ],
          "≤",
          (value) => {
            filters.sign = value;
            refresh();
          },
          "at most or at least",
        ),
        bound,
      ),
    ),
    columnChooser(data, shown, refresh),
  );
}

function columnChooser(data, shown, refresh) {
  const boxes = data.series.map((series) => {
    const box = make("input", {
      type: "checkbox",
      checked: shown.columns.includes(series.id),
      onchange: () => {
        shown.columns = data.series
          .filter((each) => (each.id === series.id ? box.checked : shown.columns.includes(each.id)))
          .map((each) => each.id);
        refresh();
      },
    });
    return make("label", { title: series.about }, box, series.title);
  });
  return make(
    "details",
    { className: "columns" },
    make("summary", {}, "Choose columns"),
    make("div", { className: "choices" }, ...boxes),
  );
}

/** Rows with all their quantities and measures, errors beside them, in the units of the page. */
function asCsv(data, rows) {
  const quoted = (value) =>
    !isKnown(value) ? "" : /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value);
  const columns = [
    ["rank", (row) => data.ranks[row] + 1],
    ...data.axes.map((axis) => [axis.key, (row) => axis.levels[axis.at[row]]]),
    ["status", (row) => data.status.levels[data.status.at[row]]],
  ];
  for (const series of data.series.filter((each) => !each.derived)) {
    columns.push([series.unit ? `${series.id} [${series.unit}]` : series.id, (row) => series.values[row]]);
    if (series.stderr) columns.push([`${series.id} stderr`, (row) => series.stderr[row]]);
  }
  return [
    columns.map(([name]) => quoted(name)).join(","),
    ...rows.map((row) => columns.map(([, value]) => quoted(value(row))).join(",")),
  ].join("\n");
}
