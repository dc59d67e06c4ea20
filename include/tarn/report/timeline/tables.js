// SPDX-License-Identifier: Apache-2.0
// Shows the tables, which can be sorted by any column and filtered by text.

// ---- tables
// A column: {name, value(row), text(row), number, title(row), color(row)}.
const tables = [];
const makeTable = (id, columns, rows, sortedBy, empty) => {
  const panel = byId(`panel-${id}`);
  const state = {column: sortedBy, down: true, filter: '', shown: 100};
  const status = make('p', {class: 'soft', role: 'status'});
  const search = make('input', {type: 'search', id: `filter-${id}`, placeholder: 'Filter', autocomplete: 'off',
    spellcheck: 'false', on: {input: () => {
      state.filter = search.value.trim().toLowerCase();
      state.shown = 100;
      show();
    }}});
  const heads = columns.map((column, i) => make('th', {scope: 'col', class: column.number ? 'number' : undefined},
    make('button', {type: 'button', class: 'sort', on: {click: () => {
      state.down = state.column === i ? !state.down : !!column.number;
      state.column = i;
      show();
    }}}, column.name, make('span', {class: 'arrow', 'aria-hidden': 'true'}))));
  const body = make('tbody');
  const more = make('button', {type: 'button', on: {click: () => {
    state.shown += 400;
    show();
  }}}, 'Show more');
  let texts = null;  // the text of all cells of each row, filled by the first filter
  const textOf = (row) => columns.map((c) => `${c.text(row)}\n${c.title?.(row) ?? ''}`).join('\n').toLowerCase();
  const show = () => {
    const {value} = columns[state.column];
    let chosen = rows.map((_, i) => i);
    if (state.filter) {
      if (!texts) texts = rows.map(textOf);
      chosen = chosen.filter((i) => texts[i].includes(state.filter));
    }
    const keys = rows.map(value);
    chosen.sort((a, b) => {
      const order = typeof keys[a] === 'string' ? keys[a].localeCompare(keys[b]) : keys[a] - keys[b];
      return (state.down ? -order : order) || a - b;
    });
    body.replaceChildren(...chosen.slice(0, state.shown).map((i) => make('tr', {}, ...columns.map((column, c) => {
      const cell = {class: column.number ? 'number' : undefined, title: column.title?.(rows[i])};
      const key = column.color ? [make('span', {class: 'key box', color: column.color(rows[i])})] : [];
      return c === 0 ? make('th', {scope: 'row', ...cell}, ...key, column.text(rows[i])) :
        make('td', cell, ...key, column.text(rows[i]));
    }))));
    heads.forEach((head, i) => {
      if (i === state.column) head.setAttribute('aria-sort', state.down ? 'descending' : 'ascending');
      else head.removeAttribute('aria-sort');
    });
    const shown = Math.min(chosen.length, state.shown);
    const inAll = chosen.length < rows.length ? ` matching, ${grouped(rows.length)} in all` : '';
    status.textContent = rows.length === 0 ? empty : chosen.length === 0 ? 'Nothing matches.' :
      `${grouped(shown)} of ${grouped(chosen.length)}${inAll}`;
    more.hidden = shown === chosen.length;
  };
  panel.replaceChildren(
    make('div', {class: 'bar'}, make('label', {for: `filter-${id}`, class: 'hidden'}, `Filter ${id}`), search, status),
    make('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': `Table of ${id}`},
      make('table', {}, make('thead', {}, make('tr', {}, ...heads)), body)), more);
  show();
  tables.push(show);
};

const bytesColumn = (name, value) => ({name, value, text: (row) => inBytes(value(row)),
  title: (row) => `${grouped(value(row))} bytes`, number: true});
const countColumn = (name, value) => ({name, value, text: (row) => grouped(value(row)), number: true});

const makeTables = () => {
  const atPeak = model.knowsCalls ? [bytesColumn('At the peak', (row) => row.atPeak)] : [];
  const tags = info.tags.map((tag, i) => ({...tag, i, atPeak: bytesAtPeak[i]}));
  makeTable('tags', [
    {name: 'Tag', value: (t) => tagText(t.i), text: (t) => tagText(t.i), color: (t) => slotColor(slotOfTag[t.i])},
    bytesColumn('Live', (t) => t.bytes), ...atPeak,
    bytesColumn('Its own peak', (t) => t.peak), bytesColumn('Requested', (t) => t.requested),
    countColumn('Blocks', (t) => t.blocks), countColumn('Allocations', (t) => t.allocations),
  ], tags, 1 + atPeak.length, 'No tags.');

  const live = [];
  for (let b = 0; b < blocks.count; ++b) if (blocks.use[b] !== 2) live.push(b);
  const shapeOf = (b) => blocks.shape[b];
  makeTable('blocks', [
    {name: 'Address', value: (b) => blocks.address[b], text: (b) => addressText(blocks.address[b])},
    bytesColumn('Bytes', (b) => shapes.bytes[shapeOf(b)]),
    bytesColumn('Requested', (b) => shapes.requested[shapeOf(b)]),
    {name: 'Use', value: (b) => useNames[blocks.use[b]], text: (b) => useNames[blocks.use[b]]},
    {name: 'Stream', value: (b) => shapes.stream[shapeOf(b)], text: (b) => streamText(shapes.stream[shapeOf(b)]),
      number: true},
    {name: 'Tag', value: (b) => tagText(shapes.tag[shapeOf(b)]), text: (b) => tagText(shapes.tag[shapeOf(b)])},
    {name: 'From', value: (b) => locationText(shapes.location[shapeOf(b)]), text: (b) => locationText(shapes.location[shapeOf(b)]),
      title: (b) => locationTitle(shapes.location[shapeOf(b)]) || 'location unknown'},
    {name: usesCalls ? 'Since call' : 'Since', value: (b) => blocks.time[b], number: true,
      text: (b) => usesCalls ? grouped(blocks.time[b]) : inTime(blocks.time[b])},
  ], live, 1, 'No live blocks.');

  const locations = info.locations.map((_, i) => ({i, bytes: 0, blocks: 0, atPeak: 0}));
  for (const b of live) {
    const entry = locations[shapes.location[shapeOf(b)]];
    if (!entry || blocks.use[b] !== 0) continue;
    entry.bytes += shapes.bytes[shapeOf(b)];
    ++entry.blocks;
  }
  model.eachLive(model.peak, (shape) => {
    if (locations[shapes.location[shape]]) locations[shapes.location[shape]].atPeak += shapes.bytes[shape];
  });
  makeTable('locations', [
    {name: 'Location', value: (p) => locationText(p.i), text: (p) => locationText(p.i),
      title: (p) => locationTitle(p.i) || 'location unknown'},
    bytesColumn('Live', (p) => p.bytes), ...atPeak,
    countColumn('Blocks', (p) => p.blocks),
  ], locations.filter((p) => p.bytes || p.atPeak || p.i), 1 + atPeak.length, 'No locations were recorded.');

  makeTable('segments', [
    {name: 'Address', value: (s) => s.address, text: (s) => addressText(s.address)},
    bytesColumn('Bytes', (s) => s.bytes), bytesColumn('Live', (s) => s.live),
    {name: 'Filled', value: (s) => s.bytes ? s.live / s.bytes : 0, text: (s) => percent(s.live, s.bytes), number: true},
    countColumn('Live blocks', (s) => s.liveBlocks), countColumn('Handles', (s) => s.handles),
    {name: 'Kind', value: (s) => s.kind, text: (s) => s.small ? `${s.kind}, small blocks` : s.kind},
    {name: 'Stream', value: (s) => s.stream, text: (s) => streamText(s.stream), number: true},
  ], segments, 1, 'No segments.');

  const meanings = {
    live: ['Live', 'bytes handed out, rounded to blocks'], live_blocks: ['Live blocks', ''],
    reserved: ['Reserved', 'bytes held from the driver'], reserved_peak: ['Reserved, peak', ''],
    reserved_small: ['Reserved for small blocks', 'blocks up to 1 MiB'],
    reserved_large: ['Reserved for large blocks', ''], cached: ['Cached', 'reserved, not handed out'],
    deferred: ['Deferred', 'freed, but another stream may still use it'], deferred_blocks: ['Deferred blocks', ''],
    largest_free_range: ['Largest free range', 'the largest block that needs no driver call'],
    free_blocks: ['Free ranges', ''],
    inactive_split_bytes: ['Free beside live', 'free parts of handles in use; PyTorch: inactive split'],
    reserved_total: ['Reserved in all', 'ever taken from the driver'], released_total: ['Released in all', 'ever given back'],
    handles: ['Handles', 'physical handles, or segments'], handles_peak: ['Handles, peak', ''],
    creates: ['Handles made', ''], destroys: ['Handles destroyed', ''], maps: ['Maps', ''], unmaps: ['Unmaps', ''],
    remaps: ['Remaps', 'handles moved under another address'],
    alloc_retries: ['Retries', 'the driver refused, and the cache was searched again'],
    ooms: ['Out of memory', 'requests refused'], host_waits: ['Waits of the host', ''],
    device_waits: ['Waits of streams', ''], host_bytes: ['Bookkeeping', 'host memory of the pool itself'],
  };
  const numbers = [...new Set([...Object.keys(meanings), ...Object.keys(info.pool)])].map((key, order) => {
    const [name, about] = meanings[key] || [key.replaceAll('_', ' '), ''];
    return {name, value: info.pool[key], about, count: info.counts.includes(key), order};
  });
  makeTable('numbers', [
    {name: 'Number', value: (r) => -r.order, text: (r) => r.name},
    {name: 'Value', value: (r) => r.value, number: true, text: (r) => r.count ? grouped(r.value) : inBytes(r.value),
      title: (r) => grouped(r.value) + (r.count ? '' : ' bytes')},
    {name: 'Meaning', value: (r) => r.about, text: (r) => r.about},
  ], numbers, 0, '');
};

const tabs = [...document.querySelectorAll('[role=tab]')];
const showTab = (tab) => {
  for (const other of tabs) {
    const on = other === tab;
    other.setAttribute('aria-selected', String(on));
    other.tabIndex = on ? 0 : -1;
    byId(other.getAttribute('aria-controls')).hidden = !on;
  }
};
tabs.forEach((tab, i) => {
  tab.addEventListener('click', () => showTab(tab));
  tab.addEventListener('keydown', (event) => {
    const to = {ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = tabs[(to + tabs.length) % tabs.length];
    showTab(next);
    next.focus();
  });
});
