// SPDX-License-Identifier: Apache-2.0
// Draws the address map: all segments in sequence, wrapped into rows of equal bytes, as text is wrapped into lines.
// The length of a block is proportional to its bytes. Only visible rows are drawn.

// ---- the map
const map = byId('map'), scroller = byId('map-scroll'), spacer = byId('map-space'), mapReadout = byId('map-readout');
const {segments, blocks} = model;
const mapped = segments.reduce((sum, s) => sum + s.bytes, 0);
const rowHeight = 22, barHeight = 16, segmentGap = 3, mostMapHeight = 528;
const mapView = {color: 'use', scale: 0, width: 0, labels: 0, starts: new Float64Array(segments.length), rows: 0,
  selected: none, pointer: none};

const usedStreams = () => {
  const bytes = new Map();
  for (let b = 0; b < blocks.count; ++b) {
    if (blocks.use[b] === 2) continue;
    const stream = shapes.stream[blocks.shape[b]];
    bytes.set(stream, (bytes.get(stream) ?? 0) + shapes.bytes[blocks.shape[b]]);
  }
  return [...bytes].sort((a, b) => b[1] - a[1]);
};
const streamsByBytes = usedStreams();
const coloredStreams = streamsByBytes.slice(0, streamsByBytes.length > palette ? palette - 1 : palette).map(([s]) => s);
const slotOfStream = new Map(coloredStreams.map((s, slot) => [s, slot]));
const sizeLimits = [2 ** 12, 2 ** 16, 2 ** 20, 2 ** 24, 2 ** 28, 2 ** 30, Infinity];
const sizeSlot = (bytes) => sizeLimits.findIndex((limit) => bytes <= limit);
const useColor = (use) => use === 0 ? colors.live : use === 1 ? colors.deferred : colors.cached;

// The colour of a block that is not cached. Cached blocks have the colour of the background.
const mapColors = {
  use: (shape, use) => useColor(use),
  size: (shape) => colors.sizes[sizeSlot(shapes.bytes[shape])],
  stream: (shape) => slotColor(slotOfStream.get(shapes.stream[shape]) ?? palette),
  tag: (shape) => slotColor(slotOfTag[shapes.tag[shape]]),
};

const layOutMap = () => {
  const width = scroller.clientWidth;
  mapView.labels = width < 560 ? 0 : 124;
  mapView.width = Math.max(1, width - mapView.labels - 2);
  const gaps = segments.length * segmentGap;
  // The initial scale shows the whole map without scrolling, unless there are too many gaps.
  const rows = 22;
  const natural = mapped / Math.max(mapView.width, mapView.width * rows - gaps);
  const least = 2 ** Math.ceil(Math.log2(Math.max(1, natural)));
  mapView.perPixel = Math.max(1, least * 2 ** -mapView.scale);
  mapView.deepest = Math.max(0, Math.ceil(Math.log2(least / 64)));
  let at = 0;
  segments.forEach((s, i) => {
    mapView.starts[i] = at;
    at += Math.max(1, s.bytes / mapView.perPixel) + segmentGap;
  });
  mapView.rows = Math.max(1, Math.ceil(at / mapView.width));
  const whole = Math.min(mapView.rows * rowHeight, 16e6);
  spacer.style.height = `${whole}px`;
  scroller.style.height = `${Math.min(whole, mostMapHeight) + 2}px`;
  byId('map-scale').textContent = `One row is ${inBytes(mapView.perPixel * mapView.width)}`;
  byId('map-in').disabled = mapView.scale >= mapView.deepest;
  byId('map-out').disabled = mapView.scale <= 0;
};
const segmentAt = (pixel) => {
  let low = 0, high = segments.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (mapView.starts[middle] <= pixel) low = middle; else high = middle - 1;
  }
  return low;
};
const blockIn = (segment, address) => {
  let low = segment.first, high = segment.end - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (blocks.address[middle] <= address) low = middle; else high = middle - 1;
  }
  return segment.end > segment.first ? low : none;
};
const blockAtPixel = (pixel) => {
  if (segments.length === 0) return none;
  const i = segmentAt(pixel), s = segments[i];
  const inside = (pixel - mapView.starts[i]) * mapView.perPixel;
  return inside > s.bytes ? none : blockIn(s, s.address + inside);
};
const pixelOf = (b) => {
  const i = blocks.segment[b];
  return mapView.starts[i] + (blocks.address[b] - segments[i].address) / mapView.perPixel;
};
const widthOf = (b) => shapes.bytes[blocks.shape[b]] / mapView.perPixel;

const topOfRow = (row) => row * rowHeight - scroller.scrollTop;
// Calls `draw(x, y, width)` for each visible row that a range of pixels covers.
const eachRow = (from, to, firstRow, lastRow, draw) => {
  for (let row = Math.max(firstRow, Math.floor(from / mapView.width)); row <= lastRow; ++row) {
    const start = row * mapView.width;
    if (start >= to) break;
    const a = Math.max(from, start), b = Math.min(to, start + mapView.width);
    if (b > a) draw(mapView.labels + a - start, topOfRow(row) + (rowHeight - barHeight) / 2, b - a);
  }
};

const drawMap = () => {
  if (segments.length === 0) return;
  const began = performance.now();
  const width = scroller.clientWidth, height = scroller.clientHeight;
  map.style.height = `${height}px`;
  const pen = fit(map, width, height);
  const firstRow = Math.floor(scroller.scrollTop / rowHeight);
  const lastRow = Math.min(mapView.rows - 1, Math.ceil((scroller.scrollTop + height) / rowHeight));
  const from = firstRow * mapView.width, to = (lastRow + 1) * mapView.width;
  const colorOf = mapColors[mapView.color];
  for (let i = segmentAt(from); i < segments.length && mapView.starts[i] < to; ++i) {
    const s = segments[i], start = mapView.starts[i];
    pen.fillStyle = colors.cached;
    eachRow(start, start + Math.max(1, s.bytes / mapView.perPixel), firstRow, lastRow,
      (x, y, w) => pen.fillRect(x, y, w, barHeight));
    const first = blockIn(s, s.address + Math.max(0, from - start) * mapView.perPixel);
    if (first === none) continue;
    for (let b = first; b < s.end; ++b) {
      const at = pixelOf(b), wide = widthOf(b);
      if (at >= to) break;
      if (blocks.use[b] === 2) continue;
      pen.fillStyle = colorOf(blocks.shape[b], blocks.use[b]);
      // A block of several pixels ends with a gap, which separates it from its neighbour; smaller ones blend, weighted by
      // their bytes.
      eachRow(at, at + (wide > 4 ? wide - 1 : wide), firstRow, lastRow, (x, y, w) => pen.fillRect(x, y, w, barHeight));
    }
  }
  const outline = (b, color) => {
    const at = pixelOf(b);
    pen.strokeStyle = color;
    pen.lineWidth = 2;
    eachRow(at, at + Math.max(3, widthOf(b)), firstRow, lastRow,
      (x, y, w) => pen.strokeRect(x, y - 1, Math.max(w, 2), barHeight + 2));
  };
  if (mapView.pointer !== none) outline(mapView.pointer, colors.soft);
  if (mapView.selected !== none) outline(mapView.selected, colors.ink);
  if (mapView.labels) {
    pen.textAlign = 'right';
    pen.textBaseline = 'middle';
    pen.font = '11px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace';
    pen.fillStyle = colors.soft;
    for (let row = firstRow; row <= lastRow; ++row) {
      const i = segmentAt(row * mapView.width), s = segments[i];
      const inside = Math.min(s.bytes, Math.max(0, row * mapView.width - mapView.starts[i]) * mapView.perPixel);
      pen.fillText(addressText(s.address + Math.floor(inside)), mapView.labels - 10,
        topOfRow(row) + rowHeight / 2);
    }
  }
  map.dataset.drawMs = (performance.now() - began).toFixed(2);
};
const redrawMap = afterFrame(drawMap);

const blockParts = (b) => {
  const shape = blocks.shape[b], use = blocks.use[b], s = segments[blocks.segment[b]];
  const parts = [['', useNames[use]], ['', addressText(blocks.address[b])], ['bytes', inBytes(shapes.bytes[shape])]];
  if (use === 0 && shapes.requested[shape]) parts.push(['requested', inBytes(shapes.requested[shape])]);
  parts.push(['stream', streamText(shapes.stream[shape])]);
  if (use !== 2) {
    if (info.tags.length > 1) parts.push(['tag', brief(tagText(shapes.tag[shape]))]);
    if (shapes.location[shape]) parts.push(['from', brief(locationText(shapes.location[shape]))]);
    parts.push(['since', usesCalls ? `call ${grouped(blocks.time[b])}` : inTime(blocks.time[b])]);
  }
  parts.push(['in', `${s.kind} of ${inBytes(s.bytes)}`]);
  return parts;
};
const showBlock = () => {
  const b = mapView.pointer === none ? mapView.selected : mapView.pointer;
  const parts = b === none ? [['', 'Point at a block, or focus the map and use the arrow keys.']] : blockParts(b);
  mapReadout.replaceChildren(...parts.map(([name, text]) => name === '' ? make('span', {class: 'pair'}, text) :
    make('span', {class: 'pair'}, make('span', {class: 'name'}, name), ' ', text)));
  map.dataset.block = b;
};
const pointedBlock = (event) => {
  const box = map.getBoundingClientRect();
  const x = event.clientX - box.left - mapView.labels, y = event.clientY - box.top + scroller.scrollTop;
  if (x < 0 || x > mapView.width) return none;
  return blockAtPixel(Math.floor(y / rowHeight) * mapView.width + x);
};
const selectBlock = (b) => {
  if (b === none) return;
  mapView.selected = b;
  mapView.pointer = none;
  const y = Math.floor(pixelOf(b) / mapView.width) * rowHeight, room = scroller.clientHeight;
  scroller.scrollTop = Math.max(y + rowHeight - room, Math.min(y, scroller.scrollTop));
  showBlock();
  speak(blockParts(b).map((p) => p.join(' ').trim()).join(', '));
  redrawMap();
};
map.addEventListener('pointermove', (event) => {
  const b = pointedBlock(event);
  if (b === mapView.pointer) return;
  mapView.pointer = b;
  showBlock();
  redrawMap();
});
map.addEventListener('pointerleave', () => {
  mapView.pointer = none;
  showBlock();
  redrawMap();
});
map.addEventListener('click', (event) => selectBlock(pointedBlock(event)));
const selectNear = (b, rows) => {
  const at = pixelOf(b) + Math.min(widthOf(b), mapView.width) / 2 + rows * mapView.width;
  return blockAtPixel(Math.max(0, Math.min(mapView.rows * mapView.width, at)));
};
const scaleMap = (by) => {
  mapView.scale = Math.max(0, Math.min(mapView.deepest, mapView.scale + by));
  layOutMap();
  if (mapView.selected !== none) selectBlock(mapView.selected);
  redrawMap();
};
const mapKeys = {
  ArrowLeft: (b) => Math.max(0, b - 1), ArrowRight: (b) => Math.min(blocks.count - 1, b + 1),
  ArrowUp: (b) => selectNear(b, -1), ArrowDown: (b) => selectNear(b, 1),
  PageUp: (b) => selectNear(b, -10), PageDown: (b) => selectNear(b, 10),
  Home: () => 0, End: () => blocks.count - 1,
};
map.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || blocks.count === 0) return;
  if ('+=-_'.includes(event.key)) {
    event.preventDefault();
    scaleMap('+='.includes(event.key) ? 1 : -1);
  } else if (mapKeys[event.key]) {
    event.preventDefault();
    selectBlock(mapView.selected === none ? 0 : mapKeys[event.key](mapView.selected));
  }
});
scroller.addEventListener('scroll', redrawMap);
byId('map-in').addEventListener('click', () => scaleMap(1));
byId('map-out').addEventListener('click', () => scaleMap(-1));

const showMapLegend = () => {
  const entries = [];
  const entry = (color, text) =>
    entries.push(make('li', {title: text}, make('span', {class: 'key box', color}), brief(text, 40)));
  const sums = [0, 0, 0], counts = [0, 0, 0];
  for (let b = 0; b < blocks.count; ++b) {
    sums[blocks.use[b]] += shapes.bytes[blocks.shape[b]];
    ++counts[blocks.use[b]];
  }
  if (mapView.color === 'use') {
    for (const use of [0, 1]) if (counts[use]) entry(useColor(use), `${useNames[use]} ${inBytes(sums[use])}`);
  } else if (mapView.color === 'size') {
    sizeLimits.forEach((limit, i) => entry(colors.sizes[i],
      limit === Infinity ? `over ${inBytes(sizeLimits[i - 1])}` : `to ${inBytes(limit)}`));
  } else if (mapView.color === 'stream') {
    coloredStreams.forEach((s, slot) => entry(slotColor(slot), `stream ${streamText(s)}`));
    const rest = streamsByBytes.length - coloredStreams.length;
    if (rest > 0) entry(colors.other, counted(rest, 'other stream'));
  } else {
    coloredTags.forEach((tag, slot) => entry(slotColor(slot), tagText(tag)));
    const rest = seenTags.length - coloredTags.length;
    if (rest > 0) entry(colors.other, counted(rest, 'other tag'));
  }
  if (mapped > sums[0] + sums[1]) entry(colors.cached, `cached ${inBytes(mapped - sums[0] - sums[1])}`);
  byId('map-legend').replaceChildren(...entries);
  const elsewhere = info.pool.reserved - mapped;
  byId('map-about').textContent = segments.length === 0 ? 'No memory is held.' :
    `${counted(blocks.count, 'block')} in ${counted(segments.length, 'segment')} of ${inBytes(mapped)}, ` +
    (usesCalls ? `after call ${grouped(info.now)}` : `at ${inTime(info.now)}`) +
    (elsewhere > 0 ? `; ${inBytes(elsewhere)} more is reserved and in no segment here` : '');
  map.dataset.blocks = blocks.count;
};
switches(['color-use', 'color-size', 'color-stream', 'color-tag'], (id) => {
  mapView.color = id.slice('color-'.length);
  showMapLegend();
  redrawMap();
});
