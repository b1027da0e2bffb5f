// What was alive: an icicle by module or by stack, and a table of the largest sites.
const owned = { moment: "peak", tree: null, all: false, level: 0 };
const ROW_HEIGHT = 26;
const DEEPEST = 40;
const LETTER = 7.2;          // pixels, of the widest usual letters
const MOMENTS = [["peak", "At the peak"], ["end", "At the end"]];

/** A choice between the peak and the end; none where the recording has one state only. */
function momentChoice(moments, current, pick) {
  const known = MOMENTS.filter(([name]) => moments[name]);
  return known.length > 1 ? [choice("Moment", known, current, pick)] : [];
}

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
  if (!moments.end) {
    say(parts, "No allocation and no block is known for this device.");
    return;
  }
  const figure = moments[owned.moment] || moments.end;
  if (!figure.allocated) {
    say(parts, "Nothing was alive at this moment.");
    ownersControls(parts, moments, figure);
    return;
  }
  clean(parts);
  const tree = ownersTree(figure);
  ownersControls(parts, moments, figure);
  if (owned.level >= tree.bytes.length) owned.level = 0;
  const rows = treeDepth(tree, owned.level) + (owned.level ? 1 : 0);
  Plotly.react(parts.chart, [icicle(tree, parts.chart.clientWidth)], layout(rows * ROW_HEIGHT + 4, {
    margin: { l: 0, r: 0, t: 2, b: 0 }, uniformtext: { minsize: 11, mode: "hide" },
  }), { ...config, displayModeBar: false });
  if (!parts.chart.dataset.wired) wireOwners(parts);
  legend(parts, tree.parts[0].map(([c, bytes]) => ({
    name: page.data.categories[c], color: page.data.category_colors[c], value: formatBytes(bytes),
  })));
  const when = figure.time_us >= 0 ? `${formatTime(figure.time_us)}, ` : "";
  const among = device().memory && device().memory.windows.length > 1 && owned.moment === "peak"
    ? ", the most in a recorded window" : "";
  const where = device().memory ? ` (${when}event ${formatCount(figure.event)})` : "";
  parts.lead.textContent = `${formatBytes(figure.allocated)} in use${where}${among}. Width is bytes, colour is the category with the most of them. `
    + "Click a box to look into it.";
  siteTable(parts, figure);
}

/** How many rows the branch of a node has; a parent comes before its children. */
function treeDepth(tree, level) {
  const depth = tree.parent.map(() => 0);
  depth[level] = 1;
  for (let i = level + 1; i < tree.parent.length; i += 1) {
    if (depth[tree.parent[i]]) depth[i] = depth[tree.parent[i]] + 1;
  }
  return Math.min(depth.reduce((a, b) => Math.max(a, b), 1), DEEPEST);
}

function icicle(tree, width) {
  const font = tree.category.map((c) => onColor(page.data.category_colors[c]));
  const room = width / Math.max(tree.bytes[owned.level], 1);
  return {
    type: "icicle", ids: tree.label.map((_, i) => String(i)), labels: tree.label.map(plain),
    parents: tree.parent.map((p) => (p < 0 ? "" : String(p))),
    values: tree.bytes, branchvalues: "total", sort: true, level: String(owned.level),
    tiling: { orientation: "v", flip: "", pad: 1 }, maxdepth: DEEPEST,
    pathbar: { visible: true, thickness: ROW_HEIGHT - 3, side: "top", edgeshape: "|" },
    marker: {
      colors: tree.category.map((c, i) => shade(page.data.category_colors[c], tree.label[i])),
      line: { width: 0.5, color: ink().paper },
    },
    leaf: { opacity: 1 }, hoverinfo: "none", textposition: "middle left",
    text: tree.label.map((label, i) => plain(fitted(label, tree.bytes[i], tree.bytes[i] * room))),
    texttemplate: "%{text}",
    insidetextfont: { color: font, size: 12 }, outsidetextfont: { color: font, size: 12 },
  };
}

/** As much of a name, and of its bytes, as fits into a box. */
function fitted(label, bytes, pixels) {
  const room = Math.floor((Math.min(pixels, 4000) - 8) / LETTER), size = formatBytes(bytes);
  if (room < 3) return "";
  if (label.length + size.length + 2 <= room) return `${label}  ${size}`;
  if (label.length <= room) return label;
  return `${label.slice(0, room - 1)}…`;
}

/** A colour a little lighter or darker by name, so that neighbours of one category differ. */
function shade(hex, name) {
  let hash = 0;
  for (let i = 0; i < name.length; i += 1) hash = (hash * 31 + name.charCodeAt(i)) % 997;
  const by = (hash / 997 - 0.35) * 0.3, to = by > 0 ? 255 : 0;
  const mixed = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16))
    .map((v) => Math.round(v + (to - v) * Math.abs(by)).toString(16).padStart(2, "0"));
  return `#${mixed.join("")}`;
}

/** Black or white, whichever is easier to read on a colour. */
function onColor(hex) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? "#12181f" : "#ffffff";
}

function ownersControls(parts, moments, figure) {
  const items = [...momentChoice(moments, owned.moment,
    (moment) => { Object.assign(owned, { moment, level: 0 }); drawOwners(); })];
  if (figure.trees.module) {
    items.push(choice("Tree", [["module", "By module"], ["stack", "By stack"]], owned.tree,
      (tree) => { Object.assign(owned, { tree, level: 0 }); drawOwners(); }));
  }
  if (owned.tree === "stack") {
    items.push(toggle("Library frames", owned.all, (all) => { Object.assign(owned, { all, level: 0 }); drawOwners(); }));
  }
  parts.controls.replaceChildren(...items);
}

function wireOwners(parts) {
  const chart = parts.chart;
  chart.dataset.wired = "yes";
  chart.on("plotly_hover", ({ event, points }) => {
    const figure = device().owners[owned.moment] || device().owners.end;
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
  chart.on("plotly_icicleclick", ({ points }) => {
    untip();
    const tree = ownersTree(device().owners[owned.moment] || device().owners.end);
    const node = Number(points[0].id);
    // A click on the box that fills the chart goes back out, as a second click would be meant.
    owned.level = node === owned.level ? Math.max(tree.parent[node], 0) : node;
    setTimeout(drawOwners);
    return false;
  });
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
