// The chosen design with all its figures, and the best design of every level of an axis.

function designCard(page) {
  const { data } = page;
  const root = document.getElementById("design");

  function show() {
    const row = page.chosen;
    const command = make("pre", { tabIndex: 0 }, commandOf(data, row));
    const run = [
      make("h3", {}, "Every request of this design"),
      ...(data.search && (data.search.fill || data.search.rate_rps !== null) && !/replicas=/.test(command.textContent)
        ? [make("p", { className: "note" }, "Add deployment.replicas as the layout says: the search chose them.")]
        : []),
      command,
      copyButton(make("button", { type: "button" }, "Copy"), () => command.textContent),
    ];
    const failed = make("p", { className: "caution" }, data.status.levels[data.status.at[row]]);
    root.replaceChildren(
      make("p", { className: "lead" }, `#${data.ranks[row] + 1}: ${inWords(data, row)}`),
      make(
        "p",
        {},
        verdictCell(data, row),
        ` · computed by ${word("engine", row)}, efficiencies: ${word("provenance", row)}${set(row)}`,
      ),
      ...(found(row) ? [make("p", {}, found(row))] : []),
      data.ran(row) ? figures(data, row, run) : failed,
    );
  }

  const set = (row) => (data.calibration_set ? ` (set ${word("calibration_set", row)})` : "");
  /** What a search came to, and which objective limits the design. */
  const found = (row) => {
    if (!data.search_status || !data.ran(row)) return "";
    const limit = data.goodput_limit && word("goodput_limit", row);
    return `The search: ${word("search_status", row)}${limit ? `; limited by ${limit}` : ""}.`;
  };
  const word = (name, row) => (data[name] ? data[name].levels[data[name].at[row]] : "unknown");
  page.onChoice.push(show);
  show();
}

/** A table of figures: the heads of its columns, and rows of a head and cells, which are elements or texts. */
function figureTable(heads, rows) {
  const number = (text) => make("th", { scope: "col", className: "number" }, text);
  const line = ([head, about, cells]) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", title: about }, head),
      ...cells.map((cell) => make("td", { className: "number" }, cell)),
    );
  const head = heads.length ? [make("thead", {}, make("tr", {}, make("th", {}, heads[0]), ...heads.slice(1).map(number)))] : [];
  return make(
    "div",
    { className: "scroll" },
    make("table", { className: "figures" }, ...head, make("tbody", {}, ...rows.map(line))),
  );
}

/** All measures of a row: those with percentiles in one table, stages in a second, with `below` under them; the others. */
function figures(data, row, below) {
  const isKnownHere = (measure) => measure.parts.some((part) => isKnown(part.values[row]));
  const known = data.measures.filter(isKnownHere);
  const ofStages = known.filter((measure) => measure.key.startsWith("stage_"));
  const many = known.filter((measure) => measure.parts[0].name && !ofStages.includes(measure));
  const single = known.filter((measure) => !measure.parts[0].name);
  const names = [...new Set(many.flatMap((measure) => measure.parts.map((part) => part.name)))];
  const cell = (measure, name) => {
    const series = data.byId.get(name ? `${measure.key} ${name}` : measure.key);
    return series ? figureCell(series, row) : "";
  };
  const label = ({ label: text, unit }) => (unit ? `${text} (${unit})` : text);
  const byStage = data.stages.map((name) => [name, "", ofStages.map((measure) => cell(measure, name))]);
  return make(
    "div",
    { className: "tables" },
    make(
      "div",
      {},
      figureTable(["latency", ...names], many.map((one) => [label(one), one.about, names.map((name) => cell(one, name))])),
      ...(ofStages.length ? [figureTable(["stage, means", ...ofStages.map(label)], byStage)] : []),
      ...below,
    ),
    figureTable([], single.map((one) => [label(one), one.about, [cell(one, "")]])),
  );
}

/** A small table below the answer: the best design of each level of a chosen axis. */
function bestOfEach(page) {
  const { data } = page;
  const axes = data.steps.filter((axis) => axis.levels.length > 1 && axis.levels.length <= 40);
  const root = document.getElementById("best-of");
  if (!axes.length || !data.ran(0)) return;
  const columns = firstColumns(data)
    .slice(0, 6)
    .map((id) => data.byId.get(id));

  function show(axis) {
    const others = data.axes.filter((each) => each.key !== axis.key);
    const best = bestOf(
      data,
      () => true,
      (row) => axis.at[row],
    );
    const lines = [...best].map(([at, row]) =>
      make(
        "tr",
        { className: row === page.chosen ? "chosen" : "", onclick: () => page.choose(row) },
        make(
          "td",
          { className: "number" },
          make("button", { type: "button", className: "rank" }, `#${data.ranks[row] + 1}`),
        ),
        make("td", {}, make("b", {}, levelText(axis, at))),
        make("td", { className: "words" }, inWords(data, row, others)),
        make("td", {}, verdictCell(data, row)),
        ...columns.map((series) => make("td", { className: "number" }, figureCell(series, row))),
      ),
    );
    const heads = ["rank", axis.label, "with", "state", ...columns.map((series) => series.title)];
    const numeric = (at) => (at === 0 || at > 3 ? "number" : "");
    root.replaceChildren(
      make("h3", {}, "The best design of each"),
      make(
        "div",
        { className: "controls" },
        choice(
          "of each",
          axes.map((each) => [each.key, each.label]),
          axis.key,
          (key) => show(data.stepOf.get(key)),
        ),
      ),
      make(
        "div",
        { className: "scroll" },
        make(
          "table",
          { className: "figures best" },
          make(
            "thead",
            {},
            make("tr", {}, ...heads.map((name, at) => make("th", { scope: "col", className: numeric(at) }, name))),
          ),
          make("tbody", {}, ...lines),
        ),
      ),
    );
  }
  show(axes.find((axis) => axis.key === "hardware") ?? axes[0]);
}
