// Elements from plain data. Text only ever becomes text nodes: what a job is called cannot be markup.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'on') {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else {
      node.setAttribute(name, value === true ? '' : String(value));
    }
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export const el = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);

export const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

// A value of the API as it came, for whoever reads the page by program.
export const field = (name, value, text) =>
  el('span', {'data-field': name, 'data-value': value}, text);

// columns: {title, number, name}; rows: arrays of cells, or {attributes, cells}. The first cell of a
// row is its header.
export function table({caption, columns, rows, className, hideCaption}) {
  const kind = (c) => (c.number ? 'number' : c.name ? 'name' : null);
  const cells = (row) => row.cells ?? row;
  return el('table', {class: className},
    el('caption', {class: hideCaption ? 'unseen' : null}, caption),
    el('thead', null, el('tr', null,
      columns.map((c) => el('th', {scope: 'col', class: kind(c)}, c.title)))),
    el('tbody', null, rows.map((row) => el('tr', row.attributes,
      cells(row).map((cell, i) => el(i === 0 ? 'th' : 'td',
        {scope: i === 0 ? 'row' : null, class: kind(columns[i])}, cell))))));
}

export const scroll = (label, ...children) =>
  el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label, 'data-focus': label}, children);

// A table that stays out of the way until it is asked for.
export const folded = (key, summary, described) =>
  el('details', {'data-open': key}, el('summary', {'data-focus': key}, summary),
    scroll(described.caption, table(described)));

export const panel = (id, title, ...children) =>
  el('section', {class: 'panel', 'aria-labelledby': `${id}-title`},
    el('h2', {id: `${id}-title`}, title), children);

// Puts `made` in place of what `holder` holds. What was open stays open, tables stay where they were
// scrolled to and the focus where it was, so that a refresh does not disturb whoever reads.
export function replace(holder, made) {
  const focused = holder.contains(document.activeElement)
    ? document.activeElement.getAttribute('data-focus') : null;
  const open = new Set([...holder.querySelectorAll('details[open]')]
    .map((details) => details.getAttribute('data-open')));
  const scrolled = [...holder.querySelectorAll('.scroll, figure')].map((node) => node.scrollLeft);
  holder.replaceChildren(...[made].flat(Infinity).filter(Boolean));
  for (const details of holder.querySelectorAll('details')) {
    details.open = open.has(details.getAttribute('data-open'));
  }
  holder.querySelectorAll('.scroll, figure').forEach((node, i) => {
    if (scrolled[i]) node.scrollLeft = scrolled[i];
  });
  if (focused === null) return;
  const again = [...holder.querySelectorAll('[data-focus]')]
    .find((node) => node.getAttribute('data-focus') === focused);
  again?.focus({preventScroll: true});
}

// A view's part that is made again only when what it shows has changed.
export class Section {
  constructor(build) {
    this.holder = el('div');
    this.build = build;
    this.shown = null;
  }

  update(data) {
    const key = JSON.stringify(data);
    if (key === this.shown) return;
    this.shown = key;
    replace(this.holder, this.build(data));
  }
}
