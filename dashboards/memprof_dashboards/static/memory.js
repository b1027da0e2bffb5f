// Memory over time: areas by owner under the reserved line, with phases, steps, peak and ooms.
const memory = {
  axis: "time",
  split: null,           // "category", "module" or "site"; null: the best that the recording has
  hidden: new Set(),
  range: null,           // [low, high] in axis units, null: everything
  shown: [],             // the samples that are drawn now
};
const POINTS = 1600;
const GUTTER = 72;           // left of all charts over time, so that their axes stand in line
const SPLITS = [["category", "Category"], ["module", "Module"], ["site", "Site"]];

/** Values of the x axis for every sample, with the axis's unit. */
function memoryAxis(figure) {
  const timed = memory.axis === "time" && figure.time_us.length > 0;
  if (!timed) return { timed, x: figure.event, title: "event", factor: 1 };
  const { factor, name } = timeUnit(spanOfTime(figure));
  return { timed, x: figure.time_us.map((t) => t / factor), title: `time (${name})`, factor };
}

/** Microseconds from the origin to the last thing that the page knows of this device. */
function spanOfTime(figure) {
  const last = (list) => (list.length ? list[list.length - 1] : 0);
  const readings = device().readings.flatMap((p) => p.lines.map((l) => last(l.time_us)));
  const steps = device().steps ? device().steps.end_us : [];
  return Math.max(figure ? last(figure.time_us) : 0, last(steps), ...readings, 1);
}

/** The samples to draw in a range: all of them, or the lowest and highest of each stretch. */
function pickSamples(figure, x, range) {
  let low = 0, high = x.length - 1;
  if (range) {
    while (low < high && x[low + 1] < range[0]) low += 1;
    while (high > low && x[high - 1] > range[1]) high -= 1;
  }
  const count = high - low + 1;
  const all = Array.from({ length: count }, (_, i) => low + i);
  if (count <= POINTS) return all;
  const kept = new Set([low, high, figure.peak_sample, figure.peak_reserved_sample]);
  figure.windows.forEach((start) => { kept.add(start); if (start) kept.add(start - 1); });
  figure.ooms.forEach((oom) => kept.add(oom.sample));
  const stretch = count / (POINTS / 2);
  for (let from = low; from <= high; from += stretch) {
    const start = Math.floor(from), stop = Math.min(Math.floor(from + stretch), high + 1);
    let least = start, most = start;
    for (let i = start; i < stop; i += 1) {
      if (figure.allocated[i] < figure.allocated[least]) least = i;
      if (figure.allocated[i] > figure.allocated[most]) most = i;
    }
    kept.add(least).add(most);
  }
  return [...kept].filter((i) => i >= low && i <= high).sort((a, b) => a - b);
}

/** A row of values at the picked samples; between windows it falls to zero and rises again. */
function alongSamples(figure, picked, x, values, gap) {
  const starts = new Set(figure.windows.slice(1));
  const xs = [], ys = [];
  for (const i of picked) {
    if (starts.has(i)) { xs.push(x[i - 1], x[i]); ys.push(gap, gap); }
    xs.push(x[i]);
    ys.push(values[i]);
  }
  return { x: xs, y: ys };
}

/** Categories, unless nearly all of them are unknown while sites are told. */
function bestSplit(figure) {
  const { names, bytes } = figure.layers.category, at = figure.peak_sample;
  const unknown = names.indexOf("unknown");
  const dark = unknown >= 0 && bytes[unknown][at] > 0.95 * figure.allocated[at];
  return dark && figure.layers.site ? "site" : "category";
}

function memoryTraces(figure, axis, picked) {
  const layers = figure.layers[memory.split];
  const colors = ink();
  const traces = layers.names.map((name, i) => ({
    ...alongSamples(figure, picked, axis.x, layers.bytes[i], 0),
    type: "scatter", mode: "lines", name: plain(name), stackgroup: "owners",
    line: { width: 0, shape: "hv" }, fillcolor: layers.colors[i] + "d9",
    hoverinfo: "none", visible: !memory.hidden.has(name),
  }));
  traces.push({
    ...alongSamples(figure, picked, axis.x, figure.reserved, null),
    type: "scatter", mode: "lines", name: "reserved", hoverinfo: "none",
    line: { width: 1.6, shape: "hv", color: colors.strong },
    visible: !memory.hidden.has("reserved"),
  });
  traces.push(...betweenWindows(figure, axis), ...phaseStrip(figure, axis), ...oomMarks(figure, axis));
  return traces;
}

/** What the counters of steps say where no window was open. */
function betweenWindows(figure, axis) {
  const steps = device().steps;
  if (!steps || !axis.timed || steps.traced.every(Boolean)) return [];
  const line = (name, values, style) => ({
    x: steps.end_us.map((t) => (t < 0 ? null : t / axis.factor)),
    y: values.map((v, i) => (v < 0 || steps.traced[i] ? null : v)),
    type: "scatter", mode: "lines", name, hoverinfo: "none",
    line: { width: 1.4, shape: "vh", ...style },
  });
  const colors = ink();
  return [
    line("peak of the step", steps.peak_allocated, { color: colors.accent }),
    line("allocated at its end", steps.allocated, { color: colors.accent, dash: "dot" }),
    line("reserved at its end", steps.reserved, { color: colors.strong }),
  ];
}

/** The highest allocated bytes: in a window, or by the counters of a step between windows. */
function peakOf(figure, axis) {
  const traced = { x: axis.x[figure.peak_sample], bytes: figure.allocated[figure.peak_sample] };
  const steps = device().steps;
  if (!steps || !axis.timed) return traced;
  const best = steps.peak_allocated.reduce((top, v, i) => (v > steps.peak_allocated[top] ? i : top), 0);
  const counted = steps.peak_allocated[best] > traced.bytes && steps.end_us[best] >= 0;
  return counted ? { x: steps.end_us[best] / axis.factor, bytes: steps.peak_allocated[best] } : traced;
}

const heightOf = (figure, i) => (
  memory.hidden.has("reserved") ? figure.allocated[i] : Math.max(figure.reserved[i], figure.allocated[i]));

function memoryLayout(figure, axis, range) {
  const colors = ink();
  const steps = device().steps, known = steps ? Math.max(...steps.peak_reserved, 0) : 0;
  const most = memory.range
    ? memory.shown.reduce((top, i) => Math.max(top, heightOf(figure, i)), 1)
    : Math.max(heightOf(figure, figure.peak_reserved_sample),
      figure.allocated[figure.peak_sample], axis.timed ? known : 0);
  const { shapes, notes } = stepShapes(figure, axis, range);
  const annotations = [...notes, ...phaseNotes(figure, axis, range)];
  const capacity = memory.range ? 0 : figure.capacity;
  if (capacity && capacity < most * 1.6) {
    shapes.push({
      type: "line", xref: "paper", x0: 0, x1: 1, y0: capacity, y1: capacity,
      line: { width: 1, dash: "dash", color: colors.danger },
    });
    annotations.push({
      xref: "paper", x: 1, xanchor: "right", y: capacity, yanchor: "bottom", showarrow: false,
      text: `device: ${formatBytes(capacity)}`, font: { size: 10.5, color: colors.danger },
    });
  }
  const { x: peak, bytes } = peakOf(figure, axis);
  if (peak >= range[0] && peak <= range[1]) {
    annotations.push({
      x: peak, y: bytes, showarrow: true, arrowhead: 0,
      arrowwidth: 1, arrowcolor: colors.strong, ax: peak > (range[0] + range[1]) / 2 ? -46 : 46, ay: -16,
      text: `peak ${formatBytes(bytes)}`,
      font: { size: 12, color: colors.strong }, bgcolor: colors.paper, borderpad: 2,
    });
  }
  const oom = figure.ooms.find(({ sample }) => axis.x[sample] >= range[0] && axis.x[sample] <= range[1]);
  if (oom) {
    const x = axis.x[oom.sample];
    annotations.push({
      x, y: figure.reserved[oom.sample], xanchor: x > (range[0] + range[1]) / 2 ? "right" : "left",
      yanchor: "top", yshift: -14, xshift: x > (range[0] + range[1]) / 2 ? -10 : 10, showarrow: false,
      text: `<b>out of memory</b>: ${formatBytes(oom.requested)} asked, ${formatBytes(oom.free)} free`,
      font: { size: 12, color: colors.danger }, bgcolor: colors.paper, borderpad: 3,
    });
  }
  const top = capacity && capacity < most * 1.6 ? Math.max(capacity, most) : most;
  return layout(446, {
    uirevision: `${page.run}/${page.device}/${memory.axis}`,
    margin: { l: GUTTER, r: 12, t: 42, b: 8 },
    hovermode: "x", hoverdistance: 60,
    xaxis: {
      title: { text: axis.title, font: { size: 11 }, standoff: 6 }, range,
      showspikes: true, spikemode: "across", spikesnap: "hovered data", spikethickness: 1,
      spikedash: "solid", spikecolor: colors.quiet, separatethousands: true, tickformat: axis.timed ? "" : ",d",
      exponentformat: "none", nticks: 10,
    },
    yaxis: byteAxis(top, "", { domain: [0, 0.945], automargin: false }),
    yaxis2: { domain: [0.965, 0.995], range: [0, 1], visible: false, fixedrange: true },
    shapes, annotations,
  });
}

function wholeRange(axis) {
  const first = axis.x[0], last = axis.x[axis.x.length - 1];
  const end = axis.timed ? Math.max(last, spanOfTime(null) / axis.factor) : last;
  const begin = axis.timed && device().readings.length ? Math.min(first, 0) : first;
  return end > begin ? [begin, end + (end - begin) * 0.004] : [begin - 1, end + 1];
}

function drawMemory() {
  const parts = section("memory");
  const figure = device().memory;
  if (!figure) {
    say(parts, device().steps
      ? "No single allocation was recorded, only counters at step ends: see the steps below."
      : "This recording holds a final state and no events, so there is no course over time. "
        + "What was alive and where it lay is below.");
    return;
  }
  clean(parts);
  if (!figure.layers[memory.split]) memory.split = bestSplit(figure);
  const axis = memoryAxis(figure);
  const range = memory.range || wholeRange(axis);
  memory.shown = pickSamples(figure, axis.x, range);
  Plotly.react(parts.chart, memoryTraces(figure, axis, memory.shown),
    memoryLayout(figure, axis, range), zoomable());
  if (!parts.chart.dataset.wired) wireMemory(parts);
  memoryControls(parts, figure);
  memoryLegend(parts, figure);
}

function memoryControls(parts, figure) {
  const redraw = (change) => { Object.assign(memory, change); drawMemory(); };
  const splits = SPLITS.filter(([name]) => figure.layers[name]);
  const items = [];
  if (splits.length > 1) {
    items.push(choice("Group by", splits, memory.split,
      (split) => redraw({ split, hidden: new Set() })));
  }
  if (figure.time_us.length) {
    items.push(choice("Horizontal axis", [["time", "Time"], ["event", "Event"]], memory.axis,
      (axis) => { redraw({ axis, range: null }); drawReadings(); }));
  }
  const zoomed = element("button", "toggle", "Whole range");
  zoomed.type = "button";
  zoomed.hidden = !memory.range;
  zoomed.addEventListener("click", () => zoomTo(null));
  items.push(zoomed);
  parts.controls.replaceChildren(...items);
}

function memoryLegend(parts, figure) {
  const layers = figure.layers[memory.split], at = figure.peak_sample;
  const entries = layers.names.map((name, i) => ({
    name, color: layers.colors[i], value: formatBytes(layers.bytes[i][at]),
  }));
  entries.push({
    name: "reserved", color: ink().strong, value: formatBytes(figure.reserved[at]), className: "line",
  });
  legend(parts, entries.reverse(), memory.hidden, (name) => {
    if (memory.hidden.has(name)) memory.hidden.delete(name); else memory.hidden.add(name);
    drawMemory();
  });
  const phases = [...new Set(figure.phases.map((band) => band.phase))].sort((a, b) => a - b);
  if (figure.time_us.length && device().steps && !device().steps.traced.every(Boolean)) {
    parts.legend.append(chip("peak of steps between windows", ink().accent, "", "line"),
      chip("allocated at their ends (dotted)", ink().accent, "", "line"));
  }
  parts.legend.append(...phases.map((phase) => chip(
    page.data.phases[phase], page.data.phase_colors[phase], "", "phase")));
  const guessed = figure.inferred && memory.split === "category";
  parts.lead.textContent = "Bytes in use, stacked by owner, under what torch holds from the driver. "
    + `The legend counts at the peak${figure.windows.length > 1 ? " of the recorded windows" : ""}`
    + (guessed ? "; owners and phases are inferred from stacks, for the file does not name them. " : ". ")
    + "Drag to zoom; click for the stack.";
}

/** Zoom all charts over time to a range of the memory axis (null: everything). */
function zoomTo(range) {
  memory.range = range;
  drawMemory();
  drawReadings();
}

function wireMemory(parts) {
  const chart = parts.chart;
  chart.dataset.wired = "yes";
  chart.on("plotly_relayout", (change) => {
    if (change["xaxis.autorange"]) zoomTo(null);
    else if (change["xaxis.range[0]"] !== undefined) {
      zoomTo([change["xaxis.range[0]"], change["xaxis.range[1]"]]);
    } else if (change["xaxis.range"]) zoomTo([...change["xaxis.range"]]);
  });
  chart.on("plotly_doubleclick", () => { zoomTo(null); return false; });
  chart.on("plotly_hover", ({ event, points }) => {
    const row = countedStepAt(points[0].x);
    if (row >= 0) { tip(event, ...stepTip(row)); return; }
    const sample = sampleAt(points[0].x);
    if (sample >= 0) tip(event, ...memoryTip(sample));
  });
  chart.on("plotly_unhover", untip);
  chart.on("plotly_click", ({ points }) => {
    const figure = device().memory, sample = sampleAt(points[0].x);
    if (sample < 0 || figure.action[sample] < 0 || countedStepAt(points[0].x) >= 0) return;
    showStack(parts.below, happening(figure, sample), figure.stack[sample]);
  });
}

/** The step at a place of the time axis that counters alone know; -1 within windows. */
function countedStepAt(place) {
  const steps = device().steps, axis = memoryAxis(device().memory);
  if (!steps || !axis.timed) return -1;
  const row = steps.end_us.findIndex((end) => end >= 0 && end / axis.factor >= place);
  return row >= 0 && !steps.traced[row] ? row : -1;
}

/** The sample that stood at a place of the x axis. */
function sampleAt(place) {
  const figure = device().memory;
  if (!figure) return -1;
  const { x } = memoryAxis(figure);
  let low = 0, high = x.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (x[middle] <= place) low = middle; else high = middle - 1;
  }
  return low;
}

function happening(figure, sample) {
  const what = ACTIONS[figure.action[sample]] || "event";
  return `event ${formatCount(figure.event[sample] - 1)}: ${what} ${formatBytes(figure.size[sample])}`;
}

function memoryTip(sample) {
  const figure = device().memory, layers = figure.layers[memory.split];
  const rows = layers.names
    .map((name, i) => ({ name, color: layers.colors[i], bytes: layers.bytes[i][sample] }))
    .filter((row) => row.bytes > 0 && !memory.hidden.has(row.name))
    .sort((a, b) => b.bytes - a.bytes)
    .map((row) => ({ ...row, value: formatBytes(row.bytes) }));
  rows.unshift(
    { name: "reserved", value: formatBytes(figure.reserved[sample]) },
    { name: "allocated", value: formatBytes(figure.allocated[sample]) },
  );
  const when = figure.time_us.length ? formatTime(figure.time_us[sample]) : "";
  const title = [when, `event ${formatCount(figure.event[sample])}`].filter(Boolean).join(" · ");
  const notes = [];
  const step = figure.steps.find((mark) => (
    mark.start_event <= figure.event[sample] && figure.event[sample] <= mark.end_event));
  const band = figure.phases.find(({ first, last }) => first <= sample && sample <= last);
  const during = [step ? `in step ${step.last}` : "", band ? page.data.phases[band.phase] : ""];
  if (during.some(Boolean)) notes.push(during.filter(Boolean).join(", "));
  if (figure.action[sample] >= 0) {
    notes.push(`${happening(figure, sample)} at ${siteOf(figure.stack[sample])}`);
  }
  return [title, rows, notes];
}

page.figures.push(drawMemory);
