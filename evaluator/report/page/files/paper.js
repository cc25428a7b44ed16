// On paper: light, every chart drawn at the width of the sheet, and each table as small as it has to be to fit.

const SHEET = "960px"; // within the margins of A4 and Letter across, at 96 pixels per inch

function onPaper(page) {
  const tables = () => document.querySelectorAll("main .scroll");
  const setSheet = (size, width) => {
    document.documentElement.style.fontSize = size;
    document.querySelector("main").style.width = width;
  };
  window.addEventListener("beforeprint", () => {
    page.theme = document.documentElement.dataset.theme;
    setTheme("light");
    setSheet("13px", SHEET);
    page.parts.forEach((part) => part.redraw());
    tables().forEach((box) => {
      box.firstElementChild.style.zoom = Math.min(1, box.clientWidth / box.scrollWidth);
    });
  });
  window.addEventListener("afterprint", () => {
    setTheme(page.theme);
    setSheet("", "");
    tables().forEach((box) => {
      box.firstElementChild.style.zoom = "";
    });
    page.parts.filter((part) => part.seen).forEach((part) => part.redraw());
  });
}

/** Keeps the page from counting as loaded until what is returned is called: what prints pages waits for that. */
function holdLoading() {
  const frame = make("iframe", { hidden: true });
  document.body.append(frame);
  frame.contentDocument?.open(); // none where the page itself stands in a sandbox
  return () => {
    frame.contentDocument?.close();
    frame.remove();
  };
}
