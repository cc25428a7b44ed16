// What would help: by how many percent 1 % more of each input changes the measures of a design.

function helpChart(page) {
  const { data } = page;
  section(page, "help", (part) => {
    const known = data.elasticities;
    if (!known && data.search) return part.leave(); // a search knows no sensitivities
    if (!known)
      return part.say(
        "The sweep was run without sensitivities. evaluator sweep SCENARIO.yaml --sensitivity --out RESULT.nc adds what 1 % more memory bandwidth, FLOP/s or link bandwidth, or 1 % longer fixed times, change in every design.",
      );
    part.chart.classList.add("low");
    return () => drawHelp(page, part.chart, known);
  });
}

function drawHelp(page, node, known) {
  const { data } = page;
  const at = known.rows.indexOf(page.chosen);
  const place = at < 0 ? 0 : at,
    row = known.rows[place];
  const palette = data.palette[isDark() ? "dark" : "light"];
  const inputs = known.inputs.map((name) => name.replaceAll("_", " "));
  const traces = known.measures
    .map((measure, which) => ({
      type: "bar",
      orientation: "h",
      name: plain(measure.label),
      y: inputs,
      x: measure.slopes[place],
      marker: { color: palette[which % palette.length] },
      error_x: {
        type: "data",
        array: measure.errors[place].map((error) => (isKnown(error) ? error : 0)),
        color: themed("soft"),
        thickness: 1.2,
        width: 3,
      },
      hovertemplate: `1 % more %{y}: ${plain(measure.label)} %{x:+.2f} %<extra></extra>`,
    }))
    .filter((trace) => trace.x.some((slope) => slope));
  const said = `#${data.ranks[row] + 1} ${inWords(data, row)}${at < 0 ? " (the chosen design has no elasticities on this page)" : ""}`;
  node.hidden = !traces.length;
  if (!traces.length) {
    node.closest("figure").querySelector("figcaption").textContent =
      `${said}: 1 % more of any input changes none of its measures by as much as shows.`;
    return;
  }
  const strongest = traces.map((trace) => {
    const place = trace.x.reduce((most, slope, i) => (Math.abs(slope) > Math.abs(trace.x[most]) ? i : most), 0);
    return `${trace.name} by ${figure(trace.x[place])} % for 1 % more ${inputs[place]}`;
  });
  return draw(
    page,
    node,
    traces,
    {
      barmode: "group",
      bargap: 0.3,
      xaxis: { title: { text: "change in % for 1 % more" }, zeroline: true, zerolinecolor: themed("soft") },
      yaxis: { autorange: "reversed" },
    },
    `${said}. Bars: one standard error of chance and step. ${known.about}.`,
    `What changes each measure of ${said} most: ${strongest.join("; ")}.`,
  );
}
