// What prefixctl top shows, drawn live.
import { byId, make, setRows, setText } from './dom.js';
import { bar, hitRate, rateChart, rateWords, recent } from './draw.js';
import { bytes, count, percent, plural, seconds, share } from './text.js';

const LEVELS = { good: 'Good', note: 'Note', warning: 'Warning' };
const rateText = (rate) => (rate === null ? '–' : percent(rate));

function perSecond(value, counted) {
  return counted.seconds > 0 ? value / counted.seconds : 0;
}

function drawAnswers(answers) {
  const box = byId('answers');
  if (box.childElementCount !== answers.length) {
    box.replaceChildren(...answers.map(() => make(
      'article', {}, make('h2'), make('p', { class: 'level' }), make('p', { class: 'answer' }),
    )));
  }
  answers.forEach((plain, at) => {
    const article = box.children[at];
    article.className = `card answer-card ${plain.level}`;
    setText(article.children[0], plain.question);
    setText(article.children[1], LEVELS[plain.level] || '');
    setText(article.children[2], plain.answer);
  });
}

function drawTroubles(troubles) {
  const list = byId('troubles');
  const key = troubles.join('\n');
  list.hidden = troubles.length === 0;
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...troubles.map((text) => make('li', {}, text)));
}

export function drawRate(state, points) {
  const window = Number(byId('window').value);
  setRows(byId('rate-figures'), [
    ['now', rateText(hitRate(recent(points, 10)))],
    ['last minute', rateText(hitRate(recent(points, 60)))],
    ['since start', rateText(hitRate(state.totals))],
  ]);
  const box = byId('rate-chart');
  if (box.clientWidth > 0) box.replaceChildren(rateChart(points, window, box.clientWidth));
  byId('legend-far').hidden = state.far === null;
  setText(byId('rate-text'), rateWords(points, window));
}

const PARTS = { arena: 'ram', index: 'ram-index' };

function tierRow(name, text, drawn, note) {
  return make('div', { class: 'tier' }, make('h3', {}, name), drawn, make('p', {}, make('strong', {}, text), make('small', {}, note)));
}

function ramRow(state, hits, all) {
  const ram = state.ram;
  const parts = ram.parts.map((part) => ({ ...part, kind: PARTS[part.name] || 'ram-rest' }));
  const names = ram.parts.map((part) => `${part.name} ${bytes(part.bytes)}`).join(', ');
  return tierRow(
    'RAM', `${share(ram.used_bytes, ram.budget_bytes)} · ${bytes(ram.used_bytes)} of ${bytes(ram.budget_bytes)}`,
    bar(parts, ram.budget_bytes), `${names || 'empty'}; ${share(hits, all)} of hits in the last minute`,
  );
}

function ssdRow(state, hits, all) {
  const ssd = state.ssd;
  if (ssd === null) return tierRow('SSD', 'off', bar([], 1), 'What is cached is lost at a reboot.');
  return tierRow(
    'SSD', `${share(ssd.file_bytes, ssd.budget_bytes)} · ${bytes(ssd.file_bytes)} of ${bytes(ssd.budget_bytes)}`,
    bar([{ bytes: ssd.file_bytes, kind: 'ssd' }], ssd.budget_bytes),
    `${bytes(ssd.dirty_bytes)} in RAM only; ${share(hits, all)} of hits in the last minute`,
  );
}

function farRow(state, hits, all) {
  const far = state.far;
  const answer = far.servers_total - far.servers_given_up;
  return tierRow(
    'Other hosts', far.known ? `${answer} of ${plural(far.servers_total, 'server')} answer` : 'not known yet',
    bar([{ bytes: answer, kind: 'far' }], far.servers_total), `${share(hits, all)} of hits in the last minute`,
  );
}

function drawTiers(state, counted) {
  const all = counted.ram + counted.ssd + counted.far;
  const rows = [ramRow(state, counted.ram, all), ssdRow(state, counted.ssd, all)];
  if (state.far !== null) rows.push(farRow(state, counted.far, all));
  byId('tiers').replaceChildren(...rows);
}

const age = (ms) => (ms < 0 ? '–' : seconds(ms / 1000));

function drawRows(state, counted) {
  const out = state.evictions;
  setRows(byId('evictions'), [
    ['rate', `${bytes(perSecond(counted.evicted, counted))}/s`, 'last minute'],
    ['since start', bytes(state.totals.evicted)],
    ['idle before', age(out.median_idle_ms), 'median of the blocks that left'],
    ['come back after', age(out.median_reuse_gap_ms), 'median of the blocks that are read again'],
    ['cost', plural(out.tokens_evicted_before, 'token'), 'asked for that had been evicted'],
  ]);
  const disk = state.ssd === null ? [['SSD', 'off']] : [
    ['reads', `${bytes(perSecond(counted.ssd_read, counted))}/s`, 'last minute'],
    ['writes', `${bytes(perSecond(counted.ssd_written, counted))}/s`, 'last minute'],
    ['written', bytes(state.ssd.written_bytes), `${share(state.ssd.rewritten_bytes, state.ssd.written_bytes)} of it again`],
    ['wear', state.ssd.sizes_a_day === undefined ? '–' : `${state.ssd.sizes_a_day.toFixed(2)} sizes a day`,
      state.ssd.sizes_a_day === undefined ? 'told after an hour' : 'written, of its budget'],
  ];
  const far = state.far === null ? [['other hosts', 'no store is shared']] : [
    ['from other hosts', bytes(state.far.read_bytes)], ['to other hosts', bytes(state.far.written_bytes)],
  ];
  setRows(byId('disk'), [...disk, ...far]);
  setRows(byId('holders'), [
    ['sessions', count(state.sessions)],
    ['leases', count(state.leases), bytes(state.leased_bytes)],
    ['pins', count(state.pins), bytes(state.pinned_bytes)],
    ['reservations', count(state.reservations)],
    ['spaces', count(state.spaces)],
  ]);
}

export function drawOverview(state, points) {
  const counted = recent(points, 60);
  drawAnswers(state.answers);
  drawTroubles(state.troubles);
  drawRate(state, points);
  setRows(byId('saved'), [
    ['tokens not computed again', count(state.totals.used), `${count(counted.used)} in the last minute`],
    ['time of prefill', seconds(state.totals.seconds_saved), `${seconds(counted.seconds_saved)} in the last minute`],
    ['tokens asked for', `${count(perSecond(counted.requested, counted))}/s`, `${count(state.totals.requested)} since start`],
    ['requests', count(state.lookups), 'since start'],
  ]);
  drawTiers(state, counted);
  drawRows(state, counted);
}
