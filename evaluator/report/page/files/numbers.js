// Numbers as people read them, and what is packed in the page.

/** The text that an element holds as base64 of gzip. */
async function unpacked(id) {
  const element = document.getElementById(id);
  const coded = atob(element.textContent);
  const bytes = new Uint8Array(coded.length);
  for (let i = 0; i < coded.length; i++) bytes[i] = coded.charCodeAt(i);
  element.remove();
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

const isKnown = (value) => value !== null && value !== undefined;

/** Three significant digits, all before the point where there are more; a dash for what is not known. */
function figure(value, whole = false) {
  if (!isKnown(value)) return "–";
  const size = Math.abs(value);
  if (size >= 99.95 || whole || value === 0) return Math.round(value).toLocaleString("en-US");
  return size < 0.001 ? value.toExponential(1) : value.toPrecision(3);
}

/** A standard error with the decimals that its value is shown with, or two digits where it is smaller. */
function errorFigure(error, value) {
  const decimals = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value) || 1)));
  const shown = error.toFixed(Math.min(decimals, 6));
  return Number(shown) === 0 && error > 1e-9 * Math.abs(value) ? String(Number(error.toPrecision(1))) : shown;
}

/** A sentence begins with a capital, but a name such as h100-sxm stays as it is. */
const capital = (text) => (/^[a-z]+( |$)/.test(text) ? text[0].toUpperCase() + text.slice(1) : text);

/** Text for Plotly, which takes some HTML: nothing of it is markup. */
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");

/** An element with properties and children; texts are texts. */
function make(name, properties = {}, ...children) {
  const { data = {}, ...own } = properties;
  const node = Object.assign(document.createElement(name), own);
  for (const [key, value] of Object.entries(data)) node.setAttribute(key, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}
