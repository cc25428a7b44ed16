// The designs of the page: rows 0, 1, ... in the order of their ranks, axes (what is swept) and series (what was found).

const REACHED = ["meets objectives", "runs", "misses objectives", "saturated"]; // states of designs that ran

const MOST_LEVELS = 40; // of a number, up to which a chart shows each by itself
const STEPS = 10;
const LOADS = ["rate_rps", "users"]; // axes that are a load, not a part of a design

/** Adds to the data what every section asks for. */
function prepare(data) {
  data.count = data.ranks.length;
  data.rows = [...Array(data.count).keys()];
  data.state = (row) => data.states.levels[data.states.at[row]];
  data.ran = (row) => data.state(row) !== "cannot run";
  data.series = data.measures.flatMap((measure) => measure.parts.map((part) => seriesOf(data, measure, part)));
  data.series.push(...reciprocals(data));
  data.byId = new Map(data.series.map((series) => [series.id, series]));
  data.stages = data.measures.find((measure) => measure.key === "stage_service_s")?.parts.map((part) => part.name) ?? [];
  data.axisOf = new Map(data.axes.map((axis) => [axis.key, axis]));
  data.steps = data.axes.map(inSteps);
  data.stepOf = new Map(data.steps.map((axis) => [axis.key, axis]));
  return data;
}

const NOTHING_RAN = "No design ran, so that there are no measures to draw.";
const hasMeasures = (data) => data.byId.size > 0 && data.rows.some(data.ran);

function seriesOf(data, measure, part) {
  const goal = data.objectives.find((each) => each.key === measure.key && each.part === part.name);
  const name = part.name ? `${measure.short} ${part.name}` : measure.short;
  return {
    id: part.name ? `${measure.key} ${part.name}` : measure.key,
    key: measure.key,
    part: part.name,
    name,
    unit: measure.unit,
    title: measure.unit ? `${name} (${measure.unit})` : name,
    about: measure.about,
    better: measure.better,
    values: part.values,
    stderr: part.stderr,
    high: part.high,
    whole: part.values.every((value) => !isKnown(value) || Number.isInteger(value)),
    bound: goal ? goal.bound : null,
  };
}

/** Output per dollar and per joule: one over cost and energy per token, with the same relative error. */
function reciprocals(data) {
  const wanted = [
    ["usd_per_mtok", "output per dollar", "Mtok/USD"],
    ["joule_per_tok", "output per joule", "token/J"],
  ];
  return wanted.flatMap(([id, name, unit]) => {
    const from = data.series.find((series) => series.id === id);
    if (!from) return [];
    const values = from.values.map((value) => (value ? 1 / value : null));
    const stderr =
      from.stderr && from.stderr.map((error, row) => (isKnown(error) && values[row] ? error * values[row] ** 2 : null));
    return [
      {
        id: `1/${id}`,
        key: id,
        part: "",
        name,
        unit,
        title: `${name} (${unit})`,
        about: `1 / ${from.about}`,
        better: "high",
        values,
        stderr,
        high: null,
        bound: null,
        derived: true,
      },
    ];
  });
}

/** An axis as charts take it: a number with very many levels, as a sample of designs has, in steps of equal width. */
function inSteps(axis) {
  const known = axis.levels.filter(isKnown);
  if (!axis.numeric || known.length <= MOST_LEVELS) return axis;
  const low = Math.min(...known);
  const width = (Math.max(...known) - low) / STEPS;
  const step = (level) => (level === null ? STEPS : Math.min(STEPS - 1, Math.floor((level - low) / width)));
  const text = (value) => String(Number(value.toPrecision(3)));
  const levels = [...Array(STEPS).keys()].map((at) => `${text(low + at * width)} to ${text(low + (at + 1) * width)}`);
  if (known.length < axis.levels.length) levels.push("none");
  return { ...axis, levels, at: axis.at.map((at) => step(axis.levels[at])), numeric: false, inSteps: true };
}

/** A level of an axis as text. */
function levelText(axis, at) {
  const level = axis.levels[at];
  return level === null ? "–" : axis.numeric ? String(Number(level.toPrecision(6))) : level;
}

/** A design in words: numbers with their names, texts by themselves. */
function inWords(data, row, axes = data.axes) {
  const words = axes
    .filter((axis) => axis.levels[axis.at[row]] !== null)
    .map((axis) => {
      const value = levelText(axis, axis.at[row]);
      return axis.numeric || axis.inSteps ? `${axis.label} ${value}${axis.unit ? ` ${axis.unit}` : ""}` : value;
    });
  return words.join(", ") || "the one design";
}

/** A number of a series with its error or bracket and its unit. */
function inFigures(series, row) {
  const value = series.values[row];
  if (!isKnown(value)) return "–";
  const error = series.stderr && isKnown(series.stderr[row]) ? ` ± ${errorFigure(series.stderr[row], value)}` : "";
  const bracket = series.high && isKnown(series.high[row]) ? ` (missed at ${figure(series.high[row])})` : "";
  return `${figure(value, series.whole)}${error}${series.unit ? ` ${series.unit}` : ""}${bracket}`;
}

/** The best row of every group: `fits` says which rows count, `group` gives a row's group. Rows are in the order of ranks. */
function bestOf(data, fits, group) {
  const found = new Map();
  for (const row of data.rows) {
    if (!fits(row)) continue;
    const name = group(row);
    if (!found.has(name)) found.set(name, row);
  }
  return found;
}

/** What sets a level of an axis: `key.path=value`, or several of them. */
function settingsOf(axis, at) {
  if (axis.sets) return axis.sets[at];
  return axis.path && axis.levels[at] !== null ? [`${axis.path}=${axis.levels[at]}`] : [];
}

/** The words of a command that runs one design by itself. */
function commandOf(data, row) {
  const quoted = (text) => (/^[\w.,:=\/@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const goodput = data.byId.get("goodput_rps")?.values[row];
  const rate = data.search?.rate_rps ?? goodput;
  const searched = data.search && isKnown(rate) ? [`--set workload.arrivals.rate_rps=${rate}`] : [];
  const sets = data.axes.flatMap((axis) => settingsOf(axis, axis.at[row])).map((setting) => `--set ${quoted(setting)}`);
  return ["evaluator simulate SCENARIO.yaml", "--set sweep=null", ...sets, ...searched, "--requests requests.csv"].join(
    " \\\n  ",
  );
}
