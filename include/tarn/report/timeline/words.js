// SPDX-License-Identifier: Apache-2.0
// Formats bytes, times, addresses and names, and assigns colours to tags.

// ---- words
const grouped = (n) => Math.round(n).toLocaleString('en-US');
const inBytes = (n) => {
  const sign = n < 0 ? '-' : '';
  let value = Math.abs(n), at = 0;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    ++at;
  }
  if (at < units.length - 1 && Number(value.toPrecision(value >= 1000 ? 4 : 3)) >= 1024) {
    value /= 1024;
    ++at;
  }
  const digits = at === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${sign}${value.toFixed(digits).replace(/(\.\d*?)0+$/, '$1').replace(/\.$/, '')} ${units[at]}`;
};
const inTime = (ns, resolution = ns / 1000) => {
  const units = [[60e9, 'min'], [1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']];
  const [size, name] = units.find(([s]) => Math.abs(ns) >= s) || units[4];
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(Math.max(resolution, 1) / size) - 1e-9)));
  return `${(ns / size).toFixed(digits)} ${name}`;
};
const percent = (part, of) => {
  const share = of > 0 ? part / of : 0;
  if (share > 0 && share < 0.0005) return '< 0.1 %';
  return `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %`;
};
const counted = (n, one, many = one + 's') => `${grouped(n)} ${n === 1 ? one : many}`;
const base = BigInt(info.base);
const addressText = (distance) => distance === none ? '' : '0x' + (base + BigInt(distance)).toString(16);
const streamText = (index) => {
  const id = info.streams[index] ?? '0';
  return id !== '0' && id === info.nullStream ? `${id} (default)` : id;
};
const tagText = (tag) => info.tags[tag]?.name || 'untagged';
const fileName = (path) => path.split(/[\\/]/).pop();
const locationText = (location) => {
  const frame = info.locations[location]?.[0];
  if (!frame) return 'location unknown';
  const [file, line, name] = frame;
  return file ? `${fileName(file)}:${line}${name ? ' ' + name : ''}` : name;
};
// Shortens names, which may have any length, for lines of text.
const brief = (text, most = 64) => text.length > most ? text.slice(0, most - 1) + '…' : text;
const usesCalls = info.clock === 'calls';
const momentText = (time, state) => usesCalls ? `call ${grouped(time)}` :
  model.knowsCalls ? `${inTime(time)}, call ${grouped(model.calls[state])}` : inTime(time);

const make = (name, attributes = {}, ...children) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'on') for (const [event, f] of Object.entries(value)) node.addEventListener(event, f);
    else if (key === 'color') node.style.background = value;
    else if (value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
};

// ---- colours, by their names in the style sheet
const colorsOf = () => {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(name).trim();
  return {
    ink: get('--ink'), soft: get('--soft'), line: get('--line'), surface: get('--surface'), live: get('--live'),
    liveFill: get('--live-fill'), liveFaint: get('--live-faint'), reserved: get('--reserved'),
    requested: get('--requested'), cached: get('--cached'), deferred: get('--deferred'), focus: get('--focus'),
    series: [0, 1, 2, 3, 4, 5, 6, 7].map((i) => get(`--c${i}`)), other: get('--other'),
    sizes: [0, 1, 2, 3, 4, 5, 6].map((i) => get(`--s${i}`)),
  };
};
let colors = colorsOf();
const font = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

// Sizes a canvas to its position on the page, in device pixels, and clears it.
const fit = (canvas, width, height) => {
  const ratio = window.devicePixelRatio || 1;
  const w = Math.max(1, Math.round(width * ratio)), h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w) canvas.width = w;
  if (canvas.height !== h) canvas.height = h;
  const pen = canvas.getContext('2d');
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = font;
  return pen;
};
const afterFrame = (draw) => {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
};

const model = makeModel();
const {shapes, events} = model;

// ---- tags by their bytes at the peak: the first ones have their own colour, the others share one
const palette = 8;
const bytesAtPeak = new Float64Array(Math.max(1, info.tags.length));
model.eachLive(model.peak, (shape) => { bytesAtPeak[shapes.tag[shape]] += shapes.bytes[shape]; });
const ranked = [...bytesAtPeak.keys()].sort((a, b) => bytesAtPeak[b] - bytesAtPeak[a] ||
  (info.tags[b]?.peak ?? 0) - (info.tags[a]?.peak ?? 0));
const seenTags = ranked.filter((tag) => bytesAtPeak[tag] > 0 || info.tags[tag]?.peak > 0);
const coloredTags = seenTags.slice(0, seenTags.length > palette ? palette - 1 : palette);
const slotOfTag = new Uint8Array(bytesAtPeak.length).fill(palette);
coloredTags.forEach((tag, slot) => { slotOfTag[tag] = slot; });
const slots = palette + 1;
const slotColor = (slot) => slot < palette ? colors.series[slot] : colors.other;
