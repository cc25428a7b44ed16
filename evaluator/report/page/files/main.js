// Puts the page together: text is there already, then the table, then charts as they come near the window.

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

setTheme(kept("theme") || (window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));

async function start() {
  const data = prepare(JSON.parse(await unpacked("data")));
  let library = null;
  const page = {
    data,
    chosen: Math.max(0, data.ranks.indexOf(Number(kept("design")) - 1)),
    parts: [],
    onChoice: [],
    choose(row) {
      page.chosen = row;
      keep("design", row ? String(data.ranks[row] + 1) : "");
      page.onChoice.forEach((tell) => tell());
      page.parts.filter((part) => part.seen).forEach((part) => part.redraw());
    },
    plotly() {
      library ??= unpacked("plotly").then((text) => {
        document.head.append(make("script", { textContent: text }));
        return window.Plotly;
      });
      return library;
    },
  };
  bestOfEach(page);
  rankingTable(page);
  designCard(page);
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
  [frontChart, curvesChart, heatChart, helpChart, timeChart].forEach((chart) => chart(page));
  document.getElementById("theme").addEventListener("click", () => {
    setTheme(isDark() ? "light" : "dark");
    keep("theme", document.documentElement.dataset.theme);
    page.parts.filter((part) => part.seen).forEach((part) => part.redraw());
  });
  copyButton(document.getElementById("copy-scenario"), () => document.getElementById("scenario-text").textContent);
  onPaper(page);
  if (address.values.size) document.getElementById(address.section)?.scrollIntoView({ behavior: "instant" }); // else the browser does
  const idle = window.requestIdleCallback ?? ((work) => setTimeout(work, 200));
  await new Promise((done) => idle(() => page.plotly().then(done))); // so that the first chart need not wait for it
}

const loaded = holdLoading();
const started = start().catch((error) => {
  const place = document.getElementById("failure");
  place.hidden = false;
  place.textContent =
    typeof DecompressionStream === "undefined"
      ? "Tables and charts need a browser of 2023 or later."
      : `Tables and charts could not be drawn: ${error.message}`;
  throw error;
});
started.finally(loaded);
