// What was alive: an icicle by module or by stack, and a table of the largest sites.
const owned = { moment: "peak", tree: null, all: false };
const ROW_HEIGHT = 27;
const MOMENTS = [["peak", "At the peak"], ["end", "At the end"]];

/** The tree that the controls ask for, or the best there is. */
function ownersTree(figure) {
  if (owned.tree === null || !figure.trees[owned.tree]) {
    owned.tree = figure.trees.module ? "module" : "stack";
  }
  return figure.trees[owned.tree === "stack" && owned.all ? "frames" : owned.tree];
}

function drawOwners() {
  const parts = section("owners");
  const moments = device().owners;
  if (!moments.peak) {
    say(parts, "No allocation and no block is known for this device.");
    return;
  }
  const figure = moments[owned.moment] || moments.peak;
  if (!figure.allocated) {
    say(parts, "Nothing was alive at this moment.");
    ownersControls(parts, moments, figure);
    return;
  }
  clean(parts);
  const tree = ownersTree(figure);
  ownersControls(parts, moments, figure);
  const depth = treeDepth(tree);
  Plotly.react(parts.chart, [icicle(tree)], layout(depth * ROW_HEIGHT + 34, {
    margin: { l: 0, r: 0, t: 26, b: 0 },
  }), { ...config, displayModeBar: false });
  if (!parts.chart.dataset.wired) wireOwners(parts);
  const used = new Set(tree.category);
  legend(parts, [...used].sort((a, b) => a - b).map((c) => ({
    name: page.data.categories[c], color: page.data.category_colors[c],
    value: formatBytes(categoryTotal(tree, c)),
  })).filter((entry) => entry.value !== "0 B"));
  const when = figure.time_us >= 0 ? `${formatTime(figure.time_us)}, ` : "";
  parts.lead.textContent = `${formatBytes(figure.allocated)} in use (${when}event `
    + `${formatCount(figure.event)}). Width is bytes, colour is the category with the most of them. `
    + "Click a box to look into it.";
  siteTable(parts, figure);
}

function categoryTotal(tree, category) {
  const part = tree.parts[0].find(([c]) => c === category);
  return part ? part[1] : 0;
}

function treeDepth(tree) {
  const depth = [1];
  for (let i = 1; i < tree.parent.length; i += 1) depth[i] = depth[tree.parent[i]] + 1;
  return Math.min(Math.max(...depth), 24);
}

function icicle(tree) {
  const ids = tree.label.map((_, i) => String(i));
  return {
    type: "icicle", ids, labels: tree.label.map(plain),
    parents: tree.parent.map((p) => (p < 0 ? "" : String(p))),
    values: tree.bytes, branchvalues: "total", sort: true,
    tiling: { orientation: "v", flip: "", pad: 1 }, maxdepth: 24,
    pathbar: { visible: true, thickness: 22, side: "top", edgeshape: "|" },
    marker: {
      colors: tree.category.map((c) => page.data.category_colors[c]),
      line: { width: 0.5, color: ink().paper },
    },
    leaf: { opacity: 1 }, hoverinfo: "none",
    text: tree.bytes.map(formatBytes), texttemplate: "%{label}  %{text}",
    textposition: "middle left",
    insidetextfont: { color: tree.category.map((c) => onColor(page.data.category_colors[c])), size: 11.5 },
    pathbar_textfont: undefined,
  };
}

/** Black or white, whichever is easier to read on a colour. */
function onColor(hex) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? "#12181f" : "#ffffff";
}

function ownersControls(parts, moments, figure) {
  const items = [choice("Moment", MOMENTS.filter(([name]) => moments[name]), owned.moment,
    (moment) => { owned.moment = moment; drawOwners(); })];
  if (figure.trees.module) {
    items.push(choice("Tree", [["module", "By module"], ["stack", "By stack"]], owned.tree,
      (tree) => { owned.tree = tree; drawOwners(); }));
  }
  if (owned.tree === "stack") {
    items.push(toggle("Library frames", owned.all, (all) => { owned.all = all; drawOwners(); }));
  }
  parts.controls.replaceChildren(...items);
}

function wireOwners(parts) {
  const chart = parts.chart;
  chart.dataset.wired = "yes";
  chart.on("plotly_hover", ({ event, points }) => {
    const figure = device().owners[owned.moment] || device().owners.peak;
    const tree = ownersTree(figure), node = Number(points[0].id);
    if (!(node < tree.bytes.length)) return;
    const rows = tree.parts[node].map(([c, bytes]) => ({
      name: page.data.categories[c], color: page.data.category_colors[c], value: formatBytes(bytes),
    }));
    const share = formatPercent(tree.bytes[node], tree.bytes[0]);
    const count = tree.count[node];
    tip(event, tree.title[node], rows, [
      `${formatBytes(tree.bytes[node])}, ${share} of all, in ${formatCount(count)} `
      + (count === 1 ? "allocation" : "allocations"),
    ]);
  });
  chart.on("plotly_unhover", untip);
}

/** The largest sites as a table, for reading and for those who do not see the chart. */
function siteTable(parts, figure) {
  const table = element("table", "sites");
  const caption = table.createCaption();
  caption.textContent = figure.site_count > figure.sites.length
    ? `The largest ${figure.sites.length} of ${formatCount(figure.site_count)} sites` : "All sites";
  const head = table.createTHead().insertRow();
  for (const name of ["Bytes", "", "Share", "Count", "Site"]) {
    const cell = element("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  const body = table.createTBody(), most = figure.sites.length ? figure.sites[0].bytes : 1;
  const stack = element("div", "stack-place");
  for (const site of figure.sites) {
    const row = body.insertRow();
    row.insertCell().textContent = formatBytes(site.bytes);
    row.insertCell().append(partsBar(site, most));
    row.insertCell().textContent = formatPercent(site.bytes, figure.allocated);
    row.insertCell().textContent = formatCount(site.count);
    const button = element("button", "site", site.name);
    button.type = "button";
    button.title = "Show its stack";
    button.addEventListener("click", () => showStack(stack, site.name, site.stack));
    row.insertCell().append(button);
  }
  parts.below.replaceChildren(table, stack);
}

function partsBar(site, most) {
  const bar = element("span", "bar-cell");
  for (const [category, bytes] of site.parts) {
    const part = element("span");
    part.style.width = `${100 * bytes / most}%`;
    part.style.background = page.data.category_colors[category];
    part.title = `${page.data.categories[category]}: ${formatBytes(bytes)}`;
    bar.append(part);
  }
  return bar;
}

page.figures.push(drawOwners);
