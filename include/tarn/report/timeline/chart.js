// SPDX-License-Identifier: Apache-2.0
// Draws the timeline: curves, axes, the peak. A column of pixels shows the maximum of its events.

// ---- the timeline
const chart = byId('chart'), overview = byId('overview');
const margin = {left: 72, right: 14, top: 26, bottom: 26};
// If all events have the same time, only the order of the calls distinguishes them.
const isMoment = model.knowsCalls && model.n > 1 && events.time[0] === events.time[model.n - 1];
const view = {axis: usesCalls ? 'given' : isMoment ? 'calls' : 'time', from: 0, to: 1, stacked: false,
  reserved: false, requested: false, moment: model.peak, pointer: none};

// Where a state begins on the axis. Only the axis of calls separates events with equal times.
const startOf = (state) => view.axis === 'calls' ? model.calls[state] : state === 0 ? domain()[0] : events.time[state - 1];
const domain = () => {
  const n = model.n;
  if (view.axis === 'calls') return [model.calls[0], model.calls[n] + 1];
  const first = n ? events.time[0] : 0, last = n ? events.time[n - 1] : 0;
  if (usesCalls) return [Math.min(first, 1) - 1, Math.max(last, 0) + 1];
  // The axis ends with the program; what happened at its end is in the last column.
  const end = Math.max(last, info.now, first + 1);
  return [Math.max(0, first - (end - first) * 0.005), end];
};
// The last state with at most so many calls.
const stateOfCall = (call) => {
  let low = 0, high = model.n;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (model.calls[middle] <= call) low = middle; else high = middle - 1;
  }
  return low;
};
const stateAt = (x) => view.axis === 'calls' ? stateOfCall(Math.floor(x)) : model.upperBound(x);
const lastStateBefore = (x) =>
  view.axis === 'calls' ? stateOfCall(Math.ceil(x) - 1) : x >= domain()[1] ? model.n : model.lowerBound(x);
const timeOf = (state) => state === 0 ? (model.n ? events.time[0] : info.now) : events.time[state - 1];

const liveExtremes = new Extremes(model.live), reservedExtremes = new Extremes(model.reserved);
const requestedExtremes = new Extremes(model.requested);

// The bytes of each colour in a state: starts at the nearest earlier state that is kept, and applies event by event.
const keptEvery = 256;
let kept = null;
const keepStacks = () => {
  const now = new Float64Array(slots);
  for (const block of model.older) now[slotOfTag[shapes.tag[block.shape]]] += shapes.bytes[block.shape];
  now[palette] += model.unexplained;
  kept = new Float64Array((Math.floor(model.n / keptEvery) + 1) * slots);
  for (let i = 0; i <= model.n; ++i) {
    if (i % keptEvery === 0) kept.set(now, i / keptEvery * slots);
    if (i < model.n) applyEvent(now, i);
  }
};
const applyEvent = (sums, i) => {
  const kind = events.kind[i];
  if (kind > freed) return;
  const shape = events.shape[i];
  sums[slotOfTag[shapes.tag[shape]]] += kind === allocated ? shapes.bytes[shape] : -shapes.bytes[shape];
};
const stacks = {state: none, sums: new Float64Array(slots)};
const stackAt = (state) => {
  if (!kept) keepStacks();
  const nearest = Math.floor(state / keptEvery);
  if (stacks.state === none || state < stacks.state || stacks.state < nearest * keptEvery) {
    stacks.state = nearest * keptEvery;
    stacks.sums.set(kept.subarray(nearest * slots, (nearest + 1) * slots));
  }
  for (; stacks.state < state; ++stacks.state) applyEvent(stacks.sums, stacks.state);
  return stacks.sums;
};

const byteStep = (range, ticks) => {
  let step = 1;
  while (step * ticks < range) step *= 2;
  return step;
};
const roundStep = (range, ticks) => {
  const raw = Math.max(range / ticks, 1), power = 10 ** Math.floor(Math.log10(raw));
  return power * ([1, 2, 5, 10].find((m) => m * power >= raw * 0.95) || 10);
};

// The columns of a range of the axis. Each has the state with the most live bytes, the least live bytes, and the most
// reserved and requested bytes.
const columnsOf = (from, to, count) => {
  const columns = {state: new Int32Array(count), least: new Float64Array(count), reserved: new Float64Array(count),
    requested: new Float64Array(count), most: 0};
  const width = (to - from) / count;
  for (let c = 0; c < count; ++c) {
    const end = c + 1 === count ? to : from + (c + 1) * width;
    const first = stateAt(from + c * width), last = Math.max(first, lastStateBefore(end));
    const state = liveExtremes.indexOfMost(first, last);
    columns.state[c] = state;
    columns.least[c] = first === last ? model.live[state] : liveExtremes.leastOf(first, last);
    if (model.knowsCalls) columns.most = Math.max(columns.most, model.live[state]);
    if (view.reserved) columns.reserved[c] = model.reserved[reservedExtremes.indexOfMost(first, last)];
    if (view.requested) columns.requested[c] = model.requested[requestedExtremes.indexOfMost(first, last)];
  }
  return columns;
};

const stepLine = (pen, count, left, step, y) => {
  pen.beginPath();
  for (let c = 0; c < count; ++c) {
    pen.lineTo(left + c * step, y(c));
    pen.lineTo(left + (c + 1) * step, y(c));
  }
};

let plot = null;  // the position of the last drawing, for the pointer
const drawChart = () => {
  if (chart.hidden) return;
  const began = performance.now();
  const width = chart.clientWidth, height = chart.clientHeight;
  const pen = fit(chart, width, height);
  const left = margin.left, right = width - margin.right, top = margin.top, bottom = height - margin.bottom;
  const ratio = window.devicePixelRatio || 1;
  const count = Math.max(1, Math.round((right - left) * ratio)), step = (right - left) / count;
  const columns = columnsOf(view.from, view.to, count);
  let most = columns.most;
  const showsLevel = !model.knowsReserved && model.reservedNow > 0 && view.reserved;
  const mostOf = (values) => values.reduce((a, b) => Math.max(a, b), most);
  if (view.reserved) most = showsLevel ? Math.max(most, model.reservedNow) : mostOf(columns.reserved);
  if (view.requested) most = mostOf(columns.requested);
  const stepBytes = byteStep(Math.max(most, 1) * 1.04, 6);
  const ceiling = Math.max(most * 1.04, 1);
  const y = (bytes) => bottom - Math.max(0, bytes) / ceiling * (bottom - top);
  const x = (value) => left + (value - view.from) / (view.to - view.from) * (right - left);
  plot = {left, right, top, bottom, x};

  pen.textBaseline = 'middle';
  pen.textAlign = 'right';
  pen.lineWidth = 1;
  for (let bytes = 0; bytes <= ceiling; bytes += stepBytes) {
    const at = Math.round(y(bytes)) + 0.5;
    pen.strokeStyle = colors.line;
    pen.beginPath();
    pen.moveTo(left, at);
    pen.lineTo(right, at);
    pen.stroke();
    pen.fillStyle = colors.soft;
    pen.fillText(bytes === 0 ? '0' : inBytes(bytes), left - 8, at);
  }
  drawAxis(pen, left, right, bottom, x);

  pen.save();
  pen.beginPath();
  pen.rect(left, top - 20, right - left, bottom - top + 20);
  pen.clip();
  if (model.knowsCalls) (view.stacked ? drawStacks : drawLive)(pen, columns, count, left, step, y, bottom);
  if (view.requested) {
    stepLine(pen, count, left, step, (c) => y(columns.requested[c]));
    pen.strokeStyle = colors.requested;
    pen.lineWidth = 1.5;
    pen.stroke();
  }
  if (view.reserved) {
    stepLine(pen, count, left, step, (c) => y(showsLevel ? model.reservedNow : columns.reserved[c]));
    pen.strokeStyle = colors.reserved;
    pen.lineWidth = 1.5;
    if (showsLevel) pen.setLineDash([6, 4]);
    pen.stroke();
    pen.setLineDash([]);
  }
  pen.restore();
  drawMarks(pen, x, y, left, right, top, bottom);
  drawOverview();
  const span = domain();
  chart.dataset.from = view.from;
  chart.dataset.to = view.to;
  chart.dataset.share = (view.to - view.from) / (span[1] - span[0]);
  chart.dataset.most = columns.most;
  chart.dataset.drawMs = (performance.now() - began).toFixed(2);
};

const drawLive = (pen, columns, count, left, step, y, bottom) => {
  const area = (level, color) => {
    stepLine(pen, count, left, step, level);
    pen.lineTo(left + count * step, bottom);
    pen.lineTo(left, bottom);
    pen.fillStyle = color;
    pen.fill();
  };
  area((c) => y(model.live[columns.state[c]]), colors.liveFaint);
  area((c) => y(columns.least[c]), colors.liveFill);
  stepLine(pen, count, left, step, (c) => y(model.live[columns.state[c]]));
  pen.strokeStyle = colors.live;
  pen.lineWidth = 1.5;
  pen.stroke();
};

// A column shows the tags of its state with the most live bytes, so that it is as high as the curve without tags.
const drawStacks = (pen, columns, count, left, step, y, bottom) => {
  const tops = Array.from({length: slots}, () => new Float64Array(count));
  let before = null, state = none;
  for (let c = 0; c < count; ++c) {
    if (columns.state[c] !== state) {
      state = columns.state[c];
      before = stackAt(state);
    }
    let sum = 0;
    for (let slot = slots - 1; slot >= 0; --slot) {
      sum += before[slot];
      tops[slot][c] = sum;
    }
  }
  for (let slot = 0; slot < slots; ++slot) {
    stepLine(pen, count, left, step, (c) => y(tops[slot][c]));
    pen.lineTo(left + count * step, bottom);
    pen.lineTo(left, bottom);
    pen.fillStyle = slotColor(slot);
    pen.fill();
  }
};

const drawAxis = (pen, left, right, bottom, x) => {
  const span = view.to - view.from, ticks = Math.max(3, Math.floor((right - left) / 130));
  const step = roundStep(span, ticks);
  pen.textBaseline = 'top';
  pen.textAlign = 'center';
  const texts = [];
  for (let value = Math.ceil(view.from / step) * step; value <= view.to; value += step) texts.push(value);
  for (const value of texts) {
    const at = Math.round(x(value)) + 0.5;
    const text = view.axis === 'time' ? axisTime(value, step) : grouped(value);
    const half = pen.measureText(text).width / 2;
    pen.strokeStyle = colors.soft;
    pen.beginPath();
    pen.moveTo(at, bottom + 0.5);
    pen.lineTo(at, bottom + 5);
    pen.stroke();
    pen.fillStyle = colors.soft;
    pen.fillText(text, Math.max(left - 20 + half, Math.min(right + margin.right - half, at)), bottom + 8);
  }
};
// All ticks of an axis have one unit, and enough digits to differ.
const axisTime = (ns, step) => {
  const units = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']];
  const [size, name] = units.find(([s]) => Math.max(Math.abs(view.to), 1) >= s) || units[3];
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / size) - 1e-9)));
  return `${(ns / size).toFixed(digits)} ${name}`;
};

const drawMarks = (pen, x, y, left, right, top, bottom) => {
  if (!model.knowsCalls) return;
  const vertical = (at, color, dash) => {
    pen.strokeStyle = color;
    pen.lineWidth = 1;
    pen.setLineDash(dash);
    pen.beginPath();
    pen.moveTo(Math.round(at) + 0.5, top - 6);
    pen.lineTo(Math.round(at) + 0.5, bottom);
    pen.stroke();
    pen.setLineDash([]);
  };
  const momentX = x(startOf(view.moment));
  if (view.moment !== model.peak && momentX >= left && momentX <= right) vertical(momentX, colors.ink, []);
  if (view.pointer !== none) {
    const pointerX = x(startOf(view.pointer));
    if (pointerX >= left && pointerX <= right) vertical(pointerX, colors.soft, [3, 3]);
  }
  const peakX = x(startOf(model.peak)), peakY = y(model.live[model.peak]);
  if (peakX < left - 1 || peakX > right + 1) return;
  vertical(peakX, colors.ink, []);
  pen.fillStyle = colors.surface;
  pen.strokeStyle = colors.ink;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.arc(peakX, peakY, 4.5, 0, 2 * Math.PI);
  pen.fill();
  pen.stroke();
  const text = `Peak ${inBytes(model.live[model.peak])}`;
  pen.font = '600 ' + font;
  const half = pen.measureText(text).width / 2 + 6;
  const at = Math.max(left + half, Math.min(right - half, peakX));
  pen.fillStyle = colors.surface;
  pen.fillRect(at - half, top - 24, 2 * half, 18);
  pen.fillStyle = colors.ink;
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  pen.fillText(text, at, top - 15);
  pen.font = font;
};

let overviewColumns = null;
const drawOverview = () => {
  const width = overview.clientWidth, height = overview.clientHeight;
  const pen = fit(overview, width, height);
  const left = margin.left, right = width - margin.right;
  const [from, to] = domain();
  const count = Math.max(1, Math.round(right - left));
  const key = `${view.axis} ${count}`;
  if (!overviewColumns || overviewColumns.key !== key) {
    const shown = {reserved: view.reserved, requested: view.requested};
    view.reserved = view.requested = false;
    overviewColumns = {key, columns: columnsOf(from, to, count)};
    Object.assign(view, shown);
  }
  const {columns} = overviewColumns;
  const y = (bytes) => height - 1 - Math.max(0, bytes) / Math.max(columns.most, 1) * (height - 6);
  if (model.knowsCalls) {
    stepLine(pen, count, left, 1, (c) => y(model.live[columns.state[c]]));
    pen.lineTo(left + count, height);
    pen.lineTo(left, height);
    pen.fillStyle = colors.liveFill;
    pen.fill();
  }
  const a = left + (view.from - from) / (to - from) * (right - left);
  const b = left + (view.to - from) / (to - from) * (right - left);
  pen.globalAlpha = 0.72;
  pen.fillStyle = colors.surface;
  pen.fillRect(left, 0, a - left, height);
  pen.fillRect(b, 0, right - b, height);
  pen.globalAlpha = 1;
  pen.strokeStyle = colors.soft;
  pen.lineWidth = 1;
  pen.strokeRect(Math.round(a) + 0.5, 0.5, Math.max(2, Math.round(b - a) - 1), height - 1);
};
const redrawChart = afterFrame(drawChart);
