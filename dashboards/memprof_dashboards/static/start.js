// Start: unpack what the page holds, then let it draw; draw again when the theme changes.
const THEMES = ["system", "light", "dark"];

function wireTheme(redraw) {
  const theme = document.getElementById("theme");
  theme.addEventListener("click", () => {
    page.theme = THEMES[(THEMES.indexOf(page.theme) + 1) % THEMES.length];
    theme.textContent = `Theme: ${page.theme}`;
    if (page.theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = page.theme;
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

async function unpack() {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser cannot unpack the charts; any browser since 2023 can");
  }
  const script = document.createElement("script");
  const [plotly, data] = await Promise.all([unpacked("plotly"), unpacked("data")]);
  script.textContent = plotly;
  document.head.append(script);
  page.data = JSON.parse(data);
}

/** `begin` once everything is there; whether that went well stands in the document. */
function start(begin) {
  unpack()
    .then(begin)
    .then(() => { document.documentElement.dataset.drawn = "yes"; })
    .catch((error) => {
      const broken = document.getElementById("broken");
      broken.textContent = `The charts could not be drawn: ${error.message}`;
      broken.hidden = false;
      document.documentElement.dataset.drawn = "no";
      console.error(error);
    });
}
