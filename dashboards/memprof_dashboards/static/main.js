// The page about runs: its switches; all is drawn again when the run or the device changes.
function drawAll() {
  const bare = !device();
  for (const root of document.querySelectorAll("section.figure")) root.hidden = bare;
  if (!bare) for (const draw of page.figures) draw();
  drawLinks();
}

/** Show the words of the chosen run and device, and hide those of the others. */
function choose(runNumber, deviceNumber) {
  Object.assign(page, { run: runNumber, device: deviceNumber });
  Object.assign(memory, { range: null, split: null, hidden: new Set() });
  Object.assign(owned, { level: 0 });
  for (const node of document.querySelectorAll("[data-run]")) {
    const other = Number(node.dataset.run) !== page.run;
    node.hidden = other || (node.dataset.device !== undefined
      && Number(node.dataset.device) !== page.device);
  }
  for (const parts of ["memory", "owners", "segments"].map(section)) parts.below.replaceChildren();
  drawAll();
}

function drawLinks() {
  const links = document.querySelector(".links");
  const sections = [...document.querySelectorAll("section.figure")].filter((s) => !s.hidden);
  links.replaceChildren(...sections.map((s) => {
    const link = element("a", "", s.querySelector("h2").textContent);
    link.href = "#" + s.id;
    return link;
  }));
}

function wireSwitches() {
  const runs = document.getElementById("run");
  const devices = document.querySelectorAll("select.device");
  if (runs) {
    runs.addEventListener("change", () => {
      page.run = runs.selectedIndex;
      chooseBusiest();
    });
  }
  devices.forEach((select) => {
    select.addEventListener("change", () => choose(page.run, select.selectedIndex));
  });
}

/** The device with the highest peak is what a reader came for. */
function chooseBusiest() {
  const first = busiest();
  document.querySelectorAll(`label[data-run="${page.run}"] select.device`)
    .forEach((select) => { select.selectedIndex = first; });
  choose(page.run, first);
}

function busiest() {
  const peaks = run().devices.map((d) => (d.memory ? d.memory.allocated[d.memory.peak_sample]
    : d.owners.end ? d.owners.end.allocated : 0));
  return Math.max(0, peaks.indexOf(Math.max(...peaks)));
}

start(() => {
  wireSwitches();
  wireTheme(drawAll);
  chooseBusiest();
});
