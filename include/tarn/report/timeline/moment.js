// SPDX-License-Identifier: Apache-2.0
// Shows what was live at the selected moment, initially the peak: by tag, by location, the largest blocks.

// ---- what was live at the moment
const mostShown = 10;
const barRow = (color, name, title, bytes, of, blocks) => make('tr', {},
  make('th', {scope: 'row', title}, ...(color ? [make('span', {class: 'key box', color})] : []), name),
  make('td', {class: 'number'}, inBytes(bytes)),
  make('td', {class: 'number share'}, percent(bytes, of)),
  ...(blocks === null ? [] : [make('td', {class: 'number'}, grouped(blocks))]));
const fillMoment = (id, rows, rest, of) => {
  const body = byId(id);
  body.replaceChildren(...rows);
  if (rest.count > 0) {
    body.append(barRow(null, rest.name, undefined, rest.bytes, of, rest.blocks));
    body.lastChild.className = 'rest';
  }
  if (rows.length === 0) body.append(make('tr', {}, make('td', {colspan: '4', class: 'soft'}, 'Nothing was live.')));
};
const showMoment = () => {
  const state = view.moment, total = model.live[state];
  const tags = new Map(), locations = new Map();
  let blocks = 0, count = 0;
  const largest = [];
  let least = 0;
  model.eachLive(state, (shape, address) => {
    const bytes = shapes.bytes[shape];
    ++count;
    for (const [map, key] of [[tags, shapes.tag[shape]], [locations, shapes.location[shape]]]) {
      const sum = map.get(key);
      if (sum) {
        sum.bytes += bytes;
        ++sum.blocks;
      } else {
        map.set(key, {key, bytes, blocks: 1});
      }
    }
    if (largest.length < mostShown || bytes > least) {
      largest.push({shape, address, bytes});
      largest.sort((a, b) => b.bytes - a.bytes);
      largest.length = Math.min(largest.length, mostShown);
      least = largest[largest.length - 1].bytes;
    }
  });
  blocks = count;
  const where = !model.knowsCalls ? 'Live at the snapshot' :
    state === model.peak ? 'Live at the peak' : 'Live at the chosen moment';
  byId('moment-title').textContent = where;
  byId('moment-about').textContent =
    `${inBytes(total)} in ${counted(blocks, 'block')}, ${momentText(model.knowsCalls ? timeOf(state) : info.now, state)}` +
    (model.unexplained > 0 ? `; ${inBytes(model.unexplained)} of it in blocks that were not recorded` : '');
  byId('moment').dataset.bytes = total;
  byId('moment').dataset.blocks = blocks;
  byId('to-peak').hidden = state === model.peak;
  const top = (map) => [...map.values()].sort((a, b) => b.bytes - a.bytes);
  const restOf = (list, word) => {
    const rest = list.slice(mostShown);
    return {count: rest.length, name: `${counted(rest.length, 'more ' + word)}`,
      bytes: rest.reduce((sum, r) => sum + r.bytes, 0), blocks: rest.reduce((sum, r) => sum + r.blocks, 0)};
  };
  const tagList = top(tags), locationList = top(locations);
  fillMoment('moment-tags', tagList.slice(0, mostShown).map((t) =>
    barRow(slotColor(slotOfTag[t.key]), tagText(t.key), tagText(t.key), t.bytes, total, t.blocks)),
    restOf(tagList, 'tag'), total);
  fillMoment('moment-locations', locationList.slice(0, mostShown).map((p) =>
    barRow(null, locationText(p.key), locationTitle(p.key), p.bytes, total, p.blocks)), restOf(locationList, 'location'), total);
  fillMoment('moment-blocks', largest.map((b) => barRow(null,
    [info.tags.length > 1 && tagText(shapes.tag[b.shape]), shapes.location[b.shape] && locationText(shapes.location[b.shape]),
      addressText(b.address)].filter(Boolean).slice(0, 2).join(', '),
    addressText(b.address), b.bytes, total, null)), {count: 0}, total);
};
const locationTitle = (location) =>
  (info.locations[location] ?? []).map(([file, line, name]) => `${file}:${line} ${name}`).join('\n');
