// SPDX-License-Identifier: Apache-2.0
// Starts the page: the figures at the top, light and dark theme, and the first drawing.

// ---- the numbers on top
const tile = (name, value, about, exact) => make('div', {}, make('dt', {}, name),
  make('dd', {class: 'value', title: exact === undefined ? undefined : `${grouped(exact)} bytes`}, value),
  make('dd', {class: 'soft'}, about));
const showTop = () => {
  byId('title').textContent = info.title;
  const about = [`device ${info.device}`];
  const began = new Date(info.started / 1e6);
  if (info.started && !isNaN(began)) {
    about.push(`recorded from ${began.toISOString().slice(0, 19).replace('T', ' ')} UTC`);
  }
  about.push(counted(model.calls[model.n] - model.calls[0], 'call'));
  if (info.forgotten) about.push(`${counted(info.forgotten, 'earlier one')} not kept`);
  byId('about').textContent = about.join(' · ');
  const peakLive = model.live[model.peak], live = model.live[model.known], requested = model.requested[model.known];
  const reservedPeak = Math.max(info.pool.reserved_peak, model.reservedNow);
  const occupied = Math.max(0, live - requested);
  const refusals = Math.max(info.pool.ooms, events.kind.reduce((n, kind) => n + (kind === refused), 0));
  const tiles = [
    model.knowsCalls ? tile('Peak live', inBytes(peakLive), momentText(timeOf(model.peak), model.peak), peakLive) :
      tile('Peak live', '–', 'no calls were recorded'),
    tile('Live at the snapshot', inBytes(live), counted(blocks.use.reduce((n, use) => n + (use === 0), 0), 'block') +
      (usesCalls ? `, call ${grouped(info.now)}` : ''), live),
    tile('Reserved', inBytes(model.reservedNow), `at most ${inBytes(reservedPeak)}`, model.reservedNow),
    tile('In use', percent(live, model.reservedNow), 'live of reserved'),
    tile('Rounding', inBytes(occupied), `${percent(occupied, live)} of live`, occupied),
    tile('Refused', grouped(refusals), refusals === 1 ? 'request' : 'requests'),
  ];
  byId('tiles').replaceChildren(...tiles);
  byId('tiles').dataset.peakBytes = peakLive;
  byId('tiles').dataset.liveBytes = live;
  if (!model.knowsCalls) {
    byId('chart-note').textContent = 'No calls were recorded, so there is no curve of live bytes. To record them, add a history ' +
      'above the pool: pool | tarn::with_history{}';
  } else if (info.forgotten) {
    byId('chart-note').textContent = `The record begins after ${counted(info.forgotten, 'earlier call')}: ` +
      'a higher peak may lie before it.';
  }
};

// ---- light and dark
const darkSystem = matchMedia('(prefers-color-scheme: dark)');
const recolor = () => {
  colors = colorsOf();
  overviewColumns = null;
  showLegend();
  showMapLegend();
  showMoment();
  tables.forEach((show) => show());
  redrawChart();
  redrawMap();
};
const remember = (theme) => {
  try {
    localStorage.setItem('tarn-theme', theme);
  } catch {
    // A page opened from a file may have no storage. The choice then lasts until the page is closed.
  }
};
const setTheme = (theme) => {
  if (theme === 'auto') document.documentElement.removeAttribute('data-theme');
  else document.documentElement.setAttribute('data-theme', theme);
  for (const name of ['auto', 'light', 'dark']) pressed(byId(`theme-${name}`), name === theme);
};
for (const theme of ['auto', 'light', 'dark']) {
  byId(`theme-${theme}`).addEventListener('click', () => {
    setTheme(theme);
    remember(theme);
    recolor();
  });
}
darkSystem.addEventListener('change', recolor);
try {
  const theme = localStorage.getItem('tarn-theme');
  if (theme === 'light' || theme === 'dark') setTheme(theme);
} catch {
  // No storage: see remember().
}
colors = colorsOf();

// ---- start
byId('axis').hidden = usesCalls || !model.knowsCalls;
for (const id of ['live-shown', 'curves-shown', 'chart-keys']) byId(id).hidden = !model.knowsCalls;
for (const id of ['zoom', 'chart-readout', 'chart', 'overview', 'chart-legend'])
  byId(id).hidden = !model.knowsCalls && !model.knowsReserved;
pressed(byId('axis-time'), view.axis === 'time');
pressed(byId('axis-calls'), view.axis === 'calls');
byId('show-tags').disabled = info.tags.length < 2;
byId('color-tag').disabled = info.tags.length < 2;
byId('locations-part').hidden = info.locations.length < 2;
const hasReserved = model.knowsReserved || model.reservedNow > 0;
byId('show-reserved').hidden = !hasReserved;
// If far more bytes are reserved than were ever live, their curve would flatten the live one: it is initially off.
view.reserved = hasReserved &&
  (!model.knowsCalls || Math.max(info.pool.reserved_peak, model.reservedNow) < 8 * model.live[model.peak]);
pressed(byId('show-reserved'), view.reserved);
byId('map-view').hidden = segments.length === 0;
showTop();
[view.from, view.to] = domain();
showLegend();
showMoment();
showReadout();
showMapLegend();
showBlock();
makeTables();
showTab(tabs[0]);
layOutMap();
drawChart();
drawMap();
let resizedWidth = 0;
new ResizeObserver(() => {
  redrawChart();
  if (scroller.clientWidth === resizedWidth) return;
  resizedWidth = scroller.clientWidth;
  layOutMap();
  redrawMap();
}).observe(byId('main'));
document.documentElement.dataset.ready = performance.now().toFixed(0);
