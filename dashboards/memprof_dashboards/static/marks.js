// What is marked in the chart of memory over time: phases, the ends of steps, out-of-memories.
function phaseStrip(figure, axis) {
  const byPhase = new Map();
  for (const band of figure.phases) {
    const at = byPhase.get(band.phase) || byPhase.set(band.phase, { x: [], y: [] }).get(band.phase);
    const [a, b] = [axis.x[band.first], axis.x[band.last]];
    at.x.push(a, b, b, a, null);
    at.y.push(0, 0, 1, 1, null);
  }
  return [...byPhase].map(([phase, at]) => ({
    ...at, type: "scatter", mode: "lines", fill: "toself", yaxis: "y2", hoverinfo: "skip",
    fillcolor: page.data.phase_colors[phase], line: { width: 0 }, name: page.data.phases[phase],
  }));
}

function oomMarks(figure, axis) {
  if (!figure.ooms.length) return [];
  return [{
    x: figure.ooms.map((oom) => axis.x[oom.sample]),
    y: figure.ooms.map((oom) => figure.reserved[oom.sample]),
    type: "scatter", mode: "markers", name: "out of memory", hoverinfo: "none", cliponaxis: false,
    marker: { symbol: "x", size: 11, color: ink().danger, line: { width: 1, color: ink().paper } },
  }];
}

/** Lines where steps end, thinned to those that can be told apart. */
function stepShapes(figure, axis, range) {
  const at = (mark, side) => (axis.timed
    ? (mark[side + "_us"] < 0 ? null : mark[side + "_us"] / axis.factor)
    : (mark[side + "_event"] < 0 ? null : mark[side + "_event"]));
  const marks = figure.steps
    .map((mark) => ({ mark, start: at(mark, "start"), end: at(mark, "end") }))
    .filter(({ end }) => end !== null && end >= range[0] && end <= range[1]);
  const colors = ink(), width = range[1] - range[0];
  const shapes = [], notes = [];
  const pixels = Math.max(section("memory").chart.clientWidth - GUTTER, 100);
  let line = -Infinity, label = -Infinity;
  marks.forEach(({ mark, start, end }) => {
    if (end - line >= width / 50) {
      line = end;
      shapes.push({
        type: "line", x0: end, x1: end, yref: "paper", y0: 0, y1: 0.95, name: `step ${mark.last}`,
        opacity: marks.length > 30 ? 0.35 : 0.8, line: { width: 1, dash: "dot", color: colors.quiet },
      });
    }
    const text = mark.first === mark.last ? `step ${mark.last}` : `steps ${mark.first}–${mark.last}`;
    const middle = ((start === null ? end : Math.max(start, range[0])) + end) / 2;
    if (middle >= label) {
      label = middle + (width / pixels) * 7 * (text.length + 1);
      notes.push({
        x: middle, y: 0.995, yref: "paper", yanchor: "bottom", showarrow: false, text,
        font: { size: 10.5, color: colors.quiet },
      });
    }
  });
  return { shapes, notes };
}

function phaseNotes(figure, axis, range) {
  const width = range[1] - range[0];
  return figure.phases
    .map((band) => {
      const a = Math.max(axis.x[band.first], range[0]), b = Math.min(axis.x[band.last], range[1]);
      return { a, b, name: page.data.phases[band.phase] };
    })
    .filter(({ a, b }) => b - a > 0.075 * width)
    .map(({ a, b, name }) => ({
      x: (a + b) / 2, y: 0.5, yref: "y2", text: name, showarrow: false,
      font: { size: 10, color: "#1b232c" },
    }));
}
