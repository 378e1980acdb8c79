// The views below the overview: each asks for its own data.
import { byId, make, setText, table } from './dom.js';
import { bar, timeline } from './draw.js';
import { bytes, count, plural, seconds, share, shortId } from './text.js';

async function ask(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== '' && value !== null);
  const text = given.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join('&');
  const reply = await fetch(text === '' ? path : `${path}?${text}`, { cache: 'no-store' });
  if (!reply.ok) throw new Error((await reply.text()).trim().slice(0, 200));
  return reply.json();
}

function modelOf(models, id) {
  return models[id] === undefined ? shortId(id) : models[id];
}

// --- spaces ---

let spacesFrom = 0;

const SPACE_COLUMNS = [
  { name: 'model', long: true, cell: (space) => space.model || '(no name)' },
  { name: 'space', cell: (space) => make('code', { title: space.id }, shortId(space.id)) },
  { name: 'hit rate', number: true, cell: (space) => share(space.restorable, space.requested) },
  { name: 'asked', number: true, cell: (space) => count(space.requested) },
  { name: 'stored tokens', number: true, cell: (space) => count(space.stored_tokens) },
  { name: 'blocks', number: true, cell: (space) => count(space.blocks) },
  { name: 'RAM', number: true, cell: (space) => bytes(space.ram_bytes) },
  { name: 'SSD', number: true, cell: (space) => bytes(space.ssd_bytes) },
  { name: 'RAM only', number: true, cell: (space) => bytes(space.dirty_bytes) },
];

export async function drawSpaces() {
  const data = await ask('spaces.json', { find: byId('spaces-find').value.trim(), sort: byId('spaces-sort').value, from: spacesFrom });
  const end = spacesFrom + data.spaces.length;
  const shown = data.spaces.length === 0 ? '0' : `${count(spacesFrom + 1)} to ${count(end)}`;
  setText(byId('spaces-text'), `${shown} of ${count(data.matching)}; ${plural(data.total, 'space')} in all.`);
  byId('spaces-table').replaceChildren(table('Spaces', SPACE_COLUMNS, data.spaces, data.total === 0 ? 'No spaces yet: no worker has opened one.' : 'None matches.'));
  byId('spaces-back').disabled = spacesFrom === 0;
  byId('spaces-next').disabled = end >= data.matching;
  byId('spaces-next').dataset.step = data.spaces.length;
}

export function turnSpaces(direction) {
  spacesFrom = direction === 0 ? 0 : Math.max(0, spacesFrom + direction * 50);
}

// --- sessions ---

const notes = (session) => [
  ...(session.device_pinned_bytes > 0 ? [`has ${bytes(session.device_pinned_bytes)} pinned for GPUs`] : []),
  ...session.not_shared.map((note) => `does not share ${note.model}: ${note.reason}`),
].join('; ');
const SESSION_COLUMNS = [
  { name: 'worker', long: true, cell: (session) => session.worker || '(no name)' },
  { name: 'process', number: true, cell: (session) => (session.pid === 0 ? 'unknown' : String(session.pid)) },
  { name: 'reads', cell: (session) => (session.maps_arena ? 'in place' : 'copies') },
  { name: 'state', cell: (session) => (session.attached ? 'attached' : 'cut off, may be reading') },
  { name: 'age', number: true, cell: (session) => seconds(session.age_s) },
  { name: 'leases', number: true, cell: (session) => count(session.leases) },
  { name: 'leased', number: true, cell: (session) => bytes(session.leased_bytes) },
  { name: 'note', long: true, cell: notes },
];

export async function drawSessions() {
  const data = await ask('sessions.json');
  const workers = new Map(data.sessions.map((session) => [session.session, session.worker]));
  const leases = [
    { name: 'worker', long: true, cell: (lease) => workers.get(lease.session) || lease.session },
    { name: 'model', long: true, cell: (lease) => modelOf(data.models, lease.space) },
    { name: 'tokens', number: true, cell: (lease) => count(lease.tokens) },
    { name: 'bytes', number: true, cell: (lease) => bytes(lease.bytes) },
    { name: 'age', number: true, cell: (lease) => seconds(lease.age_s) },
  ];
  const pins = [
    { name: 'worker', long: true, cell: (pin) => pin.worker || '(no name)' },
    { name: 'model', long: true, cell: (pin) => modelOf(data.models, pin.space) },
    { name: 'tokens', number: true, cell: (pin) => count(pin.tokens) },
    { name: 'bytes', number: true, cell: (pin) => bytes(pin.bytes) },
    { name: 'ends in', number: true, cell: (pin) => (pin.left_s === 0 ? 'never' : seconds(pin.left_s)) },
  ];
  const all = [[data.sessions_total, 'session'], [data.leases_total, 'lease'], [data.pins_total, 'pin']];
  setText(byId('sessions-text'), `${all.map(([number, what]) => plural(number, what)).join(', ')}; the 200 largest of each are shown.`);
  byId('sessions-table').replaceChildren(table('Sessions', SESSION_COLUMNS, data.sessions, 'No worker is attached.'));
  byId('leases-table').replaceChildren(table('Leases', leases, data.leases, 'Nobody reads anything now.'));
  byId('pins-table').replaceChildren(table('Pins', pins, data.pins, 'Nothing is pinned.'));
}

// --- settings ---

let settings = [];

const SETTING_COLUMNS = [
  { name: 'setting', cell: (setting) => make('code', {}, setting.name) },
  { name: 'value', long: true, cell: (setting) => setting.value },
  { name: 'source', cell: (setting) => make('span', { class: setting.source === 'default' ? 'quiet' : 'said' }, setting.source) },
];

export function filterSettings() {
  const text = byId('settings-find').value.trim().toLowerCase();
  const rows = settings.filter((setting) => (setting.source !== 'default' || !byId('settings-changed').checked)
    && `${setting.name} ${setting.value}`.toLowerCase().includes(text));
  byId('settings-table').replaceChildren(table('Settings', SETTING_COLUMNS, rows, 'None matches.'));
}

export async function drawSettings() {
  settings = (await ask('config.json')).settings;
  filterSettings();
}

// --- requests ---

let requests = [];
let chosen = null;

function storyOf(request, models) {
  const steps = request.steps.map((step) => make(
    'li', { class: step.loses ? 'loses' : null }, make('h3', {}, step.title),
    make('p', {}, step.text), make('p', { class: 'tokens number' }, `${count(step.tokens)} of ${plural(request.requested, 'token')}`),
  ));
  const parts = [
    make('p', { class: 'lead' }, `${request.id}, ${seconds(request.age_s)} ago, from ${request.worker || 'a worker without a name'}, for ${modelOf(models, request.space)}.`),
    make('ol', { class: 'steps' }, ...steps), make('h3', {}, 'Where the time went'),
  ];
  if (request.phases.length === 0) parts.push(make('p', { class: 'quiet' }, 'Every phase took less than a microsecond.'));
  else {
    parts.push(timeline(request.phases));
    parts.push(make('ul', { class: 'legend' }, make('li', {}, make('i', { class: 'key daemon', 'aria-hidden': 'true' }), 'prefixd'), make('li', {}, make('i', { class: 'key worker', 'aria-hidden': 'true' }), 'as the worker reported')));
  }
  return parts;
}

function choose(request, models) {
  chosen = request.id;
  for (const button of document.querySelectorAll('#requests-table button')) {
    button.setAttribute('aria-pressed', String(button.dataset.id === chosen));
  }
  setText(byId('story-title'), 'Why');
  byId('story-body').replaceChildren(...storyOf(request, models));
}

export async function drawRequests() {
  const data = await ask('requests.json', { id: byId('requests-id').value.trim(), below: byId('requests-below').value });
  requests = data.requests;
  const open = (request) => {
    choose(request, data.models);
    byId('story').focus({ preventScroll: false });
  };
  const columns = [
    { name: 'request', cell: (request) => make('button', { type: 'button', class: 'link', 'data-id': request.id, 'aria-pressed': String(request.id === chosen), onclick: () => open(request) }, request.id || '(no id)') },
    { name: 'hit', number: true, cell: (request) => share(request.restorable, request.requested) },
    { name: 'tokens', number: true, cell: (request) => `${count(request.restorable)} of ${count(request.requested)}` },
    { name: 'ended by', cell: (request) => request.ended_by.replaceAll('_', ' ') },
    { name: 'model', long: true, cell: (request) => modelOf(data.models, request.space) },
    { name: 'worker', long: true, cell: (request) => request.worker },
    { name: 'age', number: true, cell: (request) => seconds(request.age_s) },
  ];
  setText(byId('requests-text'), `${plural(requests.length, 'request')} shown, newest first, of ${count(data.remembered)} looked through.`);
  byId('requests-table').replaceChildren(table('Requests', columns, requests, 'prefixd remembers no such request.'));
}

// --- prefixes ---

const opened = new Set();

function branch(node, most, data) {
  const { prefix, below } = node;
  const weight = prefix.requests * (prefix.to_token - prefix.from_token);
  const where = [];
  if (prefix.ram_bytes > 0) where.push(`RAM ${bytes(prefix.ram_bytes)}`);
  if (prefix.ssd_bytes > 0) where.push(`SSD ${bytes(prefix.ssd_bytes)}`);
  const line = [
    make('span', { class: 'span' }, `tokens ${count(prefix.from_token)} to ${count(prefix.to_token)}`),
    bar([{ bytes: weight, kind: 'ram' }], most),
    make('span', { class: 'number' }, `${count(weight)} tokens · ${plural(prefix.requests, 'request')}`),
    make('small', {}, `${prefix.parent === 0 ? `${modelOf(data.models, prefix.space)} · ` : ''}${where.join(', ') || 'no longer stored'} · ${seconds(prefix.age_s)} ago`),
  ];
  if (below.length === 0) return make('li', {}, make('div', { class: 'leaf' }, ...line));
  const key = `${prefix.space}${prefix.hash}`;
  const box = make('details', { open: prefix.parent === 0 || opened.has(key) }, make('summary', {}, ...line), make('ul', {}, ...below.map((one) => branch(one, most, data))));
  box.addEventListener('toggle', () => (box.open ? opened.add(key) : opened.delete(key)));
  return make('li', {}, box);
}

export async function drawPrefixes() {
  const data = await ask('prefixes.json', { space: byId('prefixes-space').value });
  const nodes = data.prefixes.map((prefix) => ({ prefix, below: [] }));
  const roots = nodes.filter((node) => node.prefix.parent === 0);
  for (const node of nodes) if (node.prefix.parent > 0) nodes[node.prefix.parent - 1].below.push(node);
  const most = Math.max(1, ...data.prefixes.map((prefix) => prefix.requests * (prefix.to_token - prefix.from_token)));
  const gone = data.gone > 0 ? `; ${count(data.gone)} more read what is gone since` : '';
  setText(byId('prefixes-text'), `${plural(data.prefixes.length, 'prefix').replace('prefixs', 'prefixes')} of ${plural(data.requests, 'request')}${gone}.`);
  byId('tree').replaceChildren(roots.length === 0 ? make('p', { class: 'empty' }, 'No request has read a whole block yet.') : make('ul', { class: 'tree' }, ...roots.map((root) => branch(root, most, data))));
}

export async function offerSpaces() {
  const data = await ask('spaces.json', {});
  const select = byId('prefixes-space');
  const before = select.value;
  const offers = data.spaces.map((space) => make('option', { value: space.id }, `${space.model || '(no name)'} · ${shortId(space.id)}`));
  select.replaceChildren(make('option', { value: '' }, 'all spaces'), ...offers);
  select.value = [...select.options].some((option) => option.value === before) ? before : '';
}
