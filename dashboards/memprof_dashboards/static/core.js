"use strict";
// What every figure shares: the page's state, the elements of a section, the tooltip, the theme.
const page = {
  data: null,
  run: 0,
  device: 0,
  figures: [],          // {id, draw(device, section)}
  theme: "system",      // or "light", "dark"
};

const element = (tag, className = "", text = "") => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== "") node.textContent = text;   // text from a recording is never markup
  return node;
};

const run = () => page.data.runs[page.run];
const device = () => run().devices[page.device];

/** The parts of a figure's section. */
function section(id) {
  const root = document.getElementById(id);
  const part = (name) => root.querySelector(":scope > ." + name);
  return {
    root,
    controls: root.querySelector(".controls"),
    lead: part("lead"),
    legend: part("legend"),
    chart: part("chart"),
    below: part("below"),
  };
}

/** A figure that has nothing to show says why, in place of an empty frame. */
function say(parts, text) {
  if (parts.chart.data) Plotly.purge(parts.chart);
  parts.controls.replaceChildren();
  parts.legend.replaceChildren();
  parts.below.replaceChildren();
  parts.chart.replaceChildren(element("p", "nothing", text));
  parts.chart.style.height = "auto";
}

/** Clear what `say` wrote, so that Plotly finds an empty element. */
function clean(parts) {
  if (parts.chart.querySelector(":scope > .nothing")) parts.chart.replaceChildren();
}

/** A row of buttons of which one is pressed. */
function choice(label, options, current, pick) {
  const group = element("div", "choice");
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", label);
  for (const [value, text] of options) {
    const button = element("button", "", text);
    button.type = "button";
    button.dataset.value = value;
    button.setAttribute("aria-pressed", String(value === current));
    button.addEventListener("click", () => pick(value));
    group.append(button);
  }
  return group;
}

function toggle(text, on, flip) {
  const button = element("button", "toggle", text);
  button.type = "button";
  button.setAttribute("aria-pressed", String(on));
  button.addEventListener("click", () => flip(!on));
  return button;
}

// -- theme ------------------------------------------------------------------------------------

const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const ink = () => ({
  text: variable("--text"),
  quiet: variable("--quiet"),
  line: variable("--line"),
  paper: variable("--panel"),
  strong: variable("--strong"),
  accent: variable("--accent"),
  danger: variable("--danger"),
});

/** The layout that all charts start from. */
function layout(height, more = {}) {
  const colors = ink();
  const axis = {
    gridcolor: colors.line, zerolinecolor: colors.line, linecolor: colors.line,
    tickcolor: colors.line, automargin: true, ticklen: 4,
  };
  const merged = {
    height, autosize: true,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: variable("--font"), size: 12, color: colors.quiet },
    margin: { l: 8, r: 12, t: 8, b: 8 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colors.quiet, activecolor: colors.text },
    showlegend: false, dragmode: "zoom", hovermode: "closest", hoverdistance: -1,
    ...more,
  };
  merged.xaxis = { ...axis, showgrid: false, ...(more.xaxis || {}) };
  merged.yaxis = { ...axis, fixedrange: true, ...(more.yaxis || {}) };
  return merged;
}

// The buttons are named one by one: Plotly's own set has one that sends the chart away.
const config = {
  responsive: true, displaylogo: false, scrollZoom: false, displayModeBar: false,
  showSendToCloud: false, showEditInChartStudio: false, showLink: false, showTips: false,
};
const zoomable = () => ({
  ...config, displayModeBar: innerWidth > 700,
  modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
});

// -- tooltip ----------------------------------------------------------------------------------

/** Show lines near the pointer: strings, or {color, name, value}; text only, never markup. */
function tip(event, title, rows, notes = []) {
  const box = document.getElementById("tip");
  box.replaceChildren(element("p", "tip-title", title));
  if (rows.length) {
    const table = element("table");
    for (const row of rows) {
      const line = table.insertRow();
      const swatch = element("span", "swatch");
      if (row.color) swatch.style.background = row.color;
      else swatch.classList.add("none");
      line.insertCell().append(swatch);
      line.insertCell().textContent = row.name;
      line.insertCell().textContent = row.value;
    }
    box.append(table);
  }
  for (const note of notes) box.append(element("p", "tip-note", note));
  box.hidden = false;
  place(box, event);
}

function place(box, event) {
  const gap = 16;
  const { clientX: x, clientY: y } = event;
  const { offsetWidth: width, offsetHeight: height } = box;
  const left = x + gap + width > innerWidth - 8 ? x - gap - width : x + gap;
  box.style.left = Math.max(8, left) + "px";
  box.style.top = Math.max(8, Math.min(y + gap, innerHeight - height - 8)) + "px";
}

const untip = () => { document.getElementById("tip").hidden = true; };
addEventListener("scroll", untip, { passive: true });
addEventListener("keydown", (event) => { if (event.key === "Escape") untip(); });

// -- legend -----------------------------------------------------------------------------------

/** A colour and a name; a button where it does something. */
function chip(name, color, value = "", className = "", tag = "span") {
  const node = element(tag, `chip ${className}`);
  const swatch = element("span", "swatch");
  swatch.style.background = color;
  node.append(swatch, element("span", "name", name));
  if (value) node.append(element("span", "value", value));
  node.title = name;
  return node;
}

/** The chips of a figure; with `flip`, each shows or hides its part. */
function legend(parts, entries, hidden = null, flip = null) {
  parts.legend.replaceChildren(...entries.map(({ name, color, value, className }) => {
    const node = chip(name, color, value, className, flip ? "button" : "span");
    if (flip) {
      node.type = "button";
      node.setAttribute("aria-pressed", String(!hidden.has(name)));
      node.addEventListener("click", () => flip(name));
    }
    return node;
  }));
}

// -- unpacking --------------------------------------------------------------------------------

/** The text that a packed element of the page holds. */
async function unpacked(id) {
  const packed = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}
