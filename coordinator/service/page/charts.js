// Charts as SVG. Each is an image with a name; its figures are in a table beside it.

import {el, svg} from './dom.js';

// Even steps of 1, 2 or 5 times a power of ten: about `parts` of them over the range.
export function roundStep(range, parts) {
  if (!(range > 0)) return 1;
  const raw = range / parts;
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= raw * 0.999);
}

const digitsOf = (step) => Math.max(0, -Math.floor(Math.log10(step) + 1e-9));

export const tip = (text) => svg('title', null, text);

export const image = (name, width, height, ...children) =>
  svg('svg', {role: 'img', 'aria-label': name, width, height, viewBox: `0 0 ${width} ${height}`},
    children);

export function legend(entries) {
  return el('ul', {class: 'legend'}, entries.map(([mark, text]) => {
    const marks = {
      forward: () => svg('rect', {class: 'forward', width: 12, height: 12}),
      backward: () => svg('rect', {class: 'backward', width: 12, height: 12}),
      idle: () => svg('rect', {class: 'idle', width: 12, height: 12}),
      after: () => svg('g', null, svg('line', {class: 'after-line', x1: 0, x2: 22, y1: 6, y2: 6}),
        svg('circle', {class: 'after-dot', cx: 11, cy: 6, r: 3})),
      before: () => svg('g', null, svg('line', {class: 'before-line', x1: 0, x2: 22, y1: 6, y2: 6}),
        svg('rect', {class: 'before-dot', x: 8, y: 3, width: 6, height: 6})),
      fallback: () => svg('path', {class: 'fallback-mark', d: 'M1 11 L6 2 L11 11 Z'}),
      range: () => svg('line', {class: 'range', x1: 0, x2: 22, y1: 6, y2: 6}),
      dot: () => svg('circle', {class: 'after-dot', cx: 6, cy: 6, r: 3.5}),
      square: () => svg('rect', {class: 'before-dot', x: 3, y: 3, width: 6, height: 6}),
      base: () => svg('line', {class: 'base', x1: 0, x2: 22, y1: 6, y2: 6}),
    };
    const wide = ['after', 'before', 'range', 'base'].includes(mark);
    return el('li', null, svg('svg', {width: wide ? 22 : 12, height: 12, 'aria-hidden': true},
      marks[mark]()), text);
  }));
}

// The plane of a chart: left axis with its ticks; x and y turn values into places.
export function plane({width, height, from, to, unit = '', left = 50, bottom = 22}) {
  const top = 10;
  const right = 14;
  const y = (value) => top + (height - top - bottom) * (1 - (value - from) / (to - from || 1));
  const step = roundStep(to - from, 5);
  const parts = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + 1e-9; ++i) {
    const place = y(i * step);
    parts.push(svg('line', {class: 'axis', x1: left, x2: width - right, y1: place, y2: place}),
      svg('text', {x: left - 7, y: place + 4, 'text-anchor': 'end'},
        `${(i * step).toFixed(digitsOf(step))}${unit}`));
  }
  return {parts, y, left, right: width - right, base: height - bottom, width, height};
}

// points: {x, y or null, tip}. A gap where y is null.
export function line(points, kind) {
  let path = '';
  let open = false;
  for (const p of points) {
    if (p.y === null) {
      open = false;
      continue;
    }
    path += `${open ? 'L' : 'M'}${p.x.toFixed(1)} ${p.y.toFixed(1)}`;
    open = true;
  }
  const dots = points.filter((p) => p.y !== null).map((p) => (kind === 'after'
    ? svg('circle', {class: 'after-dot', cx: p.x, cy: p.y, r: 3}, tip(p.tip))
    : svg('rect', {class: 'before-dot', x: p.x - 3, y: p.y - 3, width: 6, height: 6}, tip(p.tip))));
  return svg('g', null, svg('path', {class: `${kind}-line`, d: path}), dots);
}

// Labels below an axis, as many as have room.
export function labels(places, texts, y, room) {
  const out = [];
  let free = -Infinity;
  places.forEach((x, i) => {
    if (x < free) return;
    out.push(svg('text', {x, y, 'text-anchor': 'middle'}, texts[i]));
    free = x + room;
  });
  return out;
}

export const triangle = (x, y, text) =>
  svg('path', {class: 'fallback-mark', d: `M${x - 5} ${y} L${x} ${y - 9} L${x + 5} ${y} Z`}, tip(text));
