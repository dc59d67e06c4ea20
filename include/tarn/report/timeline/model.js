// SPDX-License-Identifier: Apache-2.0
// The model of the page: reads the numbers that timeline_html.hpp writes, computes the curves, and finds what was live when.

// ---- reading
const byId = (id) => document.getElementById(id);
const info = JSON.parse(byId('tarn-info').textContent);
const none = -1;

class Numbers {
  constructor(id) {
    const text = byId(id).textContent;
    byId(id).remove();
    if (Uint8Array.fromBase64) {
      this.bytes = Uint8Array.fromBase64(text);
    } else {
      const raw = atob(text);
      this.bytes = new Uint8Array(raw.length);
      for (let i = 0; i < raw.length; ++i) this.bytes[i] = raw.charCodeAt(i);
    }
    this.at = 0;
  }
  next() {
    let byte = this.bytes[this.at++];
    if (byte < 128) return byte;
    let value = byte - 128, scale = 128;
    do {
      byte = this.bytes[this.at++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte > 127);
    return value;
  }
  step() {
    const value = this.next();
    return value % 2 ? -(value + 1) / 2 : value / 2;
  }
}

const unit = 2 ** info.shift;
// Addresses are distances from the lowest one; `none` means no address.
const distance = (units) => units === 0 ? none : (units - 1) * unit;

const readShapes = (count) => {
  const from = new Numbers('tarn-shapes');
  const shapes = {bytes: new Float64Array(count), requested: new Float64Array(count), stream: new Uint32Array(count),
    tag: new Uint32Array(count), location: new Uint32Array(count)};
  for (let i = 0; i < count; ++i) {
    for (const part of ['bytes', 'requested', 'stream', 'tag', 'location']) shapes[part][i] = from.next();
  }
  return shapes;
};

const kinds = ['allocate', 'free', 'refused', 'reserve', 'release'];
const [allocated, freed, refused, reserving, releasing] = [0, 1, 2, 3, 4];

// partner: for an allocation, the event that frees it; for a free, the event that allocated the block.
const readEvents = (count, shapes) => {
  const from = new Numbers('tarn-events');
  const events = {count, kind: new Uint8Array(count), shape: new Uint32Array(count), address: new Float64Array(count),
    time: new Float64Array(count), stream: new Uint32Array(count), partner: new Int32Array(count).fill(none)};
  const kindOf = [allocated, freed, freed, freed, refused, reserving, releasing];
  let units = 0, time = 0, latest = 0;
  for (let i = 0; i < count; ++i) {
    const head = from.next(), code = head % 8, what = (head - code) / 8;
    events.kind[i] = kindOf[code];
    if (code === 1 || code === 2) {
      const j = i - what;
      events.shape[i] = events.shape[j];
      events.address[i] = events.address[j];
      events.partner[i] = j;
      events.partner[j] = i;
      events.stream[i] = code === 2 ? from.next() : events.stream[j];
    } else {
      events.shape[i] = what;
      events.stream[i] = shapes.stream[what];
      units += from.step();
      events.address[i] = distance(units);
    }
    time += from.step();
    // Threads read the clock before their calls are ordered. The order of the calls is the valid one.
    latest = Math.max(latest, time);
    events.time[i] = latest;
  }
  return events;
};

const useNames = ['live', 'deferred', 'cached'];
const segmentKinds = ['pages', 'view', 'upstream'];

const readSegments = (count, shapes) => {
  const from = new Numbers('tarn-blocks');
  const segments = [], blocks = {address: [], shape: [], use: [], time: [], segment: []};
  let units = 0, time = 0;
  for (let i = 0; i < count; ++i) {
    units += from.step();
    const s = {address: distance(units), bytes: from.next()};
    const flags = from.next();
    s.kind = segmentKinds[flags & 3];
    s.small = (flags & 4) !== 0;
    s.handles = from.next();
    s.stream = from.next();
    s.first = blocks.shape.length;
    s.end = s.first + from.next();
    s.live = 0;
    s.liveBlocks = 0;
    let address = s.address;
    for (let b = s.first; b < s.end; ++b) {
      const head = from.next(), shape = Math.floor(head / 8);
      if (head & 4) address += from.step();
      time += from.step();
      blocks.address.push(address);
      blocks.shape.push(shape);
      blocks.use.push(head & 3);
      blocks.time.push(time);
      blocks.segment.push(i);
      if ((head & 3) === 0) {
        s.live += shapes.bytes[shape];
        ++s.liveBlocks;
      }
      address += shapes.bytes[shape];
    }
    segments.push(s);
  }
  blocks.count = blocks.shape.length;
  return {segments, blocks};
};

// ---- the curves: state i is the state after i events
const makeModel = () => {
  const shapes = readShapes(info.shapes);
  const events = readEvents(info.events, shapes);
  const {segments, blocks} = readSegments(info.segments, shapes);
  const n = events.count;
  const upperBound = (time) => {
    let low = 0, high = n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (events.time[middle] <= time) low = middle + 1; else high = middle;
    }
    return low;
  };
  const lowerBound = (time) => {
    let low = 0, high = n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (events.time[middle] < time) low = middle + 1; else high = middle;
    }
    return low;
  };
  // The snapshot lists the blocks of this state: the curve passes through the bytes that are live there.
  const known = upperBound(info.now);

  // Blocks that are older than the first event: freed in the events without an allocation, or live and never allocated.
  const older = [], freedLater = new Map(), placed = new Map();
  for (let i = 0; i < n; ++i) {
    if (events.kind[i] === freed && events.partner[i] === none) {
      const block = {shape: events.shape[i], address: events.address[i], end: i};
      if (i < known) older.push(block); else freedLater.set(block.address, block);
    }
    const p = events.partner[i];
    if (i < known && events.kind[i] === allocated && (p === none || p >= known)) placed.set(events.address[i], i);
  }
  // The requested size of a block that was not watched is unknown: its own size is used.
  const asked = (shape) => shapes.requested[shape] || shapes.bytes[shape];
  let liveNow = 0, requestedNow = 0;
  for (let b = 0; b < blocks.count; ++b) {
    if (blocks.use[b] !== 0) continue;
    const shape = blocks.shape[b], address = blocks.address[b];
    liveNow += shapes.bytes[shape];
    requestedNow += asked(shape);
    if (placed.has(address)) continue;
    const later = freedLater.get(address);
    freedLater.delete(address);
    older.push({shape, address, end: later ? later.end : Infinity});
  }
  for (const block of freedLater.values()) older.push(block);
  if (segments.length === 0) liveNow = requestedNow = info.pool.live;

  const live = new Float64Array(n + 1), requested = new Float64Array(n + 1), reserved = new Float64Array(n + 1);
  // The program's calls up to each state. What the pool reserves and releases is no call.
  const calls = new Float64Array(n + 1).fill(info.forgotten);
  let reservations = 0;
  for (const block of older) {
    live[0] += shapes.bytes[block.shape];
    requested[0] += asked(block.shape);
  }
  for (let i = 0; i < n; ++i) {
    const shape = events.shape[i], kind = events.kind[i];
    const blockSign = kind === allocated ? 1 : kind === freed ? -1 : 0;
    const poolSign = kind === reserving ? 1 : kind === releasing ? -1 : 0;
    live[i + 1] = live[i] + blockSign * shapes.bytes[shape];
    requested[i + 1] = requested[i] + blockSign * asked(shape);
    reserved[i + 1] = reserved[i] + poolSign * shapes.bytes[shape];
    reservations += poolSign * poolSign;
    calls[i + 1] = calls[i] + (kind <= refused ? 1 : 0);
  }
  // Without recorded calls, live bytes are known at the snapshot only.
  const knowsCalls = calls[n] > calls[0];
  // Bytes that neither events nor blocks explain belong to no block. They are added so that the curves end at the true level.
  const unexplained = liveNow - live[known];
  const unexplainedRequested = segments.length === 0 ? unexplained : requestedNow - requested[known];
  const reservedNow = info.pool.reserved;
  const reservedBefore = reservedNow - reserved[known];
  let peak = knowsCalls ? 0 : known;
  for (let i = 0; i <= n; ++i) {
    live[i] += unexplained;
    requested[i] += unexplainedRequested;
    reserved[i] += reservedBefore;
    if (live[i] > live[peak]) peak = i;
  }

  // Calls `take(shape, address)` for each block that is live in a state.
  const eachLive = (state, take) => {
    for (const block of older) if (block.end >= state) take(block.shape, block.address);
    for (let i = 0; i < state; ++i) {
      if (events.kind[i] !== allocated) continue;
      const end = events.partner[i];
      if (end === none || end >= state) take(events.shape[i], events.address[i]);
    }
  };
  return {shapes, events, segments, blocks, n, live, requested, reserved, reservedNow, known, peak, unexplained, older, calls,
    eachLive, upperBound, lowerBound, knowsCalls, knowsReserved: reservations > 0};
};

// ---- the maximum and minimum of any range of a curve, in time proportional to its length / 128
const stretch = 128;
class Extremes {
  constructor(values) {
    const count = Math.ceil(values.length / stretch);
    this.values = values;
    this.most = new Float64Array(count).fill(-Infinity);
    this.least = new Float64Array(count).fill(Infinity);
    for (let i = 0; i < values.length; ++i) {
      const s = Math.floor(i / stretch);
      if (values[i] > this.most[s]) this.most[s] = values[i];
      if (values[i] < this.least[s]) this.least[s] = values[i];
    }
  }
  // Index of the first of the largest values in [from, to].
  indexOfMost(from, to) {
    const {values, most} = this;
    let best = from;
    const look = (a, b) => {
      for (let i = a; i <= b; ++i) if (values[i] > values[best]) best = i;
    };
    const first = Math.floor(from / stretch) + 1, last = Math.floor(to / stretch);
    if (first >= last) {
      look(from, to);
      return best;
    }
    look(from, first * stretch - 1);
    let where = none, high = values[best];
    for (let s = first; s < last; ++s) {
      if (most[s] > high) {
        high = most[s];
        where = s;
      }
    }
    if (where !== none) look(where * stretch, where * stretch + stretch - 1);
    look(last * stretch, to);
    return best;
  }
  leastOf(from, to) {
    const {values, least} = this;
    let low = Infinity;
    const look = (a, b) => {
      for (let i = a; i <= b; ++i) if (values[i] < low) low = values[i];
    };
    const first = Math.floor(from / stretch) + 1, last = Math.floor(to / stretch);
    if (first >= last) {
      look(from, to);
      return low;
    }
    look(from, first * stretch - 1);
    for (let s = first; s < last; ++s) if (least[s] < low) low = least[s];
    look(last * stretch, to);
    return low;
  }
}
