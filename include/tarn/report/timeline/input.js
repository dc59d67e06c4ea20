// SPDX-License-Identifier: Apache-2.0
// Handles input on the timeline: zoom and pan by wheel, drag and keyboard, the state under the pointer, the switches.

// ---- the timeline's readout and input
const readout = byId('chart-readout'), spoken = byId('spoken');
const eventText = (i) => {
  const shape = events.shape[i], kind = events.kind[i];
  const parts = [`${kinds[kind]} ${inBytes(shapes.bytes[shape] || shapes.requested[shape])}`];
  if (kind <= refused) {
    parts.push(`stream ${streamText(events.stream[i])}`);
    if (info.tags.length > 1) parts.push(brief(tagText(shapes.tag[shape])));
    if (shapes.location[shape]) parts.push(brief(locationText(shapes.location[shape])));
  }
  return parts.join(', ');
};
const stateParts = (state) => {
  const parts = [['at', momentText(timeOf(state), state)]];
  if (model.knowsCalls) parts.push(['live', inBytes(model.live[state])], ['requested', inBytes(model.requested[state])]);
  if (model.knowsReserved) parts.push(['reserved', inBytes(model.reserved[state])]);
  if (state > 0) parts.push(['last', eventText(state - 1)]);
  return parts;
};
const showReadout = () => {
  const state = view.pointer === none ? view.moment : view.pointer;
  readout.replaceChildren(...stateParts(state).map(([name, text]) =>
    make('span', {class: 'pair'}, make('span', {class: 'name'}, name), ' ', text)));
};
const speak = (text) => { spoken.textContent = text; };

const setView = (from, to) => {
  const [low, high] = domain();
  const whole = high - low;
  const least = view.axis === 'time' ? Math.min(whole, Math.max(10, whole / 1e8)) : Math.min(whole, 8);
  const span = Math.max(least, Math.min(whole, to - from));
  let start = from + ((to - from) - span) / 2;
  start = Math.max(low, Math.min(high - span, start));
  view.from = start;
  view.to = start + span;
  redrawChart();
};
const showAll = () => setView(...domain());
const zoom = (factor, around = (view.from + view.to) / 2) =>
  setView(around - (around - view.from) * factor, around + (view.to - around) * factor);
const pan = (share) => {
  const by = (view.to - view.from) * share;
  const [low, high] = domain();
  const kept = Math.max(low - view.from, Math.min(high - view.to, by));
  setView(view.from + kept, view.to + kept);
};
const isWhole = () => {
  const [low, high] = domain();
  return view.to - view.from >= (high - low) * 0.999999;
};
const bringIntoView = (state) => {
  const at = startOf(state), span = view.to - view.from;
  if (at < view.from || at > view.to) setView(at - span / 2, at + span / 2);
};
const pickMoment = (state) => {
  if (!model.knowsCalls) return;
  view.moment = state;
  bringIntoView(state);
  showMoment();
  showReadout();
  redrawChart();
};

const axisAt = (event) => {
  const box = chart.getBoundingClientRect();
  const share = (event.clientX - box.left - plot.left) / (plot.right - plot.left);
  return view.from + Math.max(0, Math.min(1, share)) * (view.to - view.from);
};
// The state under the pointer: of the states in that column, the one with the most live bytes, as it is drawn.
const stateUnder = (event) => {
  const at = axisAt(event), half = (view.to - view.from) / Math.max(1, plot.right - plot.left) / 2;
  const first = stateAt(at - half);
  return liveExtremes.indexOfMost(first, Math.max(first, lastStateBefore(at + half)));
};

chart.addEventListener('wheel', (event) => {
  if (!plot) return;
  const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
  if (sideways) {
    if (isWhole()) return;
    event.preventDefault();
    pan((event.deltaX || event.deltaY) / 1000);
    return;
  }
  if (event.deltaY > 0 && isWhole()) return;  // everything is shown: let the page scroll
  event.preventDefault();
  zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), axisAt(event));
}, {passive: false});

const touches = new Map();
let drag = null;
chart.addEventListener('pointerdown', (event) => {
  if (!plot || event.button > 0) return;
  touches.set(event.pointerId, event.clientX);
  chart.setPointerCapture(event.pointerId);
  drag = {x: event.clientX, from: view.from, to: view.to, moved: touches.size > 1};
  if (touches.size === 2) drag.apart = Math.abs([...touches.values()][0] - [...touches.values()][1]);
});
chart.addEventListener('pointermove', (event) => {
  if (!plot) return;
  if (touches.has(event.pointerId)) {
    touches.set(event.pointerId, event.clientX);
    const perPixel = (drag.to - drag.from) / Math.max(1, plot.right - plot.left);
    if (touches.size === 2) {
      const [a, b] = [...touches.values()];
      const factor = Math.max(20, drag.apart) / Math.max(20, Math.abs(a - b)), middle = (drag.from + drag.to) / 2;
      setView(middle - (middle - drag.from) * factor, middle + (drag.to - middle) * factor);
      return;
    }
    if (Math.abs(event.clientX - drag.x) > 4) drag.moved = true;
    if (drag.moved && !isWhole()) {
      const [low, high] = domain();
      const by = Math.max(low - drag.from, Math.min(high - drag.to, (drag.x - event.clientX) * perPixel));
      setView(drag.from + by, drag.to + by);
    }
  }
  view.pointer = stateUnder(event);
  showReadout();
  redrawChart();
});
const endDrag = (event) => {
  const wasClick = touches.has(event.pointerId) && drag && !drag.moved && event.type === 'pointerup';
  touches.delete(event.pointerId);
  if (wasClick) pickMoment(stateUnder(event));
};
chart.addEventListener('pointerup', endDrag);
chart.addEventListener('pointercancel', endDrag);
chart.addEventListener('pointerleave', () => {
  view.pointer = none;
  showReadout();
  redrawChart();
});
chart.addEventListener('dblclick', (event) => { zoom(0.25, axisAt(event)); });

// The selected moment is the cursor of the keyboard.
const moveMoment = (state) => {
  pickMoment(Math.max(0, Math.min(model.n, state)));
  speak(stateParts(view.moment).map(([name, text]) => `${name} ${text}`).join(', '));
};
// What the pool reserves and releases between two calls is passed by.
const moveByCall = (by) => {
  let state = view.moment + by;
  while (state > 0 && state < model.n && events.kind[state - 1] > refused) state += by;
  moveMoment(state);
};
const moveByPixels = (pixels) => {
  const at = startOf(view.moment) + pixels * (view.to - view.from) / Math.max(1, plot.right - plot.left);
  const state = stateAt(at);
  moveMoment(state === view.moment ? state + Math.sign(pixels) : state);
};
const chartKeys = {
  ArrowLeft: (event) => event.shiftKey ? moveByCall(-1) : moveByPixels(-12),
  ArrowRight: (event) => event.shiftKey ? moveByCall(1) : moveByPixels(12),
  '+': () => zoom(0.5, momentOrMiddle()), '=': () => zoom(0.5, momentOrMiddle()),
  '-': () => zoom(2, momentOrMiddle()), '_': () => zoom(2, momentOrMiddle()),
  PageUp: () => pan(-0.5), PageDown: () => pan(0.5),
  Home: () => moveMoment(0), End: () => moveMoment(model.n),
  0: () => showAll(), p: () => moveMoment(model.peak), P: () => moveMoment(model.peak),
};
const momentOrMiddle = () => {
  const at = startOf(view.moment);
  return at >= view.from && at <= view.to ? at : (view.from + view.to) / 2;
};
chart.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !chartKeys[event.key] || !plot) return;
  event.preventDefault();
  chartKeys[event.key](event);
});

let overviewDrag = false;
const moveOverview = (event) => {
  const box = overview.getBoundingClientRect(), [low, high] = domain();
  const share = (event.clientX - box.left - margin.left) / Math.max(1, box.width - margin.left - margin.right);
  const at = low + share * (high - low), half = (view.to - view.from) / 2;
  setView(at - half, at + half);
};
overview.addEventListener('pointerdown', (event) => {
  overviewDrag = true;
  overview.setPointerCapture(event.pointerId);
  moveOverview(event);
});
overview.addEventListener('pointermove', (event) => { if (overviewDrag) moveOverview(event); });
overview.addEventListener('pointerup', () => { overviewDrag = false; });
overview.addEventListener('pointercancel', () => { overviewDrag = false; });

// ---- switches of the timeline
const pressed = (button, on) => button.setAttribute('aria-pressed', String(on));
const switches = (ids, choose) => ids.forEach((id) => byId(id).addEventListener('click', () => {
  ids.forEach((other) => pressed(byId(other), other === id));
  choose(id);
}));
const showLegend = () => {
  const entries = [];
  const entry = (color, text, kind = 'box') =>
    entries.push(make('li', {title: text}, make('span', {class: `key ${kind}`, color}), brief(text, 40)));
  if (view.stacked) {
    coloredTags.forEach((tag, slot) => entry(slotColor(slot), tagText(tag)));
    const rest = seenTags.length - coloredTags.length;
    if (rest > 0) entry(colors.other, counted(rest, 'other tag'));
    else if (model.unexplained > 0) entry(colors.other, 'not known');
  } else if (model.knowsCalls) {
    entry(colors.live, 'live, as blocks occupy it');
  }
  if (view.requested) entry(colors.requested, 'requested', 'dash');
  if (view.reserved) entry(colors.reserved, model.knowsReserved ? 'reserved' : 'reserved at the snapshot', 'dash');
  byId('chart-legend').replaceChildren(...entries);
};
const changed = () => {
  showLegend();
  redrawChart();
};
switches(['show-total', 'show-tags'], (id) => {
  view.stacked = id === 'show-tags';
  changed();
});
switches(['axis-time', 'axis-calls'], (id) => {
  const middle = stateAt((view.from + view.to) / 2), whole = isWhole();
  view.axis = id === 'axis-time' ? 'time' : 'calls';
  const at = startOf(middle), [low, high] = domain();
  const span = whole ? high - low : (high - low) * Number(chart.dataset.share);
  setView(at - span / 2, at + span / 2);
  if (whole) showAll();
});
byId('show-reserved').addEventListener('click', (event) => {
  view.reserved = !view.reserved;
  pressed(event.currentTarget, view.reserved);
  changed();
});
byId('show-requested').addEventListener('click', (event) => {
  view.requested = !view.requested;
  pressed(event.currentTarget, view.requested);
  changed();
});
byId('zoom-in').addEventListener('click', () => zoom(0.5, momentOrMiddle()));
byId('zoom-out').addEventListener('click', () => zoom(2, momentOrMiddle()));
byId('zoom-all').addEventListener('click', showAll);
byId('to-peak').addEventListener('click', () => pickMoment(model.peak));
