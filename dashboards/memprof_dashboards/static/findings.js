// The small charts of the cards: live bytes of a finding's site at step ends.
function drawFindings() {
  document.querySelectorAll(`.run[data-run="${page.run}"] .spark`).forEach((chart) => {
    const series = run().findings[Number(chart.dataset.finding)];
    if (!series || series.steps.length < 2) return;
    const colors = ink();
    Plotly.react(chart, [{
      x: series.steps, y: series.bytes, type: "scatter", hoverinfo: "none",
      mode: series.steps.length > 80 ? "lines" : "lines+markers",
      line: { width: 2, color: colors.danger }, marker: { size: 4, color: colors.danger },
      fill: "tozeroy", fillcolor: colors.danger + "22",
    }], layout(170, {
      hovermode: "x", hoverdistance: 80,
      xaxis: { title: { text: "step", font: { size: 11 } }, tickformat: ",d", nticks: 6, fixedrange: true },
      yaxis: byteAxis(Math.max(...series.bytes), ""),
    }), { ...config, displayModeBar: false });
    if (chart.dataset.wired) return;
    chart.dataset.wired = "yes";
    chart.on("plotly_hover", ({ event, points }) => {
      const i = points[0].pointIndex;
      tip(event, `step ${series.steps[i]}`, [
        { name: "alive from this site", value: formatBytes(series.bytes[i]), color: ink().danger },
      ]);
    });
    chart.on("plotly_unhover", untip);
  });
}

page.figures.push(drawFindings);
