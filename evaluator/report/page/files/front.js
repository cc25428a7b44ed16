// Designs by two measures, and the front of those that no other beats in both.

const MOST_LABELS = 7;

function frontChart(page) {
  const { data } = page;
  const ran = data.rows.filter(data.ran);
  const xs = new Map(
    data.series
      .filter((series) => (series.better === "low" && /_s$/.test(series.key)) || series.key === "tok_per_s_per_user")
      .map((series) => [series.id, series]),
  );
  const ys = new Map(
    data.series
      .filter(
        (series) =>
          series.better === "high" &&
          !["tok_per_s_per_user", "slo_attainment", "mfu", "mbu", "kv_capacity_tokens"].includes(series.key),
      )
      .map((series) => [series.id, series]),
  );

  section(page, "front", (part) => {
    if (ran.length < 2 || !xs.size || !ys.size) return part.say("There are no two designs to compare.");
    const goal = data.objectives.find((each) => each.key === "ttft_s") ?? data.objectives[0];
    const chosen = {
      x: firstOf(xs, [goal ? `${goal.key} ${goal.part}` : "ttft_s p90", "ttft_s p90"]),
      y: firstOf(ys, ["goodput_rps_per_gpu", "tok_per_s_per_gpu"]),
      colour: data.steps.length ? firstOf(data.stepOf, ["hardware", "model", "policy"]) : "",
      among: data.objectives.length && data.state(0) === "meets objectives" ? "meets objectives" : "calm",
    };
    const change = (key) => (value) => {
      chosen[key] = value;
      redraw();
    };
    part.controls.replaceChildren(
      choice("across", seriesOptions([...xs.values()]), chosen.x, change("x")),
      choice("up", seriesOptions([...ys.values()]), chosen.y, change("y")),
      choice(
        "colour",
        data.steps.map((axis) => [axis.key, axis.label]),
        chosen.colour,
        change("colour"),
      ),
      choice(
        "front of designs that",
        [
          ["calm", "are not saturated"],
          ...(data.objectives.length ? [["meets objectives", "meet the objectives"]] : []),
        ],
        chosen.among,
        change("among"),
      ),
    );
    const redraw = () =>
      drawFront(
        page,
        part.chart,
        xs.get(chosen.x),
        ys.get(chosen.y),
        data.stepOf.get(chosen.colour),
        chosen.among,
        ran,
      );
    return redraw;
  });
}

function drawFront(page, node, x, y, colour, among, ran) {
  const { data } = page;
  const rows = ran.filter((row) => isKnown(x.values[row]) && isKnown(y.values[row]));
  const eligible = (row) => !data.saturated[row] && (among === "calm" || data.state(row) === among);
  const best = frontOf(rows.filter(eligible), x, y);
  const shades = colour ? shadesOf(data, colour) : [themed("runs")];
  const calm = rows.filter((row) => !data.saturated[row]);
  const log = x.better === "low" && Math.min(...calm.map((row) => x.values[row])) > 0;
  const words = (list) =>
    list.map(
      (row) =>
        `#${data.ranks[row] + 1} ${plain(inWords(data, row))}<br>${plain(x.name)} ${plain(inFigures(x, row))}<br>${plain(y.name)} ${plain(inFigures(y, row))}<br>${data.state(row)}`,
    );
  const points = (list, marker, extra) => ({
    type: "scatter",
    mode: "markers",
    x: list.map((row) => x.values[row]),
    y: list.map((row) => y.values[row]),
    customdata: list,
    text: words(list),
    hovertemplate: "%{text}<extra></extra>",
    marker,
    ...extra,
  });
  const size = rows.length > 2000 ? 4 : rows.length > 400 ? 5.5 : 8;
  const traces = [];
  const levels = colour ? levelsByUse(colour, rows) : [0];
  for (const at of levels) {
    const own = colour ? rows.filter((row) => colour.at[row] === at) : rows;
    const name = colour ? plain(levelText(colour, at)) : "designs";
    traces.push(
      points(
        own.filter((row) => !data.saturated[row]),
        { color: shades[at], size, opacity: 0.8 },
        { name, legendgroup: name },
      ),
    );
    traces.push(
      points(
        own.filter((row) => data.saturated[row]),
        { color: shades[at], size, symbol: "circle-open", opacity: 0.45 },
        { name, legendgroup: name, showlegend: false },
      ),
    );
  }
  traces.push(frontLine(best, x, y, words));
  traces.push(
    points(
      [page.chosen].filter((row) => rows.includes(row)),
      { color: "rgba(0,0,0,0)", size: size + 9, line: { color: themed("text"), width: 2 } },
      { name: "chosen design" },
    ),
  );
  const room = isNarrow(node) ? 0 : 0.28; // beside the front, for the words of its designs
  const range = (series, isLog) =>
    rangeOf(
      calm.length ? calm.map((row) => series.values[row]) : rows.map((row) => series.values[row]),
      series.bound,
      isLog,
    );
  const across = range(x, log);
  if (x.better === "low" && log) across[0] -= room * (across[1] - across[0]);
  if (x.better === "high") across[1] += room * (across[1] - across[0]);
  const goals = log && x.bound !== null ? Math.log10(x.bound) : x.bound;
  return draw(
    page,
    node,
    traces,
    {
      xaxis: {
        title: { text: plain(x.title) },
        ...(log ? { type: "log", ...plainTicks(...across.map((power) => 10 ** power)) } : {}),
        range: across,
      },
      yaxis: { title: { text: plain(y.title) }, range: range(y, false) },
      shapes: x.bound === null ? [] : [objectiveLine(x, "x")],
      annotations: [
        ...(x.bound === null ? [] : [objectiveLabel(x, "x", goals)]),
        ...frontLabels(page, node, best, x, y, log),
      ],
      legend: {
        orientation: "h",
        x: 0,
        y: 1.02,
        yanchor: "bottom",
        title: { text: colour ? plain(colour.label) : "" },
      },
    },
    `${rows.length.toLocaleString("en-US")} designs; ${x.better === "low" ? "left" : "right"} and up is better. Hollow: saturated. Line: the front of ${best.length} designs that no other ` +
      `${among === "calm" ? "design that is not saturated" : "design that meets the objectives"} beats in both, with bars of two standard errors. A click chooses a design.`,
  );
}

/** Levels that occur in rows, those of the best designs first where there are more than colours. */
const levelsByUse = (axis, rows) =>
  axis.levels.length > MOST_COLOURS
    ? [...new Set(rows.map((row) => axis.at[row]))]
    : [...axis.levels.keys()].filter((at) => rows.some((row) => axis.at[row] === at));

/** Rows that no other beats in both measures, from the best in x on. */
function frontOf(rows, x, y) {
  const sign = (series) => (series.better === "low" ? 1 : -1);
  const order = [...rows].sort(
    (a, b) => sign(x) * (x.values[a] - x.values[b]) || sign(y) * (y.values[a] - y.values[b]),
  );
  let best = Infinity;
  return order.filter((row) => {
    const value = sign(y) * y.values[row];
    if (value >= best) return false;
    best = value;
    return true;
  });
}

function frontLine(best, x, y, words) {
  const bars = (series) => ({
    type: "data",
    array: best.map((row) => 2 * (series.stderr?.[row] ?? 0)),
    thickness: 1,
    width: 0,
    color: themed("cannot"),
  });
  return {
    type: "scatter",
    mode: "lines+markers",
    name: "front",
    x: best.map((row) => x.values[row]),
    y: best.map((row) => y.values[row]),
    customdata: best,
    text: words(best),
    hovertemplate: "%{text}<extra></extra>",
    line: { color: themed("text"), width: 1.5, shape: x.better === "low" ? "hv" : "vh" },
    marker: { color: themed("ground"), size: 6, line: { color: themed("text"), width: 1.5 } },
    error_x: bars(x),
    error_y: bars(y),
  };
}

/** Some designs of the front by their words, apart from one another. */
function frontLabels(page, node, best, x, y, log) {
  if (isNarrow(node) || !best.length) return [];
  const names = page.data.axes.filter((axis) => axis.levels.length > 1 && !LOADS.includes(axis.key)).slice(0, 3);
  const words = (row) => plain(inWords(page.data, row, names));
  const top = Math.max(...best.map((row) => y.values[row]));
  let last = Infinity,
    said = "";
  const chosen = [...best]
    .sort((a, b) => y.values[b] - y.values[a])
    .filter((row) => {
      if (Math.abs(last - y.values[row]) < top / MOST_LABELS || words(row) === said) return false;
      [last, said] = [y.values[row], words(row)];
      return true;
    });
  return chosen.map((row) => {
    const at = log ? Math.log10(x.values[row]) : x.values[row];
    const left = x.better === "low";
    return {
      x: at,
      y: y.values[row],
      text: words(row),
      showarrow: true,
      arrowhead: 0,
      arrowwidth: 0.7,
      arrowcolor: themed("soft"),
      ax: left ? -14 : 14,
      ay: -16,
      xanchor: left ? "right" : "left",
      font: { size: 10.5 },
      bgcolor: `${themed("ground")}cc`,
    };
  });
}

/** Limits of an axis around values and a bound; of a logarithmic one as powers of ten. */
function rangeOf(values, bound, log) {
  let low = Infinity,
    high = -Infinity;
  for (const value of [...values, ...(bound === null ? [] : [bound])]) {
    if (!isKnown(value) || (log && value <= 0)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low === Infinity) return log ? [-1, 1] : [0, 1];
  if (log) return [Math.log10(low / 1.25), Math.log10(high * 1.3)];
  return [Math.min(0, 1.08 * low), high > 0 ? 1.12 * high : 1];
}
