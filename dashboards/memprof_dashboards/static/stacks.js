// A stack as a list: the user's frames stand out, the libraries' fold away.
const USER = 5;
const ACTIONS = [
  "alloc", "free requested", "free completed", "segment alloc", "segment free",
  "segment map", "segment unmap", "snapshot", "out of memory", "other",
];

const shortPath = (path) => path.replace(/\\/g, "/").split("/").slice(-2).join("/");

const framesOf = (number) => {
  const table = run().stacks;
  return table.stacks[number].map((index) => table.frames[index]);
};

const siteOf = (number) => run().stacks.sites[number];

/** Draw a stack into an element, with a heading and a close button. */
function showStack(where, heading, number) {
  const box = element("div", "stack-panel");
  const head = element("header");
  const close = element("button", "close", "Close");
  close.type = "button";
  close.addEventListener("click", () => where.replaceChildren());
  head.append(element("strong", "", heading), close);
  const list = element("ol");
  const frames = framesOf(number);
  for (const [name, path, line, kind] of frames) {
    const item = element("li", kind === USER ? "own" : "library");
    const place = element("span", "place", kind === 1 && !line ? "" : `${shortPath(path)}:${line}`);
    place.title = path;
    item.append(element("b", "", name), " ", place);
    list.append(item);
  }
  box.append(head, frames.length ? list : element("p", "nothing", "No stack was recorded."));
  const folded = frames.filter((frame) => frame[3] !== USER).length;
  if (folded && folded < frames.length) {
    list.classList.add("folded");
    const more = toggle(`Show ${folded} library frames`, false, () => {
      list.classList.toggle("folded");
      const open = !list.classList.contains("folded");
      more.setAttribute("aria-pressed", String(open));
    });
    head.insertBefore(more, close);
  }
  where.replaceChildren(box);
}
