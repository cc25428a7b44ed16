// A measure over two axes as a heat map: each cell is the best design that has its two values.

const MOST_TEXTS = 260; // cells up to which their values are written

function heatChart(page) {
  const { data } = page;
  const axes = data.steps.filter((axis) => axis.levels.length > 1);

  section(page, "heat", (part) => {
    if (!hasMeasures(data)) return part.say(NOTHING_RAN);
    if (axes.length < 2) return part.say("Fewer than two quantities were swept: there is no map to draw.");
    const bySize = [...axes].sort((a, b) => b.levels.length - a.levels.length);
    const x = bySize.find((axis) => LOADS.includes(axis.key)) ?? bySize.find((axis) => axis.numeric) ?? bySize[0];
    const y = axes.find((axis) => axis !== x && axis.key === "hardware") ?? bySize.find((axis) => axis !== x);
    const chosen = {
      x: x.key,
      y: y.key,
      z: firstOf(data.byId, ["goodput_rps_per_gpu", "goodput_rps", "tok_per_s_per_gpu"]),
      held: {},
    };
    axes.forEach((axis) => {
      chosen.held[axis.key] = "";
    });
    const keys = axes.map((axis) => axis.key);
    const remember = recalled("heat", chosen, { x: keys, y: keys, z: [...data.byId.keys()] });
    if (chosen.x === chosen.y) chosen.y = keys.find((key) => key !== chosen.x);

    function build() {
      const change = (key) => (value) => {
        const other = key === "x" ? "y" : "x";
        if (key !== "z" && chosen[other] === value) chosen[other] = chosen[key];
        chosen[key] = value;
        build();
        remember();
        redraw();
      };
      const names = axes.map((axis) => [axis.key, axis.label]);
      part.controls.replaceChildren(
        choice("measure", seriesOptions(data.series), chosen.z, change("z")),
        choice("across", names, chosen.x, change("x")),
        choice("up", names, chosen.y, change("y")),
        ...holders(
          axes.filter((axis) => ![chosen.x, chosen.y].includes(axis.key)),
          chosen.held,
          () => redraw(),
        ),
      );
    }
    const redraw = () => drawHeat(page, part.chart, chosen, axes);
    build();
    return redraw;
  });
}

function drawHeat(page, node, chosen, axes) {
  const { data } = page;
  const x = data.stepOf.get(chosen.x),
    y = data.stepOf.get(chosen.y),
    series = data.byId.get(chosen.z);
  const others = axes.filter((axis) => axis !== x && axis !== y);
  const best = bestOf(
    data,
    (row) => isHeld(others, chosen.held, row),
    (row) => `${y.at[row]} ${x.at[row]}`,
  );
  const cell = (b, a) => best.get(`${b} ${a}`);
  const grid = (value) => y.levels.map((_, b) => x.levels.map((__, a) => value(cell(b, a))));
  const values = grid((row) => (row === undefined ? null : series.values[row]));
  const calm = [...best.values()]
    .filter((row) => !data.saturated[row])
    .map((row) => series.values[row])
    .filter(isKnown);
  const known = calm.length ? calm : values.flat().filter(isKnown);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const log = low > 0 && high / low > 30;
  const scaled = (value) => (!isKnown(value) || (log && value <= 0) ? null : log ? Math.log10(value) : value);
  const size = isNarrow(node) ? 9.5 : 11;
  const texts = grid((row) => cellText(data, series, row, true));
  const few = best.size <= MOST_TEXTS && hasRoom(node, x, y, texts, size);
  const heat = {
    type: "heatmap",
    x: x.levels.map((_, at) => levelText(x, at)),
    y: y.levels.map((_, at) => levelText(y, at)).map(plain),
    z: values.map((line) => line.map(scaled)),
    zmin: scaled(low),
    zmax: scaled(high) === scaled(low) ? scaled(low) + 1e-9 : scaled(high),
    xgap: 2,
    ygap: 2,
    colorscale: CIVIDIS.map((colour, at) => [at / (CIVIDIS.length - 1), colour]),
    reversescale: series.better === "low",
    customdata: grid((row) => row ?? null),
    hovertext: grid((row) =>
      row === undefined
        ? "no design"
        : `#${data.ranks[row] + 1} ${plain(inWords(data, row))}<br>${plain(series.name)} ${plain(inFigures(series, row))}<br>${data.state(row)}`,
    ),
    hovertemplate: "%{hovertext}<extra></extra>",
    hoverongaps: false,
    colorbar: {
      thickness: 12,
      outlinewidth: 0,
      title: { text: plain(isNarrow(node) ? series.unit : series.title), side: "right" },
      ...(log ? logTicks(low, high) : {}),
    },
  };
  const share = (value) => (scaled(value) - heat.zmin) / (heat.zmax - heat.zmin);
  const cells = [...best.values()].filter((row) => isKnown(scaled(series.values[row])));
  const marks = {
    type: "scatter",
    mode: "text",
    x: cells.map((row) => levelText(x, x.at[row])),
    y: cells.map((row) => plain(levelText(y, y.at[row]))),
    text: cells.map((row) => cellText(data, series, row, few)),
    textfont: {
      size,
      color: cells.map((row) => {
        const place = share(series.values[row]);
        return readableOn(mixed(CIVIDIS, series.better === "low" ? 1 - place : place));
      }),
    },
    hoverinfo: "skip",
    showlegend: false,
  };
  const failed = [...best].filter(([, row]) => !data.ran(row));
  const crosses = {
    type: "scatter",
    mode: "markers",
    x: failed.map(([, row]) => levelText(x, x.at[row])),
    y: failed.map(([, row]) => plain(levelText(y, y.at[row]))),
    customdata: failed.map(([, row]) => row),
    marker: { symbol: "x-thin", size: 8, line: { width: 1.5, color: themed("cannot") } },
    showlegend: false,
    text: failed.map(([, row]) => plain(data.status.levels[data.status.at[row]]).replace(/(.{60,80}) /g, "$1<br>")),
    hovertemplate: "%{text}<extra></extra>",
  };
  node.style.height = `${Math.min(900, Math.max(isNarrow(node) ? 300 : 320, 150 + 34 * y.levels.length))}px`;
  const held = others.map(
    (axis) =>
      `${axis.label} ${chosen.held[axis.key] === "" ? "the best of all" : levelText(axis, chosen.held[axis.key])}`,
  );
  return draw(
    page,
    node,
    [heat, marks, crosses],
    {
      xaxis: { title: { text: plain(x.title) }, type: "category", showgrid: false, range: [-0.5, x.levels.length - 0.5] },
      yaxis: { title: { text: plain(y.title) }, type: "category", showgrid: false, range: [-0.5, y.levels.length - 0.5] },
    },
    `Each cell: the highest-ranked design with its two values${held.length ? `, ${held.join(", ")}` : ""}. ${series.better ? "Bright is better. " : ""}` +
      `${data.objectives.length ? "✓ meets the objectives, " : ""}~ saturated, × cannot run (point at it for the reason).`,
    heatFinding(data, x, y, series, [...best.values()]),
  );
}

/** The best and the worst cell, or the highest and the lowest where neither is better. */
function heatFinding(data, x, y, series, rows) {
  const known = rows.filter((row) => isKnown(series.values[row]) && !data.saturated[row]);
  const [first, last] = series.better === "low" ? ["lowest", "highest"] : ["highest", "lowest"];
  const sign = series.better === "low" ? -1 : 1;
  known.sort((a, b) => sign * (series.values[b] - series.values[a]));
  const told = (row) => `${inFigures(series, row)} at ${x.label} ${levelText(x, x.at[row])}, ${y.label} ${levelText(y, y.at[row])}`;
  const what = `${capital(series.name)} over ${x.label} and ${y.label}`;
  if (!known.length) return `${what}: no design that is not saturated has a value.`;
  return `${what}: ${first} ${told(known[0])}; ${last} ${told(known.at(-1))}.`;
}

const BESIDE = 150; // pixels of the colour bar and of the margins
const WIDTH = 0.6; // of a character, by the size of its font

/** Whether the cells of a map are as wide as their texts. */
function hasRoom(node, x, y, texts, size) {
  const longest = (list) => Math.max(...list.map((text) => text.length));
  const names = WIDTH * 12 * longest(y.levels.map((_, at) => levelText(y, at)));
  return longest(texts.flat()) * WIDTH * size <= (node.clientWidth - BESIDE - names) / x.levels.length;
}

/** What stands in a cell: its value where there is room, and a mark of its state. */
function cellText(data, series, row, few) {
  if (row === undefined || !isKnown(series.values[row])) return "";
  const mark = { "meets objectives": "✓", saturated: "~" }[data.state(row)] ?? "";
  return few ? `${figure(series.values[row])}${mark}` : mark;
}

/** Ticks of a colour bar of powers of ten. */
function logTicks(low, high) {
  const { tickvals, ticktext } = plainTicks(low, high);
  return { tickvals: tickvals.map(Math.log10), ticktext };
}
