// The page about the ranks of a job: bars of what each held, and one measure at a time as points.
const ranked = { order: "rank", measure: null };
const ORDERS = [["rank", "By rank"], ["peak", "By peak"]];
const PARTS = [
  ["allocated", "peak allocated", "--accent"],
  ["unused", "reserved, unused", "--peak"],
  ["outside", "outside torch", "--pending"],
];

const formatUnit = (value, unit) => (unit === "us" ? formatTime(value)
  : formatBytes(Math.round(value)) + (unit === "bytes" ? "" : " a step"));

/** The places of all ranks, in the order that was chosen. */
function inOrder() {
  const places = page.data.rank.map((_, i) => i);
  const peak = page.data.allocated;
  return ranked.order === "rank" ? places : places.sort((a, b) => peak[b] - peak[a] || a - b);
}

/** By rank the axis is the number, so that a missing rank is a gap; else it counts. */
function axis(places) {
  const numbers = ranked.order === "rank" && page.data.numbered;
  const title = numbers ? "rank" : ranked.order === "rank" ? "recording" : "from the highest peak";
  const at = numbers ? places.map((i) => page.data.rank[i]) : places.map((_, n) => n);
  return {
    at,
    more: {
      range: [Math.min(...at) - 0.6, Math.max(...at) + 0.6],
      title: { text: title, font: { size: 11 }, standoff: 6 }, tickformat: ",d",
      ...(places.length <= 24 ? { dtick: 1, tick0: 0 } : { nticks: 12 }),
    },
  };
}

function drawFootprint() {
  const parts = section("footprint"), data = page.data, places = inOrder();
  clean(parts);
  const { at, more } = axis(places);
  const shown = PARTS.filter(([name]) => data[name].some((value) => value > 0));
  if (!shown.length) { say(parts, "No rank has figures."); return; }
  const traces = shown.map(([name, title, color]) => ({
    type: "bar", name: title, x: at, y: places.map((i) => Math.max(data[name][i], 0)),
    marker: { color: variable(color), line: { width: 0 } }, hoverinfo: "none", customdata: places,
  }));
  const heights = places.map((i) => shown.reduce((sum, [name]) => sum + Math.max(data[name][i], 0), 0));
  const out = places.map((i, n) => [i, n]).filter(([i]) => data.ran_out[i]);
  if (out.length) traces.push({
    type: "scatter", mode: "markers", name: "ran out of memory", customdata: out.map(([i]) => i),
    x: out.map(([, n]) => at[n]), y: out.map(([, n]) => heights[n] * 1.02), hoverinfo: "none",
    marker: { symbol: "x", size: 9, color: ink().danger },
  });
  const total = Math.max(...data.total), highest = Math.max(...heights);
  const near = total > 0 && highest > total / 4;   // a card that is nearly empty is no scale
  const shapes = near ? [{
    type: "line", xref: "paper", x0: 0, x1: 1, y0: total, y1: total,
    line: { color: ink().quiet, width: 1, dash: "dot" },
  }] : [];
  Plotly.react(parts.chart, traces, layout(330, {
    barmode: "stack", bargap: places.length > 200 ? 0 : 0.15, hovermode: "x", hoverdistance: 60,
    shapes, xaxis: more, yaxis: byteAxis(Math.max(highest, near ? total : 0), ""),
    uirevision: ranked.order,
  }), zoomable());
  const entries = shown.map(([, name, color]) => ({ name, color: variable(color) }));
  if (out.length) entries.push({ name: "ran out of memory", color: ink().danger });
  if (near) entries.push({ name: `the device, ${formatBytes(total)}`, color: ink().quiet, className: "line" });
  legend(parts, entries);
  parts.controls.replaceChildren(choice("Order", ORDERS, ranked.order, (order) => {
    ranked.order = order;
    drawAll();
  }));
  wire(parts.chart);
}

function drawMeasure() {
  const parts = section("measure"), all = page.data.measures;
  parts.root.hidden = !all.length;
  if (!all.length) return;
  const chosen = all.find((m) => m.name === ranked.measure) || all[0];
  const places = inOrder().filter((i) => chosen.values[i] !== null);
  const { at, more } = axis(places);
  const far = new Set(chosen.outliers), colors = ink();
  const values = places.map((i) => chosen.values[i]);
  const low = Math.min(0, ...values), high = Math.max(chosen.median, ...values);
  const scale = chosen.unit === "us" ? durationAxis(high) : signedByteAxis(low, high);
  Plotly.react(parts.chart, [{
    type: "scatter", mode: "markers", x: at, y: values, customdata: places, hoverinfo: "none",
    marker: {
      color: places.map((i) => (far.has(i) ? colors.danger : colors.accent)),
      size: places.map((i) => (far.has(i) || places.length <= 200 ? 8 : 4)),
      line: { width: 0 }, opacity: 1,
    },
  }], layout(280, {
    hovermode: "closest", hoverdistance: 30, xaxis: more, yaxis: scale, uirevision: chosen.name,
    shapes: [{
      type: "line", xref: "paper", x0: 0, x1: 1, y0: chosen.median, y1: chosen.median,
      line: { color: colors.quiet, width: 1, dash: "dot" },
    }],
  }), zoomable());
  legend(parts, [
    { name: chosen.title, color: colors.accent },
    { name: "differs from the rest", color: colors.danger },
    { name: `median ${formatUnit(chosen.median, chosen.unit)}`, color: colors.quiet, className: "line" },
  ]);
  const options = all.map((m) => [m.name, m.title]);
  parts.controls.replaceChildren(choice("Measure", options, chosen.name, (name) => {
    ranked.measure = name;
    drawMeasure();
  }));
  wire(parts.chart);
}

function durationAxis(most) {
  const top = Math.max(most, 1) * 1.06, { factor, name } = timeUnit(top);
  return {
    range: [0, top], title: { text: name, font: { size: 11 }, standoff: 6 },
    ...ticksUpTo(top, factor),
  };
}

function ticksUpTo(top, factor) {
  const rough = top / factor / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((n) => n * power >= rough) * power;
  const values = [];
  for (let value = 0; value <= top / factor; value += step) values.push(value);
  return { tickvals: values.map((v) => v * factor), ticktext: values.map((v) => String(Number(v.toPrecision(6)))) };
}

function signedByteAxis(low, high) {
  const positive = byteAxis(Math.max(high, -low), "");
  const below = low < 0 ? positive.tickvals.filter((v) => v > 0 && v <= -low * 1.3).map((v) => -v) : [];
  const tickvals = [...below.reverse(), ...positive.tickvals];
  return { ...positive, tickvals, ticktext: tickvals.map(formatBytes), range: [low * 1.1, Math.max(high, 1) * 1.06] };
}

/** Title, rows and notes about one rank. */
function rankTip(i) {
  const data = page.data;
  const known = PARTS.filter(([name]) => data[name][i] >= 0);
  const rows = known.map(([name, title, color]) => (
    { name: title, value: formatBytes(data[name][i]), color: variable(color) }));
  for (const measure of data.measures.filter((m) => m.unit !== "bytes" && m.values[i] !== null)) {
    rows.push({ name: measure.title, value: formatUnit(measure.values[i], measure.unit) });
  }
  const told = [`${data.device[i] || "no device"}, ${formatCount(data.steps[i])} steps`, data.file[i]];
  if (data.ran_out[i]) told.push("ran out of memory");
  if (data.ended[i] !== "ok") told.push(data.ended[i]);
  return [data.name[i], rows, told];
}

function wire(chart) {
  if (chart.dataset.wired) return;
  chart.dataset.wired = "yes";
  chart.on("plotly_hover", ({ event, points }) => tip(event, ...rankTip(points[0].customdata)));
  chart.on("plotly_unhover", untip);
}

function drawAll() {
  drawFootprint();
  drawMeasure();
}

start(() => {
  wireTheme(drawAll);
  drawAll();
});
