// Drawings in SVG. Each has its text: a label of its own, or the words beside it.
import { make, svg } from './dom.js';
import { percent, seconds } from './text.js';

const TIERS = ['ram', 'ssd', 'far'];

// Returns what was counted between two samples.
export function flow(before, now) {
  const made = { seconds: Math.max(0, now.uptime_s - before.uptime_s) };
  for (const name of ['requested', 'ram', 'ssd', 'far', 'used', 'evicted', 'ssd_read', 'ssd_written', 'seconds_saved']) {
    made[name] = Math.max(0, now[name] - before[name]);
  }
  return made;
}

// Returns the sum of the newest points of so many seconds.
export function recent(points, most) {
  const now = points[points.length - 1];
  let from = points.length - 1;
  while (from > 0 && now.uptime_s - points[from - 1].uptime_s <= most) from -= 1;
  return flow(points[from], now);
}

export function hitRate(counted) {
  if (counted.requested <= 0) return null;
  return Math.min(1, (counted.ram + counted.ssd + counted.far) / counted.requested);
}

// Returns so many columns of equal time, each with the tiers' shares of what was asked for; null: nobody asked.
export function columnsOf(points, window, most) {
  if (points.length < 2) return [];
  const now = points[points.length - 1].uptime_s;
  const step = window / most;
  const sums = Array.from({ length: most }, () => ({ requested: 0, ram: 0, ssd: 0, far: 0 }));
  for (let i = 1; i < points.length; i += 1) {
    const made = flow(points[i - 1], points[i]);
    if (made.seconds === 0) continue;
    // What was counted between two samples belongs to every column that lies between them.
    const begin = most - (now - points[i - 1].uptime_s) / step;
    const end = most - (now - points[i].uptime_s) / step;
    for (let at = Math.max(0, Math.floor(begin)); at < Math.min(most, end); at += 1) {
      const part = (Math.min(end, at + 1) - Math.max(begin, at)) / (end - begin);
      for (const name of Object.keys(sums[at])) sums[at][name] += part * made[name];
    }
  }
  return sums.map((sum) => (sum.requested < 1e-6 ? null : {
    ram: Math.min(1, sum.ram / sum.requested), ssd: sum.ssd / sum.requested, far: sum.far / sum.requested,
  }));
}

const EDGE = { left: 44, right: 8, top: 8, bottom: 24 };

export function rateChart(points, window, width) {
  const height = width < 500 ? 150 : 190;
  const inner = { width: width - EDGE.left - EDGE.right, height: height - EDGE.top - EDGE.bottom };
  const columns = columnsOf(points, window, Math.max(20, Math.min(120, Math.floor(inner.width / 6))));
  const y = (value) => EDGE.top + inner.height * (1 - value);
  const parts = [];
  for (const mark of [0, 0.5, 1]) {
    parts.push(svg('line', { class: 'grid', x1: EDGE.left, x2: width - EDGE.right, y1: y(mark), y2: y(mark) }));
    parts.push(svg('text', { class: 'axis', x: EDGE.left - 8, y: y(mark) + 4, 'text-anchor': 'end' }, `${100 * mark} %`));
  }
  const wide = columns.length > 0 ? inner.width / columns.length : 0;
  columns.forEach((column, at) => {
    if (column === null) return;
    let base = 0;
    for (const tier of TIERS) {
      const tall = Math.min(column[tier], 1 - base);
      if (tall <= 0) continue;
      parts.push(svg('rect', {
        class: tier, x: EDGE.left + at * wide, width: Math.max(1, wide - 1), y: y(base + tall), height: inner.height * tall,
      }));
      base += tall;
    }
    if (base === 0) {
      parts.push(svg('rect', { class: 'miss', x: EDGE.left + at * wide, width: Math.max(1, wide - 1), y: y(0) - 2, height: 2 }));
    }
  });
  parts.push(svg('text', { class: 'axis', x: EDGE.left, y: height - 6 }, `${seconds(window).replace(' 0 s', '').replace(' 0 min', '')} ago`));
  parts.push(svg('text', { class: 'axis', x: width - EDGE.right, y: height - 6, 'text-anchor': 'end' }, 'now'));
  return svg('svg', { viewBox: `0 0 ${width} ${height}`, width, height, 'aria-hidden': 'true', focusable: 'false' }, ...parts);
}

// Returns in words what the chart shows.
export function rateWords(points, window) {
  const rates = columnsOf(points, window, 60).filter((column) => column !== null).map((column) => column.ram + column.ssd + column.far);
  if (rates.length === 0) return 'No request in this time.';
  const least = Math.min(1, Math.min(...rates));
  const most = Math.min(1, Math.max(...rates));
  return `Between ${percent(least)} and ${percent(most)} of the tokens asked for, ${percent(Math.min(1, rates[rates.length - 1]))} at the end.`;
}

// parts: [{name, bytes, kind}] of `whole`, drawn one after the other.
export function bar(parts, whole) {
  const pieces = [];
  let at = 0;
  for (const part of parts) {
    const wide = whole > 0 ? Math.min(100 - at, (100 * part.bytes) / whole) : 0;
    if (wide <= 0) continue;
    pieces.push(svg('rect', { class: part.kind, x: at, y: 0, width: wide, height: 10 }));
    at += wide;
  }
  return svg('svg', { class: 'bar', viewBox: '0 0 100 10', preserveAspectRatio: 'none', 'aria-hidden': 'true', focusable: 'false' }, ...pieces);
}

// phases: [{name, text, begin_us, end_us, by_worker}], one below the other on one scale.
export function timeline(phases) {
  const end = Math.max(...phases.map((phase) => phase.end_us), 1);
  const rows = phases.map((phase) => {
    const from = (100 * phase.begin_us) / end;
    const wide = Math.max(0.6, (100 * (phase.end_us - phase.begin_us)) / end);
    const drawn = svg(
      'svg', { class: 'bar thin', viewBox: '0 0 100 10', preserveAspectRatio: 'none', 'aria-hidden': 'true', focusable: 'false' },
      svg('rect', { class: phase.by_worker ? 'worker' : 'daemon', x: Math.min(from, 99.4), y: 0, width: wide, height: 10 }),
    );
    return make(
      'li', {}, make('span', { class: 'phase' }, phase.name), drawn,
      make('span', { class: 'number' }, seconds((phase.end_us - phase.begin_us) / 1e6)), make('small', {}, phase.text),
    );
  });
  return make('ol', { class: 'timeline' }, ...rows);
}
