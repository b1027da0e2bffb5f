// Bytes, counts, times and Plotly's labels as text; the same words as on the command line.
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Rounded as Python's format() rounds: ties, which binary units have many of, to the even digit. */
function fixed(value, digits) {
  if (Math.abs(value * 2 ** (digits + 1)) % 2 !== 1) return value.toFixed(digits);
  const below = Math.floor(value * 10 ** digits);
  return ((below % 2 ? below + 1 : below) / 10 ** digits).toFixed(digits);
}

function threeDigits(value) {
  if (Number.isInteger(value) && value < 1000) return String(value);
  return fixed(value, value >= 100 ? 0 : value >= 10 ? 1 : 2);
}

function formatBytes(bytes) {
  let value = Math.abs(bytes), unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) { value /= 1024; unit += 1; }
  return `${bytes < 0 ? "-" : ""}${threeDigits(value)} ${UNITS[unit]}`;
}

const formatCount = (count) => count.toLocaleString("en-US");

function formatPercent(part, whole) {
  const share = whole ? 100 * part / whole : 0;
  if (share > 0 && share < 0.1) return "< 0.1 %";
  return `${share > 0 && share < 1 ? fixed(share, 1) : fixed(share, 0)} %`;
}

/** Microseconds since the run's origin. */
function formatTime(us) {
  const value = Math.abs(us), sign = us < 0 ? "-" : "";
  if (value < 999.5) return `${sign}${value.toFixed(0)} µs`;
  if (value < 999500) return `${sign}${threeDigits(value / 1e3)} ms`;
  if (value < 119.5e6) return `${sign}${(value / 1e6).toFixed(3)} s`;
  const seconds = Math.round(value / 1e6), two = (n) => String(n).padStart(2, "0");
  const clock = `${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)}`;
  return `${sign}${Math.floor(seconds / 3600)}:${clock}`;
}

const address = (value) => "0x" + value.toString(16);

/** Plotly reads a little HTML in what it draws; names are text. */
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

/** The unit that fits the largest of some bytes: Plotly then shows plain numbers. */
function byteUnit(most) {
  let unit = 0;
  while (most >= 1024 && unit < UNITS.length - 1) { most /= 1024; unit += 1; }
  return { factor: 1024 ** unit, name: UNITS[unit] };
}

/** A byte axis: round ticks in binary units from zero to `most`. */
function byteAxis(most, title, more = {}) {
  const top = Math.max(most, 1) * 1.04;
  const step = niceStep(top / 5);
  const values = [];
  for (let value = 0; value <= top; value += step) values.push(value);
  return {
    range: [0, top], tickvals: values, ticktext: values.map(formatBytes),
    title: { text: title, font: { size: 11 }, standoff: 6 }, ...more,
  };
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 128, 256, 512, 1024];

/** The least step of at least some bytes that reads well in its binary unit. */
function niceStep(bytes) {
  const unit = byteUnit(bytes).factor;
  return STEPS.find((step) => step * unit >= bytes) * unit;
}

/** A time axis: the unit that fits its span, as a divisor of microseconds. */
function timeUnit(us) {
  if (us < 2000) return { factor: 1, name: "µs" };
  if (us < 2e6) return { factor: 1e3, name: "ms" };
  if (us < 600e6) return { factor: 1e6, name: "s" };
  if (us < 5400e6) return { factor: 60e6, name: "min" };
  return { factor: 3600e6, name: "h" };
}
