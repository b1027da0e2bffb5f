// The map of segments and blocks: addresses run along rows, like text; gaps between segments close up.
const mapped = { moment: "peak", geometry: null };
const MAP_ROWS = 28;
const MAP_ROW_HEIGHT = 15;
const PENDING = -1, MIXED = -2;

const blockColor = (category) => (category === PENDING ? variable("--pending")
  : category === MIXED ? variable("--mixed") : page.data.category_colors[category]);

const blockName = (category) => (category === PENDING ? "waits for a stream"
  : category === MIXED ? "several small blocks" : page.data.categories[category]);

/** Where each segment lies on the map: the sum of the sizes before it. */
function mapGeometry(map) {
  const at = [];
  let total = 0;
  for (const size of map.segment_size) { at.push(total); total += size; }
  const rows = Math.max(1, Math.min(MAP_ROWS, Math.ceil(total / (2 << 20))));
  const width = Math.ceil(total / rows / 4096) * 4096 || 4096;
  return { map, at, total, width, rows: Math.ceil(total / width) };
}

/** Polygons of the pieces that a stretch of the map falls into, one a row. */
function addStretch(into, geometry, start, size, inset) {
  const { width } = geometry;
  let from = start;
  while (from < start + size) {
    const row = Math.floor(from / width), to = Math.min(start + size, (row + 1) * width);
    const a = from - row * width, b = to - row * width;
    into.x.push(a, b, b, a, a, null);
    into.y.push(row + inset, row + inset, row + 1 - inset, row + 1 - inset, row + inset, null);
    from = to;
  }
}

function segmentTraces(geometry) {
  const { map, at } = geometry;
  const free = { x: [], y: [] }, kinds = new Map();
  map.segment_size.forEach((size, i) => addStretch(free, geometry, at[i], size, 0.06));
  map.block_address.forEach((where, i) => {
    const segment = segmentOf(map, where);
    if (segment < 0) return;
    const category = map.block_category[i];
    if (!kinds.has(category)) kinds.set(category, { x: [], y: [] });
    const start = at[segment] + where - map.segment_address[segment];
    addStretch(kinds.get(category), geometry, start, map.block_size[i], 0.06);
  });
  const polygons = (points, color, name) => ({
    ...points, type: "scatter", mode: "lines", fill: "toself", name,
    fillcolor: color, line: { width: 0.4, color: variable("--panel") }, hoverinfo: "skip",
  });
  return [
    polygons(free, variable("--free"), "free"),
    ...[...kinds].map(([category, points]) => polygons(points, blockColor(category), blockName(category))),
    segmentEdges(geometry),
  ];
}

/** A tick where each segment begins. */
function segmentEdges(geometry) {
  const points = { x: [], y: [] };
  for (const start of geometry.at) {
    const row = Math.floor(start / geometry.width), x = start - row * geometry.width;
    points.x.push(x, x, null);
    points.y.push(row, row + 1, null);
  }
  return {
    ...points, type: "scatter", mode: "lines", hoverinfo: "skip", name: "segment",
    line: { width: geometry.at.length > 400 ? 0.5 : 1, color: ink().strong },
  };
}

/** The segment that holds an address, or -1. */
function segmentOf(map, where) {
  let low = 0, high = map.segment_address.length - 1, found = -1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (map.segment_address[middle] <= where) { found = middle; low = middle + 1; } else high = middle - 1;
  }
  return found >= 0 && where < map.segment_address[found] + map.segment_size[found] ? found : -1;
}

function drawSegments() {
  const parts = section("segments");
  const maps = device().segments;
  parts.root.hidden = !maps.end;
  if (!maps.end) return;
  clean(parts);
  const map = maps[mapped.moment] || maps.end;
  const geometry = mapped.geometry = mapGeometry(map);
  Plotly.react(parts.chart, segmentTraces(geometry), layout(geometry.rows * MAP_ROW_HEIGHT + 68, {
    margin: { l: 8, r: 12, t: 30, b: 8 },
    uirevision: `${page.run}/${page.device}/${mapped.moment}`,
    hovermode: false,
    xaxis: {
      ...byteAxis(geometry.width, ""), range: [0, geometry.width],
      title: { text: `each row is ${formatBytes(geometry.width)} of reserved memory`, font: { size: 11 } },
    },
    yaxis: { range: [geometry.rows, 0], showgrid: false, zeroline: false, visible: false, fixedrange: false },
  }), zoomable());
  parts.controls.replaceChildren(...momentChoice(maps, map === maps.peak ? "peak" : "end", (moment) => { mapped.moment = moment; drawSegments(); }));
  segmentLegend(parts, map);
  if (!parts.chart.dataset.wired) wireSegments(parts);
}

function segmentLegend(parts, map) {
  const sums = new Map();
  map.block_category.forEach((category, i) => {
    sums.set(category, (sums.get(category) || 0) + map.block_size[i]);
  });
  const used = [...sums.values()].reduce((a, b) => a + b, 0);
  const entries = [...sums].sort((a, b) => b[1] - a[1]).map(([category, bytes]) => ({
    name: blockName(category), color: blockColor(category), value: formatBytes(bytes),
  }));
  entries.push({ name: "free", color: variable("--free"), value: formatBytes(Math.max(map.reserved - used, 0)) });
  legend(parts, entries);
  const count = map.segment_size.length;
  parts.lead.textContent = `${formatBytes(map.reserved)} in ${formatCount(count)} `
    + `${count === 1 ? "segment" : "segments"} and ${formatCount(map.block_address.length)} blocks in use`
    + `${device().modelled ? ", laid out by the allocator model" : ""}. Segments follow one another by `
    + "address, a dark line where each begins. Drag to zoom, double-click to go back; click a block for its stack.";
}

/** What lies under the pointer: the segment and, where it is in use, the block. */
function underPointer(chart, event) {
  const full = chart._fullLayout, box = chart.getBoundingClientRect();
  if (!full || !mapped.geometry) return null;
  const x = full.xaxis.p2d(event.clientX - box.left - full.xaxis._offset);
  const y = full.yaxis.p2d(event.clientY - box.top - full.yaxis._offset);
  const { map, at, total, width } = mapped.geometry;
  if (x < 0 || x >= width || y < 0) return null;
  const where = Math.floor(y) * width + x;
  if (where >= total) return null;
  let segment = 0;
  for (let low = 0, high = at.length - 1; low <= high;) {
    const middle = (low + high) >> 1;
    if (at[middle] <= where) { segment = middle; low = middle + 1; } else high = middle - 1;
  }
  const place = map.segment_address[segment] + where - at[segment];
  return { segment, place, block: blockAt(map, place) };
}

function blockAt(map, place) {
  let low = 0, high = map.block_address.length - 1, found = -1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (map.block_address[middle] <= place) { found = middle; low = middle + 1; } else high = middle - 1;
  }
  return found >= 0 && place < map.block_address[found] + map.block_size[found] ? found : -1;
}

function segmentTip(event, { segment, place, block }) {
  const { map } = mapped.geometry;
  const about = [
    `segment ${address(map.segment_address[segment])}, ${formatBytes(map.segment_size[segment])}`
    + (map.segment_expandable[segment] ? ", expandable" : "")
    + (map.segment_stream[segment] ? `, stream ${map.segment_stream[segment]}` : ""),
  ];
  if (block < 0) {
    tip(event, `free at ${address(Math.floor(place))}`, [
      { name: "free here", color: variable("--free"), value: formatBytes(freeAround(map, segment, place)) },
    ], about);
    return;
  }
  const count = map.block_count[block];
  tip(event, `block at ${address(map.block_address[block])}`, [
    { name: blockName(map.block_category[block]), color: blockColor(map.block_category[block]), value: formatBytes(map.block_size[block]) },
    { name: "requested", value: formatBytes(map.block_requested[block]) },
  ], [...(count > 1 ? [`${formatCount(count)} blocks drawn as one`] : [siteOf(map.block_stack[block])]), ...about]);
}

/** Bytes of the free stretch around a place of a segment. */
function freeAround(map, segment, place) {
  let low = map.segment_address[segment], high = low + map.segment_size[segment];
  for (let i = 0; i < map.block_address.length; i += 1) {
    const start = map.block_address[i], end = start + map.block_size[i];
    if (end <= place && end > low) low = end;
    if (start > place) { high = Math.min(high, start); break; }
  }
  return high - low;
}

function wireSegments(parts) {
  const chart = parts.chart;
  chart.dataset.wired = "yes";
  chart.addEventListener("mousemove", (event) => {
    const found = underPointer(chart, event);
    if (found) segmentTip(event, found); else untip();
  });
  chart.addEventListener("mouseleave", untip);
  chart.addEventListener("click", (event) => {
    const found = underPointer(chart, event);
    if (!found || found.block < 0) return;
    const { map } = mapped.geometry;
    if (map.block_count[found.block] > 1) return;
    showStack(parts.below, `block of ${formatBytes(map.block_size[found.block])} at ${address(map.block_address[found.block])}`,
      map.block_stack[found.block]);
  });
}

page.figures.push(drawSegments);
