// Where the time of a request goes: waiting, prefill, decode, or the stages of its pipeline, from means, which add up.

/**
 * The parts of a request's time in their order: {name, seconds (of a row), colour (its place), waits, first}. `first` is
 * before the first token. A stage that some requests pass by counts by the share of those that come.
 */
function partsOfTime(data) {
  const of = (key) => (row) => data.byId.get(key)?.values[row] ?? 0;
  const [wait, first, whole] = ["queue_wait_s mean", "ttft_s mean", "e2e_s mean"].map(of);
  const names = data.stages.filter((name) => !data.stages.some((other) => other.startsWith(`${name}.`))); // steps, not both
  if (!names.length)
    return [
      { name: "waiting in the queue", seconds: wait, colour: 1, first: true },
      { name: "first token after that (prefill)", seconds: (row) => first(row) - wait(row), colour: 0, first: true },
      { name: "other tokens (decode)", seconds: (row) => whole(row) - first(row), colour: 2 },
    ];
  const decode = names.indexOf("decode");
  const stages = names.flatMap((name, place) => {
    const share = data.byId.get(`stage_share ${name}`)?.values ?? [];
    const part = (key, label, waits) => ({
      name: label,
      seconds: (row) => (of(`${key} ${name}`)(row) * (share[row] ?? 100)) / 100,
      colour: place,
      waits,
      first: place < decode,
    });
    return [part("stage_wait_s", `waiting for ${name}`, true), part("stage_service_s", name, false)];
  });
  const server = (row) => Math.max(0, whole(row) - totalOf(stages, row));
  return [{ name: "the server's front", seconds: server, colour: names.length, first: true }, ...stages];
}

const totalOf = (parts, row) => parts.reduce((sum, part) => sum + part.seconds(row), 0);

function timeChart(page) {
  const { data } = page;
  const mean = (key) => data.byId.get(`${key} mean`);
  section(page, "time", (part) => {
    anatomy(page);
    if (!mean("e2e_s") || !mean("ttft_s") || !mean("queue_wait_s"))
      return part.say("The result holds no means of latencies to take apart.");
    const scales = data.steps.filter((axis) => axis.levels.length > 1);
    const chosen = { over: (scales.find((axis) => LOADS.includes(axis.key)) ?? scales[0])?.key ?? "", scale: "whole" };
    const change = (key) => (value) => {
      chosen[key] = value;
      remember();
      redraw();
    };
    const parts = partsOfTime(data);
    const early = parts.filter((each) => each.first);
    const first = mean("ttft_s").values;
    const told = (row) => Math.abs(totalOf(early, row) - first[row]) < 0.01 * first[row];
    const split = data.rows.filter(data.ran).every(told); // else a stage behind decode holds the first token, or calls come back
    const remember = recalled("time", chosen, {
      over: scales.map((axis) => axis.key),
      scale: split ? ["whole", "first", "share"] : ["whole", "share"],
    });
    part.controls.replaceChildren(
      ...(scales.length
        ? [
            choice(
              "the chosen design over",
              scales.map((axis) => [axis.key, axis.label]),
              chosen.over,
              change("over"),
            ),
          ]
        : []),
      choice(
        "as",
        [
          ["whole", "seconds to the last token"],
          ...(split ? [["first", "seconds to the first token"]] : []),
          ["share", "share of all of it"],
        ],
        chosen.scale,
        change("scale"),
      ),
    );
    part.chart.classList.add("low");
    const redraw = () => drawTime(page, part.chart, data.stepOf.get(chosen.over), chosen.scale, parts);
    return redraw;
  });
}

function drawTime(page, node, axis, scale, allParts) {
  const { data } = page;
  const others = data.steps.filter((each) => each !== axis);
  const rows = axis
    ? [
        ...bestOf(
          data,
          (row) =>
            data.ran(row) &&
            (!data.saturated[row] || row === page.chosen) &&
            others.every((each) => each.at[row] === each.at[page.chosen]),
          (row) => axis.at[row],
        ).values(),
      ].sort((a, b) => axis.at[a] - axis.at[b])
    : [page.chosen].filter(data.ran);
  const palette = data.palette[isDark() ? "dark" : "light"];
  const parts = allParts.filter(
    (part) => (scale !== "first" || part.first) && (!part.waits || rows.some((row) => part.seconds(row) > 0)),
  );
  const names = rows.map((row) => (axis ? levelText(axis, axis.at[row]) : "the design"));
  const traces = parts.map((part) => ({
    type: "bar",
    name: plain(part.name),
    x: names.map(plain),
    y: rows.map((row) => (scale === "share" ? (100 * part.seconds(row)) / totalOf(parts, row) : part.seconds(row))),
    customdata: rows,
    marker: {
      color: palette[part.colour % palette.length],
      pattern: { shape: part.waits ? "/" : "" },
    },
    text: rows.map((row) => `${figure(part.seconds(row))} s of ${figure(totalOf(parts, row))} s`),
    textposition: "none",
    hovertemplate: `${plain(part.name)}: %{text}<extra></extra>`,
  }));
  const whole = data.byId.get("e2e_s mean").values;
  const beside = scale !== "first" && rows.some((row) => totalOf(parts, row) > 1.01 * whole[row]);
  return draw(
    page,
    node,
    traces,
    {
      barmode: "stack",
      bargap: 0.15,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal" },
      xaxis: { type: "category", title: { text: axis ? plain(axis.title) : "" }, showgrid: false },
      yaxis: {
        title: {
          text: {
            share: "share of the end-to-end time (%)",
            first: "mean time to the first token (s)",
            whole: "mean end-to-end time (s)",
          }[scale],
        },
        ...(scale === "share" ? { range: [0, 100] } : {}),
      },
    },
    rows.length
      ? `Means over the measured requests of ${inWords(data, page.chosen, others)}; saturated designs are left out. ${data.stages.length ? `Hatched: waiting.${beside ? " Some of it is side by side, so that it adds up to more than end to end." : ""}` : "Where prefill and decode are apart, the transfer counts as decode."}`
      : "The chosen design cannot run; choose another one.",
    timeFinding(data, page.chosen, parts),
  );
}

/** The parts of the chosen design's time, the longest first. */
function timeFinding(data, row, parts) {
  const total = totalOf(parts, row);
  if (!data.ran(row)) return "The chosen design cannot run.";
  const longest = [...parts].sort((a, b) => b.seconds(row) - a.seconds(row));
  const told = longest.map((part) => `${part.name} ${figure(part.seconds(row))} s`);
  return `Of ${figure(total)} s in ${inWords(data, row)}: ${told.join(", ")}.`;
}

/** The operators of the best design's iterations, where the page knows them. */
function anatomy(page) {
  const known = page.data.anatomy;
  if (!known) return;
  const share = (operator) => {
    const bar = make("i", { className: "share" });
    bar.style.width = `${Math.max(1, 1.2 * operator.share)}px`;
    return make("td", {}, bar, `${figure(operator.share)} %`);
  };
  const line = (operator) =>
    make(
      "tr",
      {},
      make("td", {}, operator.name),
      make("td", { className: "number" }, figure(operator.milliseconds)),
      share(operator),
      make("td", {}, operator.bound),
    );
  const heads = ["operator", "ms", "share", "bound by"].map((name) =>
    make("th", { scope: "col", className: name === "ms" ? "number" : "" }, name),
  );
  const tables = known.phases.map((phase) =>
    make(
      "div",
      {},
      make("h3", {}, phase.title),
      make("p", { className: "note" }, phase.about),
      make(
        "div",
        { className: "scroll" },
        make(
          "table",
          {},
          make("thead", {}, make("tr", {}, ...heads.map((head) => head.cloneNode(true)))),
          make("tbody", {}, ...phase.operators.map(line)),
        ),
      ),
    ),
  );
  document
    .getElementById("anatomy")
    .replaceChildren(
      make("p", {}, `Iterations of the best design (${known.design}), operator by operator, from the cost model:`),
      make("div", { className: "tables" }, ...tables),
    );
}
