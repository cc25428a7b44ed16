// What a reader chose stands in the page's address, #SECTION&sort=cost&design=3, so that a link shows what its sender saw.

const address = (() => {
  const [section, ...pairs] = location.hash.slice(1).split("&");
  return { section, values: new URLSearchParams(pairs.join("&")) };
})();

/** What the address says of a key; empty where it says nothing. */
const kept = (key) => address.values.get(key) ?? "";

/** Puts a choice into the address; empty takes it out. */
function keep(key, value) {
  if (value === "") address.values.delete(key);
  else address.values.set(key, value);
  const rest = String(address.values);
  try {
    history.replaceState(null, "", `#${address.section}${rest && `&${rest}`}`);
  } catch {
    // a page inside another one may have no history; it keeps nothing
  }
}

/** What a chart shows, as the address says it where that is `allowed`: {key: values}; and what puts it into the address. */
function recalled(id, chosen, allowed) {
  for (const [key, values] of Object.entries(allowed))
    if (values.includes(kept(`${id}.${key}`))) chosen[key] = kept(`${id}.${key}`);
  return () => Object.keys(allowed).forEach((key) => keep(`${id}.${key}`, chosen[key] ?? ""));
}

window.addEventListener("hashchange", () => {
  const [section, ...pairs] = location.hash.slice(1).split("&");
  if (pairs.length) return location.reload(); // somebody's link
  address.section = section;
  keep("", ""); // with the choices behind it again
});
