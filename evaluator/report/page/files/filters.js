// The form above the table: what it filters by, which columns it shows; and its rows as CSV. The address keeps all of it.

const FEW_LEVELS = 12; // of a number, up to which they are listed

const isListed = (axis) => !axis.numeric || axis.levels.length <= FEW_LEVELS;

/** The rows that pass what the form, and so the address, says. */
function matching(data) {
  const words = kept("words").toLowerCase().split(/\s+/).filter(Boolean);
  const series = data.byId.get(kept("measure"));
  const number = (key) => (kept(key) === "" ? NaN : Number(kept(key)));
  const beyond = (value, low, high) => value < low || value > high; // a bound that is not there, NaN, holds nothing back
  const bound = number("bound");
  const tests = data.axes.map((axis) => {
    const wanted = axis.levels.findIndex((_, at) => levelText(axis, at) === kept(`is.${axis.key}`));
    const [low, high] = [number(`from.${axis.key}`), number(`to.${axis.key}`)];
    if (isListed(axis)) return (row) => wanted < 0 || axis.at[row] === wanted;
    return (row) => !beyond(axis.levels[axis.at[row]], low, high);
  });
  return data.rows.filter((row) => {
    if (kept("state") && data.state(row) !== kept("state")) return false;
    if (!tests.every((fits) => fits(row))) return false;
    if (series && !Number.isNaN(bound)) {
      const value = series.values[row];
      if (!isKnown(value) || (kept("least") ? value < bound : value > bound)) return false;
    }
    if (!words.length) return true;
    const text = `${inWords(data, row)} ${data.state(row)} ${data.status.levels[data.status.at[row]]}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

/** The form above the table. */
function buildFilters(page, shown, refresh) {
  const { data } = page;
  const form = document.getElementById("filters");
  form.onsubmit = (event) => event.preventDefault();
  const change = (key) => (value) => {
    keep(key, value);
    refresh();
  };
  const field = (key, properties) =>
    make("input", { value: kept(key), oninput: (event) => change(key)(event.target.value), ...properties });
  const numberField = (key, label) => field(key, { type: "number", step: "any", ariaLabel: label });
  const pair = (label, ...fields) =>
    make("div", { className: "group" }, label, make("div", { className: "pair" }, ...fields));
  const axisFilter = (axis) => {
    if (!isListed(axis))
      return pair(
        axis.unit ? `${axis.label}, ${axis.unit}` : axis.label,
        numberField(`from.${axis.key}`, `${axis.label} from`),
        numberField(`to.${axis.key}`, `${axis.label} to`),
      );
    const levels = axis.levels.map((_, at) => [levelText(axis, at), levelText(axis, at)]);
    return choice(axis.label, [["", "all"], ...levels], kept(`is.${axis.key}`), change(`is.${axis.key}`));
  };
  const states = [...new Set(data.rows.map(data.state))].map((state) => [state, state]);
  const measures = [["", "none"], ...seriesOptions(data.series)];
  const signs = [
    ["", "≤"],
    ["yes", "≥"],
  ];
  form.replaceChildren(
    make("label", {}, "words", field("words", { type: "search", placeholder: "b200 chunked" })),
    choice("state", [["", "all"], ...states], kept("state"), change("state")),
    ...data.axes.map(axisFilter),
    pair(
      "a measure",
      choice("", measures, kept("measure"), change("measure"), "measure to filter by"),
      choice("", signs, kept("least"), change("least"), "at most or at least"),
      numberField("bound", "bound of the measure"),
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
        keep("columns", shown.columns.join(","));
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

/** A cell of CSV. A text that a spreadsheet would take for a formula begins with an apostrophe (OWASP, CSV injection). */
function csvCell(value) {
  if (!isKnown(value)) return "";
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Rows with all their quantities and measures, errors beside them, in the units of the page. */
function asCsv(data, rows) {
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
    columns.map(([name]) => csvCell(name)).join(","),
    ...rows.map((row) => columns.map(([, value]) => csvCell(value(row))).join(",")),
  ].join("\n");
}
