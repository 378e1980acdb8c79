// Which view is shown, and when it asks again.
import { byId, setText } from './dom.js';
import { drawOverview, drawRate } from './overview.js';
import { drawPrefixes, drawRequests, drawSessions, drawSettings, drawSpaces, filterSettings, offerSpaces, turnSpaces } from './lists.js';
import { seconds } from './text.js';

const VIEWS = ['overview', 'prefixes', 'requests', 'spaces', 'sessions', 'settings'];
const EVERY_MS = 2000;
const MOST_POINTS = 3000;
const DRAW = { prefixes: drawPrefixes, requests: drawRequests, spaces: drawSpaces, sessions: drawSessions, settings: drawSettings };

let points = [];
let state = null;
let paused = false;
let view = 'overview';
let epoch = null;

function fail(text) {
  const box = byId('failure');
  box.hidden = text === '';
  setText(box, text);
}

async function readState() {
  const reply = await fetch('state.json', { cache: 'no-store' });
  if (reply.status === 503) throw new Error('prefixd starts or stops; trying again.');
  if (!reply.ok) throw new Error(`prefixd answers ${reply.status}: ${(await reply.text()).slice(0, 200)}`);
  return reply.json();
}

async function take(next) {
  if (epoch !== next.epoch) {
    epoch = next.epoch;
    const reply = await fetch('history.json', { cache: 'no-store' });
    points = reply.ok ? (await reply.json()).points : [];
    if (next.uptime_s < 900) byId('window').value = '300';
  }
  const last = points[points.length - 1];
  if (last === undefined || next.totals.uptime_s > last.uptime_s) points.push(next.totals);
  if (points.length > MOST_POINTS) points = points.slice(-MOST_POINTS);
  state = next;
}

function drawTop() {
  const chip = byId('health');
  setText(chip, state.health);
  chip.className = `chip ${state.health === 'serving' ? 'good' : 'warning'}`;
  setText(byId('uptime'), `up ${seconds(state.uptime_s)}`);
  setText(byId('version'), state.version);
}

// A list is not drawn anew under the hands of who is in it.
function isInUse() {
  const focused = document.activeElement;
  return focused !== null && focused.closest('.card, .controls') !== null;
}

async function drawView() {
  if (view === 'overview') drawOverview(state, points);
  else if (!isInUse()) await DRAW[view]();
}

async function turn() {
  if (!paused && !document.hidden) {
    try {
      await take(await readState());
      drawTop();
      await drawView();
      fail('');
    } catch (error) {
      setText(byId('health'), 'no answer');
      byId('health').className = 'chip warning';
      fail(error instanceof TypeError ? 'prefixd does not answer; trying again.' : error.message);
    }
  }
  setTimeout(turn, EVERY_MS);
}

async function redraw() {
  try {
    if (view === 'overview') {
      if (state !== null) drawOverview(state, points);
    } else {
      if (view === 'prefixes') await offerSpaces();
      await DRAW[view]();
    }
  } catch (error) {
    fail(error.message);
  }
}

function route() {
  const wanted = location.hash.slice(1);
  if (wanted === 'main') return;
  const before = view;
  view = VIEWS.includes(wanted) ? wanted : 'overview';
  for (const name of VIEWS) byId(name).hidden = name !== view;
  for (const link of document.querySelectorAll('nav a')) {
    if (link.hash === `#${view}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  document.title = view === 'overview' ? 'prefixd' : `${view[0].toUpperCase()}${view.slice(1)} · prefixd`;
  if (before !== view) window.scrollTo(0, 0);
  redraw();
}

function listen() {
  window.addEventListener('hashchange', route);
  byId('skip').addEventListener('click', (event) => {
    event.preventDefault();
    byId('main').focus();
  });
  byId('pause').addEventListener('click', () => {
    paused = !paused;
    byId('pause').setAttribute('aria-pressed', String(paused));
  });
  const theme = byId('theme');
  theme.value = document.documentElement.dataset.theme || 'auto';
  theme.addEventListener('change', () => {
    if (theme.value === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme.value;
    try {
      localStorage.setItem('prefixd-theme', theme.value);
    } catch {
      // It holds until the page is loaded again.
    }
  });
  byId('window').addEventListener('change', () => state !== null && drawRate(state, points));
  for (const name of ['prefixes', 'requests', 'spaces', 'sessions', 'settings']) {
    byId(`${name}-controls`).addEventListener('submit', (event) => {
      event.preventDefault();
      turnSpaces(0);
      redraw();
    });
  }
  for (const id of ['prefixes-space', 'requests-below', 'spaces-sort']) {
    byId(id).addEventListener('change', () => {
      turnSpaces(0);
      redraw();
    });
  }
  byId('spaces-back').addEventListener('click', () => { turnSpaces(-1); redraw(); });
  byId('spaces-next').addEventListener('click', () => { turnSpaces(1); redraw(); });
  byId('settings-find').addEventListener('input', filterSettings);
  byId('settings-changed').addEventListener('change', filterSettings);
  let waiting = 0;
  window.addEventListener('resize', () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => state !== null && view === 'overview' && drawRate(state, points));
  });
}

listen();
route();
turn();
