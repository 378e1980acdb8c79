// Numbers as people read them.

export function count(value) {
  return Math.round(value).toLocaleString('en-US');
}

export function plural(value, what) {
  return `${count(value)} ${what}${value === 1 ? '' : 's'}`;
}

export function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let at = 0;
  let left = Math.max(0, value);
  while (left >= 1024 && at + 1 < units.length) {
    left /= 1024;
    at += 1;
  }
  return `${at === 0 ? Math.round(left) : left.toFixed(1)} ${units[at]}`;
}

export function seconds(value) {
  if (value < 0) return `-${seconds(-value)}`;
  if (value === 0) return '0 s';
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${trimmed(value * 1000)} ms`;
  if (value < 60) return `${trimmed(value)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(value % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} days ${hours % 24} h`;
}

function trimmed(value) {
  return value < 10 ? value.toFixed(1) : Math.round(value).toString();
}

export function share(part, whole) {
  return whole > 0 ? percent(part / whole) : '–';
}

export function percent(value) {
  return `${(100 * value).toFixed(1)} %`;
}

export function shortId(id) {
  return id.slice(0, 12);
}
