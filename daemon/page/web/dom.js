// Elements, made without HTML: a text from outside is a text node and nothing else.

export function byId(id) {
  return document.getElementById(id);
}

export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'onclick') element.addEventListener('click', value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Writes only what is new, so that nothing flickers and no reader is told the same twice.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// rows: [name, value, note]. The elements stay; their texts change.
export function setRows(list, rows) {
  const key = rows.map((row) => row[0]).join('\n');
  if (list.dataset.key !== key) {
    list.dataset.key = key;
    list.replaceChildren(...rows.map(([name]) => make('div', {}, make('dt', {}, name), make('dd'))));
  }
  rows.forEach(([, value, note], at) => {
    const cell = list.children[at].lastElementChild;
    if (cell.childElementCount === 0) cell.append(make('span', { class: 'value' }), make('small'));
    setText(cell.firstElementChild, value);
    setText(cell.lastElementChild, note || '');
  });
}

// columns: [{name, number, cell(row)}], where cell returns a text or an element.
export function table(caption, columns, rows, empty) {
  if (rows.length === 0) return make('p', { class: 'empty' }, empty);
  const head = columns.map((column) => make('th', { scope: 'col', class: column.number ? 'number' : null }, column.name));
  const body = rows.map((row) => {
    const cells = columns.map((column, at) => {
      const attributes = { class: column.number ? 'number' : column.long ? 'long' : null };
      return at === 0 ? make('th', { ...attributes, scope: 'row' }, column.cell(row)) : make('td', attributes, column.cell(row));
    });
    return make('tr', {}, ...cells);
  });
  return make(
    'table', {}, make('caption', { class: 'sr' }, caption), make('thead', {}, make('tr', {}, ...head)), make('tbody', {}, ...body),
  );
}
