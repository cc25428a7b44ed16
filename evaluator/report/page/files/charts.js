// What all charts share: colours of the theme, a layout, and drawing once they are near the window.

const VIRIDIS = [
  "#440154",
  "#482878",
  "#3e4a89",
  "#31688e",
  "#26828e",
  "#1f9e89",
  "#35b779",
  "#6ece58",
  "#b5de2b",
  "#fde725",
];
const CIVIDIS = [
  "#00224e",
  "#123570",
  "#3b496c",
  "#575d6d",
  "#707173",
  "#8a8678",
  "#a59c74",
  "#c3b369",
  "#e1cc55",
  "#fee838",
];
const MOST_COLOURS = 8;

const isDark = () => document.documentElement.dataset.theme === "dark";
const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const isNarrow = (node) => node.clientWidth < 560;

/** The colour at a share of a scale. */
function mixed(scale, share) {
  const place = Math.min(Math.max(share, 0), 1) * (scale.length - 1);
  const [low, high] = [scale[Math.floor(place)], scale[Math.ceil(place)]];
  const part = (colour, i) => parseInt(colour.slice(1 + 2 * i, 3 + 2 * i), 16);
  const blend = [0, 1, 2].map((i) => Math.round(part(low, i) + (place % 1) * (part(high, i) - part(low, i))));
  return `rgb(${blend.join(",")})`;
}

/** Black or white, whichever stands out more from a colour `rgb(...)`: by WCAG 2.2 at least 4.5 to 1 on any. */
function readableOn(colour) {
  const parts = colour.match(/[\d.]+/g).map((part) => part / 255);
  const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

/** A colour for every level: distinct for names, shades that follow the order for numbers. */
function shadesOf(data, axis) {
  const count = axis.levels.length;
  if ((axis.numeric || axis.inSteps) && count > 2) {
    const [from, to] = isDark() ? [0.25, 1] : [0, 0.88];
    return axis.levels.map((_, at) => mixed(VIRIDIS, from + ((to - from) * at) / (count - 1)));
  }
  const palette = data.palette[isDark() ? "dark" : "light"];
  const order = [...new Set(axis.at)]; // rows are ranked: the levels of the best designs get the colours
  return axis.levels.map((_, at) => {
    const place = count <= MOST_COLOURS ? at : order.indexOf(at);
    return place >= 0 && place < MOST_COLOURS ? palette[place] : themed("cannot");
  });
}

/** A layout in the colours of the theme; `own` has x and y and whatever else differs. */
function layoutOf(node, { xaxis, yaxis, ...own }) {
  const text = themed("text"),
    line = themed("pale");
  const axis = {
    gridcolor: line,
    zeroline: false,
    linecolor: themed("line"),
    tickcolor: themed("line"),
    automargin: true,
  };
  return {
    font: {
      family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif",
      size: isNarrow(node) ? 11 : 12.5,
      color: text,
    },
    width: node.clientWidth, // said, or a chart that is drawn again keeps its width on a sheet of paper
    dragmode: isNarrow(node) ? false : "zoom",
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 56, r: 16, t: 12, b: 48 },
    hoverlabel: { bgcolor: themed("raised"), bordercolor: themed("line"), font: { color: text }, align: "left" },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", title: { font: { size: 12 } } },
    xaxis: { ...axis, ...xaxis, title: { font: { size: 13 }, ...xaxis.title } },
    yaxis: { ...axis, ...yaxis, title: { font: { size: 13 }, ...yaxis.title } },
    ...own,
  };
}

const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false };

/** Ticks at 1, 2 and 5 of every decade, as plain numbers, for a logarithmic axis between two values. */
function plainTicks(low, high) {
  const values = [];
  const few = high / low > 3000 ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    for (const first of few) values.push(first * 10 ** power);
  return { tickmode: "array", tickvals: values, ticktext: values.map((value) => String(Number(value.toPrecision(1)))) };
}

/**
 * Draws a chart whose points carry rows of designs in `customdata`; a click chooses the design. `caption` says how to
 * read it, `finding` what there is to see: the text for those who do not see it.
 */
async function draw(page, node, traces, layout, caption, finding) {
  const Plotly = await page.plotly();
  await Plotly.react(node, traces, layoutOf(node, layout), CONFIG);
  if (!node.listens) {
    node.listens = true;
    node.on("plotly_click", (event) => {
      const row = event.points[0].customdata;
      if (Number.isInteger(row)) page.choose(row);
    });
  }
  node.closest("figure").querySelector("figcaption").textContent = caption;
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", finding);
  node.dataset.drawn = String(Number(node.dataset.drawn ?? 0) + 1);
}

/** Sections that draw themselves when they come near the window, and again when the theme or the choice changes. */
function section(page, id, build) {
  const root = document.getElementById(id);
  const part = { root, controls: root.querySelector(".controls"), chart: root.querySelector(".chart"), seen: false };
  part.say = (words) => {
    root.querySelector("figcaption").textContent = words;
    part.chart.hidden = true;
    part.controls.hidden = true;
  };
  part.leave = () => {
    root.remove();
    document.querySelector(`nav a[href="#${id}"]`).remove();
  };
  part.redraw = build(part) ?? (() => {});
  new IntersectionObserver(
    (entries, observer) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      part.seen = true;
      part.redraw();
    },
    { rootMargin: "300px" },
  ).observe(root);
  page.parts.push(part);
}

/** A dashed line at an objective with its value; `axis` is x or y. */
function objectiveLine(series, axis, value = series.bound) {
  const along =
    axis === "y"
      ? { xref: "paper", x0: 0, x1: 1, y0: value, y1: value }
      : { yref: "paper", y0: 0, y1: 1, x0: value, x1: value };
  return { type: "line", ...along, line: { color: themed("text"), width: 1.2, dash: "dash" } };
}

function objectiveLabel(series, axis, at) {
  const where =
    axis === "y"
      ? { xref: "paper", x: 0, xanchor: "left", y: at, yanchor: "bottom" }
      : { yref: "paper", y: 1, yanchor: "top", x: at, xanchor: "left" };
  return {
    ...where,
    text: `objective ${series.bound} ${plain(series.unit)}`,
    showarrow: false,
    font: { size: 11, color: themed("text") },
  };
}
