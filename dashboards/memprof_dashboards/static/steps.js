// A bar per step: its peak, what stayed at its end, and what was reserved.
function drawSteps() {
  const parts = section("steps");
  const steps = device().steps;
  parts.root.hidden = !steps;
  if (!steps) return;
  clean(parts);
  const colors = ink();
  const middle = steps.first.map((first, i) => (first + steps.last[i]) / 2);
  const width = steps.first.map((first, i) => Math.max((steps.last[i] - first + 1) * 0.82, 0.5));
  const known = (values) => values.map((value) => (value < 0 ? null : value));
  const bar = (name, values, color, share) => ({
    type: "bar", x: middle, y: known(values), width: width.map((w) => w * share), name,
    marker: { color, line: { width: 0 } }, hoverinfo: "none",
  });
  const traces = [
    bar("peak of the step", steps.peak_allocated, stepColors(steps).peak, 1),
    bar("allocated at its end", steps.allocated, stepColors(steps).end, 1),
    {
      type: "scatter", mode: middle.length > 60 ? "lines" : "lines+markers", x: middle,
      y: known(steps.peak_reserved.map((v, i) => Math.max(v, steps.reserved[i]))),
      name: "reserved", hoverinfo: "none",
      line: { width: 1.6, color: colors.strong, shape: "hvh" },
      marker: { size: 5, color: colors.strong },
    },
  ];
  const most = Math.max(...steps.peak_allocated, ...steps.allocated, ...steps.peak_reserved,
    ...steps.reserved);
  const only = middle.length < 2 ? { range: [middle[0] - 2, middle[0] + 2] } : {};
  Plotly.react(parts.chart, traces, layout(280, {
    barmode: "overlay", hovermode: "x", hoverdistance: 80, uirevision: `${page.run}/${page.device}`,
    xaxis: { title: { text: "step", font: { size: 11 }, standoff: 6 }, tickformat: ",d", ...integerTicks(middle), ...only },
    yaxis: byteAxis(most, ""),
  }), config);
  legend(parts, [
    { name: "peak of the step", color: stepColors(steps).peak },
    { name: "allocated at its end", color: stepColors(steps).end },
    { name: "reserved", color: colors.strong, className: "line" },
  ]);
  parts.controls.replaceChildren();
  if (!parts.chart.dataset.wired) wireSteps(parts);
}

const stepColors = () => ({ peak: variable("--peak"), end: variable("--accent") });

const integerTicks = (middle) => (middle.length <= 24 ? { dtick: 1, tick0: 0 } : { nticks: 12 });

/** Title, rows and notes about a row of steps. */
function stepTip(i) {
  const steps = device().steps, colors = stepColors();
  const value = (bytes) => (bytes < 0 ? "not measured" : formatBytes(bytes));
  const name = steps.first[i] === steps.last[i]
    ? `step ${steps.last[i]}` : `steps ${steps.first[i]} to ${steps.last[i]}`;
  const timed = steps.end_us[i] >= 0 && steps.start_us[i] >= 0;
  return [name, [
    { name: "peak of the step", value: value(steps.peak_allocated[i]), color: colors.peak },
    { name: "allocated at its end", value: value(steps.allocated[i]), color: colors.end },
    { name: "reserved at its end", value: value(steps.reserved[i]), color: ink().strong },
    { name: "most reserved", value: value(steps.peak_reserved[i]) },
  ], [
    ...(timed ? [`took ${formatTime(steps.end_us[i] - steps.start_us[i])}`] : []),
    steps.traced[i] ? "every allocation recorded" : "counters only",
  ]];
}

function wireSteps(parts) {
  const chart = parts.chart;
  chart.dataset.wired = "yes";
  chart.on("plotly_hover", ({ event, points }) => tip(event, ...stepTip(points[0].pointIndex)));
  chart.on("plotly_unhover", untip);
}

page.figures.push(drawSteps);
