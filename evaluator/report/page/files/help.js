// What would help: by how many percent 1 % more of each input changes the measures of a design.

function helpChart(page) {
  const { data } = page;
  section(page, "help", (part) => {
    const known = data.elasticities;
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
    .filter((trace) => trace.x.some(isKnown));
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
    `#${data.ranks[row] + 1} ${inWords(data, row)}${at < 0 ? " (the chosen design has no elasticities on this page)" : ""}. Bars: one standard error of chance and step. ${known.about}.`,
  );
}
