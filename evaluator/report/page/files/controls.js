// Controls that several sections use.

/** A labelled choice; options are [value, text] pairs. `changed` gets the value; `name` stands in for no label. */
function choice(label, options, value, changed, name = "") {
  const select = make(
    "select",
    { onchange: () => changed(select.value), ...(name ? { ariaLabel: name } : {}) },
    ...options.map(([key, text]) => make("option", { value: key, selected: String(key) === String(value) }, text)),
  );
  return make("label", {}, label, select);
}

/** Choices of the levels at which axes are held: "" is the best design of all levels. Changes `held` in place. */
function holders(axes, held, changed) {
  return axes.map((axis) => {
    const levels = axis.levels.map((_, at) => [at, levelText(axis, at)]);
    return choice(axis.label, [["", "best of all"], ...levels], held[axis.key] ?? "", (value) => {
      held[axis.key] = value === "" ? "" : Number(value);
      changed();
    });
  });
}

/** Whether a row has the levels at which axes are held. */
const isHeld = (axes, held, row) => axes.every((axis) => held[axis.key] === "" || axis.at[row] === held[axis.key]);

/** Options of series for a choice, those of one measure after each other. */
const seriesOptions = (list) => list.map((series) => [series.id, series.title]);

/** The first of `wanted` that `map` has, else its first key. */
const firstOf = (map, wanted) => wanted.find((key) => map.has(key)) ?? map.keys().next().value;

/** Copies a text and says so on the button for a moment. */
function copyButton(button, text) {
  const label = button.textContent;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed here: select the text";
    }
    setTimeout(() => {
      button.textContent = label;
    }, 1500);
  });
  return button;
}

/** Saves a text as a file. */
function download(name, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
