// Designs by two measures, and the front of those that no other beats in both.

const MOST_LABELS = 7;
const MOST_POINTS = 1500; // as many are drawn within half a second; where there are more, neighbours are one point
const NEIGHBOURS = 3; // pixels

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
      zoom: null, // the part that is looked at: {x: [from, to], y: [from, to]}, as the axes have it
    };
    const remember = recalled("front", chosen, {
      x: [...xs.keys()],
      y: [...ys.keys()],
      colour: [...data.stepOf.keys()],
      among: data.objectives.length ? ["calm", "meets objectives"] : ["calm"],
    });
    const change = (key) => (value) => {
      chosen[key] = value;
      chosen.zoom = null;
      remember();
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
    const redraw = async () => {
      const few = await drawFront(page, part.chart, xs.get(chosen.x), ys.get(chosen.y), chosen, ran);
      part.chart.zoomed = few ? null : redraw;
      followZoom(part.chart, chosen);
    };
    return redraw;
  });
}

/** Draws a chart of neighbours anew when another part of it is looked at: there they come apart. */
function followZoom(node, chosen) {
  if (node.follows) return;
  node.follows = true;
  node.on("plotly_relayout", (change) => {
    const moved = Object.keys(change).filter((key) => /^[xy]axis\./.test(key));
    if (!moved.length || !node.zoomed) return;
    const { xaxis, yaxis } = node.layout;
    chosen.zoom = moved.some((key) => key.endsWith("autorange")) ? null : { x: [...xaxis.range], y: [...yaxis.range] };
    node.zoomed();
  });
}

/** The chart of all that `ran`; returns whether each design has a point of its own. */
async function drawFront(page, node, x, y, chosen, ran) {
  const { data } = page;
  const { among } = chosen;
  const colour = data.stepOf.get(chosen.colour);
  const rows = ran.filter((row) => isKnown(x.values[row]) && isKnown(y.values[row]));
  const eligible = (row) => !data.saturated[row] && (among === "calm" || data.state(row) === among);
  const best = frontOf(rows.filter(eligible), x, y);
  const shades = colour ? shadesOf(data, colour) : [themed("runs")];
  const calm = rows.filter((row) => !data.saturated[row]);
  const log = x.better === "low" && Math.min(...calm.map((row) => x.values[row])) > 0;
  const room = isNarrow(node) ? 0 : 0.28; // beside the front, for the words of its designs
  const range = (series, isLog) =>
    rangeOf(
      calm.length ? calm.map((row) => series.values[row]) : rows.map((row) => series.values[row]),
      series.bound,
      isLog,
    );
  const limits = chosen.zoom ?? { x: range(x, log), y: range(y, false) };
  if (!chosen.zoom && x.better === "low" && log) limits.x[0] -= room * (limits.x[1] - limits.x[0]);
  if (!chosen.zoom && x.better === "high") limits.x[1] += room * (limits.x[1] - limits.x[0]);
  const along = (row) => (log ? Math.log10(x.values[row]) : x.values[row]);
  const kind = (row) => 2 * (colour ? colour.at[row] : 0) + data.saturated[row];
  const seen = neighbours(rows, along, (row) => y.values[row], kind, limits, node);
  const words = (list) =>
    list.map(
      (row) =>
        `#${data.ranks[row] + 1} ${plain(inWords(data, row))}<br>${plain(x.name)} ${plain(inFigures(x, row))}<br>${plain(y.name)} ${plain(inFigures(y, row))}<br>${data.state(row)}${othersAt(seen, row)}`,
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
  const drawn = [...seen.keys()];
  for (const at of levels) {
    const own = colour ? drawn.filter((row) => colour.at[row] === at) : drawn;
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
  const goals = log && x.bound !== null ? Math.log10(x.bound) : x.bound;
  await draw(
    page,
    node,
    traces,
    {
      xaxis: {
        title: { text: plain(x.title) },
        ...(log ? { type: "log", ...plainTicks(...limits.x.map((power) => 10 ** power)) } : {}),
        range: limits.x,
      },
      yaxis: { title: { text: plain(y.title) }, range: limits.y },
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
        itemsizing: "constant",
        title: { text: colour ? plain(colour.label) : "" },
        uirevision: chosen.colour, // what a click on the legend hides stays hidden in another part of the chart
      },
    },
    `${rows.length.toLocaleString("en-US")} designs${seen.cell ? aboutNeighbours(node) : ""}; ${x.better === "low" ? "left" : "right"} and up is better. Hollow: saturated. Line: the front of ${best.length} designs that no other ` +
      `${among === "calm" ? "design that is not saturated" : "design that meets the objectives"} beats in both, with bars of two standard errors. A click chooses a design.`,
    frontFinding(data, best, x, y),
  );
  return !seen.cell;
}

/** The two ends of the front. */
function frontFinding(data, best, x, y) {
  const [from, to] = [best[0], best.at(-1)].map(
    (row) => best.length && `${inWords(data, row)} (${x.name} ${inFigures(x, row)}, ${y.name} ${inFigures(y, row)})`,
  );
  if (!best.length) return `${y.title} against ${x.title}: no design is on a front.`;
  return `${y.title} against ${x.title}: the front ${best.length > 1 ? `goes from ${from} to ${to}` : `is ${from} alone`}.`;
}

/** What the caption says of neighbours; on a phone a finger scrolls, and no part is enlarged. */
function aboutNeighbours(node) {
  const apart = isNarrow(node) ? "" : ": drag over a part to see them apart, double-click for all";
  return `, neighbours of one colour as one point, the best of them${apart}`;
}

/**
 * The rows that get a point, the best first, each with how many it stands for: all of a few; of many those within the
 * limits of the axes, and of the rows of one kind in a square of `cell` pixels the best.
 */
function neighbours(rows, along, up, kind, limits, node) {
  if (rows.length <= MOST_POINTS) return new Map(rows.map((row) => [row, 1]));
  const share = ([low, high], value) => (value - low) / (high - low);
  const inside = rows
    .map((row) => [row, share(limits.x, along(row)) * node.clientWidth, share(limits.y, up(row)) * node.clientHeight])
    .filter(([, right, high]) => right >= 0 && right <= node.clientWidth && high >= 0 && high <= node.clientHeight);
  for (let cell = NEIGHBOURS; ; cell *= 1.25) {
    const first = new Map();
    const found = new Map();
    for (const [row, right, high] of inside) {
      const square = `${kind(row)} ${Math.floor(right / cell)} ${Math.floor(high / cell)}`;
      if (!first.has(square)) first.set(square, row);
      found.set(first.get(square), (found.get(first.get(square)) ?? 0) + 1);
    }
    if (found.size <= MOST_POINTS) return Object.assign(found, { cell });
  }
}

/** How many designs a point stands for beside its own. */
function othersAt(seen, row) {
  const others = (seen.get(row) ?? 1) - 1;
  return others ? `<br>and ${others.toLocaleString("en-US")} more here` : "";
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
