// A measure over the load, or another scale that was swept: one curve for each level of an axis, or each percentile.

const PERCENTILES = "(percentiles)";
const LONGEST_LABEL = 16; // characters of a name beside its curve; longer ones stand in a legend
const WIDE = 30; // the highest value by the lowest
const CUT = 5; // times the objective: how much longer a latency is, is of no interest; a mark at the edge says that it is

function curvesChart(page) {
  const { data } = page;
  const scales = data.axes.filter((axis) => axis.numeric && axis.levels.length > 2);

  section(page, "curves", (part) => {
    if (!hasMeasures(data)) return part.say(NOTHING_RAN);
    if (!scales.length)
      return part.say(
        "No number with three or more values was swept, such as workload.arrivals.rate_rps: there is nothing to draw curves over.",
      );
    const preferred = LOADS.find((key) => scales.some((axis) => axis.key === key));
    const longest = [...scales].sort((a, b) => b.levels.length - a.levels.length)[0];
    const goal = data.objectives[0];
    const chosen = {
      x: preferred ?? longest.key,
      y: firstOf(data.byId, ["goodput_rps", goal ? `${goal.key} ${goal.part}` : "ttft_s p90", "ttft_s p90"]),
      colour: null,
      held: {},
    };
    const followBest = () =>
      data.steps.forEach((axis) => {
        chosen.held[axis.key] = axis.inSteps ? "" : axis.at[page.chosen];
      });
    followBest();
    const remember = recalled("curves", chosen, {
      x: scales.map((axis) => axis.key),
      y: [...data.byId.keys()],
      colour: [...data.stepOf.keys(), PERCENTILES],
    });

    function build() {
      const others = data.steps.filter((axis) => axis.key !== chosen.x && axis.levels.length > 1);
      if (chosen.colour !== PERCENTILES && !others.some((axis) => axis.key === chosen.colour))
        chosen.colour = (others.find((axis) => axis.key === "hardware") ?? others[0])?.key ?? PERCENTILES;
      const change = (key) => (value) => {
        chosen[key] = value;
        build();
        remember();
        redraw();
      };
      part.controls.replaceChildren(
        choice("measure", seriesOptions(data.series.filter((series) => !series.derived)), chosen.y, change("y")),
        choice(
          "over",
          scales.map((axis) => [axis.key, axis.title]),
          chosen.x,
          change("x"),
        ),
        choice(
          "a curve for each",
          [...others.map((axis) => [axis.key, axis.label]), [PERCENTILES, "percentile of one design"]],
          chosen.colour,
          change("colour"),
        ),
        ...holders(
          others.filter((axis) => axis.key !== chosen.colour),
          chosen.held,
          () => redraw(),
        ),
      );
    }
    const redraw = () => drawCurves(page, part.chart, chosen);
    build();
    page.onChoice.push(() => {
      followBest();
      build();
    });
    return redraw;
  });
}

function drawCurves(page, node, chosen) {
  const { data } = page;
  const x = data.axisOf.get(chosen.x),
    series = data.byId.get(chosen.y);
  const curves =
    chosen.colour === PERCENTILES
      ? percentileCurves(data, x, series, chosen.held)
      : levelCurves(data, x, series, data.stepOf.get(chosen.colour), chosen.held);
  const calm = curves
    .flatMap((curve) => curve.rows.filter((row) => !data.saturated[row]).map((row) => curve.series.values[row]))
    .filter(isKnown);
  const all = curves.flatMap((curve) => curve.rows.map((row) => curve.series.values[row])).filter(isKnown);
  const log = /_s$/.test(series.key) && Math.min(...(calm.length ? calm : all)) > 0;
  const range = rangeOf(calm.length ? calm : all, series.bound, log);
  const inside = calm.filter((value) => value <= CUT * series.bound);
  if (log && series.bound !== null && 2 * inside.length >= calm.length)
    range[1] = Math.min(range[1], Math.max(Math.log10(CUT * series.bound), range[0] + 0.5));
  if (series.unit === "%") range[1] = 104;
  const label = chosen.colour === PERCENTILES ? series.title.replace(` ${series.part}`, "") : series.title;
  const limits = log ? range.map((power) => 10 ** power) : range;
  const scale = scaleOf(x, isNarrow(node) ? 0.02 : 0.09);
  const wide = curves.some((curve) => curve.name.length > LONGEST_LABEL);
  const labels = isNarrow(node) || wide ? [] : endLabels(data, node, curves, scale, range, log);
  const goal = series.bound === null ? null : log ? Math.log10(series.bound) : series.bound;
  const top = limits[1];
  const beyond = all.filter((value) => value > top).length;
  node.closest("section").querySelector("h2").textContent = LOADS.includes(x.key) ? "Over the load" : `Over ${x.label}`;
  return draw(
    page,
    node,
    curves.flatMap((curve) => curveTraces(data, x, curve, top)),
    {
      xaxis: { title: { text: plain(x.title) }, ...scale.axis },
      yaxis: { title: { text: plain(label) }, ...(log ? { type: "log", ...plainTicks(...limits) } : {}), range },
      shapes: goal === null ? [] : [objectiveLine(series, "y")],
      annotations: [...(goal === null ? [] : [objectiveLabel(series, "y", goal)]), ...labels],
      showlegend: !labels.length,
      legend: {
        orientation: "h",
        x: 0,
        y: 1.02,
        yanchor: "bottom",
        title: { text: chosen.colour === PERCENTILES ? "" : plain(data.axisOf.get(chosen.colour).label) },
      },
    },
    curvesCaption(data, x, series, chosen, curves, beyond && `${beyond} of ${all.length}`, top),
    curvesFinding(data, x, series, curves),
  );
}

/**
 * How the values of a number lie across: `at` of a row, and Plotly's `axis` with room on the right for names. Values that
 * are WIDE times apart stand by their logarithms, as in the pictures.
 */
function scaleOf(x, room) {
  const known = x.levels.filter(isKnown);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  if (low > 0 && known.length > 2 && high / low >= WIDE) {
    const [from, to] = [Math.log10(low), Math.log10(high)];
    const range = [from - 0.02 * (to - from), to + room * (to - from)];
    return {
      at: (row) => Math.log10(x.levels[x.at[row]]),
      axis: { type: "log", range, ...plainTicks(low, high) },
    };
  }
  const range = [Math.min(0, 1.08 * low), high > 0 ? high * (1 + room) : 1];
  return { at: (row) => x.levels[x.at[row]], axis: { type: "linear", range } };
}

/** The name of each curve right of its last point that is seen, apart from one another. */
function endLabels(data, node, curves, { at, axis }, range, log) {
  const width = node.clientWidth - 90,
    height = node.clientHeight - 90;
  const placed = [];
  for (const curve of curves) {
    const seen = curve.rows.filter((row) => {
      const value = log ? Math.log10(curve.series.values[row]) : curve.series.values[row];
      return !data.saturated[row] && value <= range[1];
    });
    if (!seen.length) continue;
    const row = seen.at(-1),
      value = log ? Math.log10(curve.series.values[row]) : curve.series.values[row];
    const label = { curve, x: at(row), y: value };
    label.right = ((label.x - axis.range[0]) / (axis.range[1] - axis.range[0])) * width;
    label.up = ((value - range[0]) / (range[1] - range[0])) * height;
    while (placed.some((other) => Math.abs(other.right - label.right) < 75 && Math.abs(other.up - label.up) < 14))
      label.up += 5;
    label.shift = label.up - ((value - range[0]) / (range[1] - range[0])) * height;
    placed.push(label);
  }
  return placed.map((label) => ({
    x: label.x,
    y: label.y,
    xanchor: "left",
    xshift: 7,
    yshift: label.shift,
    text: `<span style="color:${label.curve.colour}">●</span> <b>${label.curve.name}</b>`,
    showarrow: false,
    font: { size: 11.5 },
    bgcolor: `${themed("ground")}b0`,
  }));
}

function curvesCaption(data, x, series, chosen, curves, beyond, top) {
  const held = data.steps
    .filter((axis) => axis.key !== x.key && axis.key !== chosen.colour && axis.levels.length > 1)
    .map(
      (axis) =>
        `${axis.label} ${chosen.held[axis.key] === "" ? "the best of all" : levelText(axis, chosen.held[axis.key])}`,
    );
  const known = curves.some((curve) => curve.series.stderr);
  return (
    `${held.length ? `With ${held.join(", ")}. ` : ""}${known ? "Bars: two Monte-Carlo standard errors. " : "No standard errors are known. "}Hollow and faint: saturated, where waits tell how long the run was. ` +
    `${beyond ? `△: ${beyond} designs lie beyond the chart, above ${figure(top)}${series.unit && ` ${series.unit}`}. ` : ""}` +
    `${curves.length ? "" : "No design of the page has these values. "}${capital(series.name)}: ${series.about}.`
  );
}

/** Where each curve begins and ends while it is not saturated, and from where on it misses the objective. */
function curvesFinding(data, x, series, curves) {
  const told = curves.map((curve) => {
    const rows = curve.rows.filter((row) => !data.saturated[row] && isKnown(curve.series.values[row]));
    if (!rows.length) return `${curve.words} is saturated throughout`;
    const { values, bound } = curve.series;
    const missed = rows.find((row) => bound !== null && values[row] > bound);
    const misses = missed === undefined ? "" : `, over the objective from ${levelText(x, x.at[missed])} on`;
    const [from, to] = [rows[0], rows.at(-1)].map((row) => `${figure(values[row])} at ${levelText(x, x.at[row])}`);
    return `${curve.words} from ${from} to ${to}${misses}`;
  });
  return `${series.title} over ${x.title}: ${told.join("; ") || "no design has these values"}.`;
}

/** One curve for each level of an axis, the best designs' levels where there are more than colours. */
function levelCurves(data, x, series, colour, held) {
  const others = data.steps.filter((axis) => axis.key !== x.key && axis !== colour);
  const best = bestOf(
    data,
    (row) => data.ran(row) && isKnown(series.values[row]) && isHeld(others, held, row),
    (row) => `${colour.at[row]} ${x.at[row]}`,
  );
  const shades = shadesOf(data, colour);
  const groups = new Map();
  for (const row of best.values()) groups.set(colour.at[row], [...(groups.get(colour.at[row]) ?? []), row]);
  return [...groups]
    .slice(0, MOST_COLOURS)
    .sort((a, b) => a[0] - b[0])
    .map(([at, rows]) => ({
      name: plain(levelText(colour, at)),
      words: levelText(colour, at),
      colour: shades[at],
      series,
      rows: rows.sort((a, b) => x.at[a] - x.at[b]),
    }));
}

/** One curve for each percentile that is known of a measure, and its mean. */
function percentileCurves(data, x, series, held) {
  const others = data.steps.filter((axis) => axis.key !== x.key);
  const best = bestOf(
    data,
    (row) => data.ran(row) && isHeld(others, held, row),
    (row) => x.at[row],
  );
  const rows = [...best.values()].sort((a, b) => x.at[a] - x.at[b]);
  const all = data.series.filter((each) => each.key === series.key && !each.derived);
  const [from, to] = isDark() ? [0.3, 1] : [0, 0.85];
  return all
    .map((each, place) => ({
      name: plain(each.part || each.name),
      words: each.part || each.name,
      colour:
        each.part === "mean"
          ? themed("soft")
          : mixed(VIRIDIS, from + ((to - from) * place) / Math.max(1, all.length - 1)),
      dash: each.part === "mean" ? "dot" : "solid",
      series: each,
      rows: rows.filter((row) => isKnown(each.values[row])),
    }))
    .filter((curve) => curve.rows.length);
}

/**
 * A curve as traces: full where designs are not saturated, faint and hollow where they are, with bars of two errors; and a
 * mark at the edge for each design above `top`.
 */
function curveTraces(data, x, { name, colour, dash = "solid", series, rows }, top) {
  const at = (row) => x.levels[x.at[row]];
  const mode = x.levels.length > MOST_LEVELS ? "markers" : "lines+markers"; // a sample is no curve
  const text = rows.map(
    (row) =>
      `<b>${name}</b> #${data.ranks[row] + 1} ${plain(inWords(data, row))}<br>${plain(series.name)} ${plain(inFigures(series, row))}, ${data.state(row)}`,
  );
  const common = {
    type: "scatter",
    x: rows.map(at),
    customdata: rows,
    text,
    hovertemplate: "%{text}<extra></extra>",
    legendgroup: name,
    name,
  };
  const values = rows.map((row) => series.values[row]),
    over = rows.map((row) => data.saturated[row]);
  const bars = { type: "data", array: rows.map((row) => (over[row] ? null : 2 * (series.stderr?.[row] ?? 0))) };
  return [
    {
      ...common,
      y: values,
      mode,
      showlegend: false,
      opacity: 0.4,
      line: { color: colour, width: 1, dash },
      marker: { symbol: "circle-open", size: 5 },
    },
    {
      ...common,
      y: values.map((value, place) => (over[place] ? null : value)),
      mode,
      line: { color: colour, width: 2, dash },
      marker: { size: 5, color: colour },
      error_y: { ...bars, visible: Boolean(series.stderr), thickness: 1, width: 2, color: colour },
    },
    {
      ...common,
      y: values.map((value) => (value > top ? top : null)),
      mode: "markers",
      showlegend: false,
      cliponaxis: false,
      marker: { symbol: over.map((is) => (is ? "triangle-up-open" : "triangle-up")), size: 9, color: colour },
    },
  ];
}
