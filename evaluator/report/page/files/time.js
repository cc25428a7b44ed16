// Where the time of a request goes: waiting, prefill, decode, from means, which add up.

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
      redraw();
    };
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
          ["first", "seconds to the first token"],
          ["share", "share of all of it"],
        ],
        chosen.scale,
        change("scale"),
      ),
    );
    part.chart.classList.add("low");
    const redraw = () => drawTime(page, part.chart, data.stepOf.get(chosen.over), chosen.scale, mean);
    return redraw;
  });
}

function drawTime(page, node, axis, scale, mean) {
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
  const [wait, first, whole] = ["queue_wait_s", "ttft_s", "e2e_s"].map((key) => mean(key).values);
  const palette = data.palette[isDark() ? "dark" : "light"];
  const stages = [
    ["waiting in the queue", (row) => wait[row], palette[1]],
    ["first token after that (prefill)", (row) => first[row] - wait[row], palette[0]],
    ["other tokens (decode)", (row) => whole[row] - first[row], palette[2]],
  ];
  if (scale === "first") stages.pop();
  const names = rows.map((row) => (axis ? levelText(axis, axis.at[row]) : "the design"));
  const traces = stages.map(([name, seconds, colour]) => ({
    type: "bar",
    name,
    x: names.map(plain),
    y: rows.map((row) => (scale === "share" ? (100 * seconds(row)) / whole[row] : seconds(row))),
    customdata: rows,
    marker: { color: colour },
    text: rows.map((row) => `${figure(seconds(row))} s of ${figure(whole[row])} s`),
    textposition: "none",
    hovertemplate: `${name}: %{text}<extra></extra>`,
  }));
  return draw(
    page,
    node,
    traces,
    {
      barmode: "stack",
      bargap: 0.15,
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
      ? `Means over the measured requests of ${inWords(data, page.chosen, others)}; saturated designs are left out. Where prefill and decode are apart, the transfer counts as decode.`
      : "The chosen design cannot run; choose another one.",
  );
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
