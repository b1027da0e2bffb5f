// Readings of the driver and the host under the memory chart, on its time axis and zoom.
const LINE_COLORS = ["#2c6fbb", "#d1603d", "#1d9a78", "#c77bb8", "#e69f00"];
const PANEL_HEIGHT = 96;
const PANEL_GAP = 30;

/** One panel of curves more: reserved minus allocated, told by the trace itself. */
function fragmentationPanel(figure) {
  if (!figure || !figure.reserved.some((value) => value > 0)) return null;
  const timed = figure.time_us.length > 0 && memory.axis === "time";
  const xs = timed ? figure.time_us : figure.event;
  const picked = pickSamples(figure, xs, null);
  const unused = figure.reserved.map((bytes, i) => Math.max(bytes - figure.allocated[i], 0));
  const { x, y } = alongSamples(figure, picked, xs, unused, null);
  const whole = figure.windows.length < 2;
  const lines = [{
    name: whole ? "reserved, not allocated" : "in the recorded windows", fill: whole, steps: true,
    time_us: x, values: y,
  }];
  const steps = device().steps;
  if (timed && steps && !steps.traced.every(Boolean)) {
    lines.push({
      name: "at step ends", steps: true, time_us: steps.end_us,
      values: steps.reserved.map((bytes, i) => (
        bytes < 0 || steps.allocated[i] < 0 || steps.end_us[i] < 0 ? null : bytes - steps.allocated[i])),
    });
  }
  return { title: "Reserved, not allocated", unit: "", lines };
}

function readingPanels() {
  const figure = device().memory;
  const timed = memory.axis === "time" && (!figure || figure.time_us.length > 0);
  const unused = fragmentationPanel(figure);
  const panels = timed ? device().readings : [];
  return { timed, panels: [...(unused ? [unused] : []), ...panels] };
}

function drawReadings() {
  const parts = section("readings");
  const { timed, panels } = readingPanels();
  if (!panels.length) {
    parts.root.hidden = !device().readings.length;
    say(parts, "Readings carry times, no events: choose Time above.");
    return;
  }
  parts.root.hidden = false;
  clean(parts);
  const figure = device().memory;
  const span = spanOfTime(figure);
  const factor = timed ? timeUnit(span).factor : 1;
  const range = memory.range || (figure ? wholeRange(memoryAxis(figure)) : [0, span / factor]);
  const height = panels.length * (PANEL_HEIGHT + PANEL_GAP) + 34;
  const traces = panels.flatMap((panel, row) => panelTraces(panel, row, factor));
  const title = timed ? `time (${timeUnit(span).name})` : "event";
  Plotly.react(parts.chart, traces, readingsLayout(panels, height, range, title), config);
  parts.legend.replaceChildren();
  parts.lead.textContent = device().readings.length
    ? "Reserved bytes that no tensor uses, and what the driver and the host say; zoomed with the chart above."
    : "Reserved bytes that no tensor uses: what fragmentation and the cache hold; zoomed with the chart above.";
  document.getElementById("readings-title").textContent = device().readings.length
    ? "Fragmentation and surroundings" : "Fragmentation over time";
  if (!parts.chart.dataset.wired) wireReadings(parts);
}

function panelTraces(panel, row, factor) {
  return panel.lines.map((line, i) => ({
    x: line.time_us.map((t) => t / factor), y: line.values,
    type: "scatter", mode: "lines", name: plain(line.name), hoverinfo: "none",
    yaxis: row ? `y${row + 1}` : "y", connectgaps: false,
    line: { width: 1.4, color: LINE_COLORS[i % LINE_COLORS.length], shape: line.steps ? "hv" : "linear" },
    fill: line.fill ? "tozeroy" : "none", fillcolor: LINE_COLORS[i % LINE_COLORS.length] + "33",
  }));
}

function readingsLayout(panels, height, range, title) {
  const colors = ink(), usable = height - 34, axes = {}, annotations = [];
  panels.forEach((panel, row) => {
    const top = 1 - (row * (PANEL_HEIGHT + PANEL_GAP) + 20) / usable;
    const bottom = 1 - ((row + 1) * (PANEL_HEIGHT + PANEL_GAP) - 6) / usable;
    const most = Math.max(...panel.lines.flatMap((l) => l.values.filter((v) => v !== null)), 0);
    const axis = panel.unit === ""
      ? byteAxis(most, "")
      : { rangemode: "tozero", nticks: 4, ticksuffix: panel.unit === "count" ? "" : ` ${panel.unit}` };
    if (axis.tickvals) {
      const keep = Math.ceil(axis.tickvals.length / 4);
      axis.ticktext = axis.ticktext.filter((_, i) => i % keep === 0);
      axis.tickvals = axis.tickvals.filter((_, i) => i % keep === 0);
    }
    axes[row ? `yaxis${row + 1}` : "yaxis"] = {
      ...axis, domain: [Math.max(bottom, 0), top], fixedrange: true, gridcolor: colors.line,
      zerolinecolor: colors.line, automargin: false,
    };
    const names = panel.lines.length > 1
      ? panel.lines.map((line, i) => `<span style="color:${LINE_COLORS[i % LINE_COLORS.length]}">■</span> ${plain(line.name)}`).join("  ")
      : panel.lines[0].name === panel.title.toLowerCase() ? "" : plain(panel.lines[0].name);
    annotations.push({
      xref: "paper", yref: "paper", x: 0, xanchor: "left", y: top, yanchor: "bottom",
      showarrow: false, font: { size: 11.5, color: colors.text }, text: `<b>${plain(panel.title)}</b>  ${names}`,
    });
  });
  return layout(height, {
    uirevision: `${page.run}/${page.device}/${memory.axis}`,
    hovermode: "x", hoverdistance: 40, annotations, margin: { l: GUTTER, r: 12, t: 8, b: 8 },
    xaxis: { title: { text: title, font: { size: 11 }, standoff: 6 }, range, anchor: "free", position: 0, exponentformat: "none", separatethousands: true },
    ...axes,
  });
}

function wireReadings(parts) {
  const chart = parts.chart;
  chart.dataset.wired = "yes";
  chart.on("plotly_relayout", (change) => {
    if (change["xaxis.autorange"]) zoomTo(null);
    else if (change["xaxis.range[0]"] !== undefined) {
      zoomTo([change["xaxis.range[0]"], change["xaxis.range[1]"]]);
    }
  });
  chart.on("plotly_doubleclick", () => { zoomTo(null); return false; });
  chart.on("plotly_hover", ({ event, points }) => {
    const { timed, panels } = readingPanels();
    const lines = panels.flatMap((panel) => panel.lines.map((line, i) => ({ panel, line, i })));
    const rows = points.map((point) => {
      const { panel, line, i } = lines[point.curveNumber];
      const value = panel.unit === "" ? formatBytes(point.y)
        : `${threeDigits(point.y)} ${panel.unit === "count" ? "" : panel.unit}`;
      return { name: line.name, value, color: LINE_COLORS[i % LINE_COLORS.length] };
    });
    const factor = timed ? timeUnit(spanOfTime(device().memory)).factor : 1;
    const x = points[0].x;
    tip(event, timed ? formatTime(x * factor) : `event ${formatCount(x)}`, rows);
  });
  chart.on("plotly_unhover", untip);
}

page.figures.push(drawReadings);
