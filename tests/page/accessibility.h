// What keeps people from reading a page, as an expression of JavaScript.
#pragma once

namespace sparsebalance::testing_support {

// An array of findings: pictures without a name or a table, text that is cut or too faint
// (below 4.5 to 1), tables without captions and scopes, missing landmarks, a page wider than the
// window.
inline constexpr char kAccessibilityFindings[] = R"js((() => {
  const out = [];
  for (const picture of document.querySelectorAll('main svg:not([aria-hidden])')) {
    if (picture.getAttribute('role') !== 'img' || !picture.getAttribute('aria-label'))
      out.push('picture without a name');
    if (!picture.closest('figure')?.querySelector('table caption'))
      out.push('picture without a table: ' + picture.getAttribute('aria-label'));
    for (const text of picture.querySelectorAll('text')) {
      const a = text.getBoundingClientRect(), b = picture.getBoundingClientRect();
      if (a.left < b.left - 1 || a.right > b.right + 1 || a.bottom > b.bottom + 1)
        out.push('cut: ' + text.textContent);
    }
  }
  for (const table of document.querySelectorAll('table')) {
    if (!table.caption?.textContent) out.push('table without a caption');
    if (table.querySelector('thead th:not([scope=col]), tbody th:not([scope=row])'))
      out.push('header without scope');
  }
  for (const input of document.querySelectorAll('input'))
    if (input.labels.length === 0) out.push('input without a label');
  if (document.querySelectorAll('h1').length !== 1) out.push('not one h1');
  for (const mark of ['header', 'main', 'footer nav'])
    if (!document.querySelector(mark)) out.push('no ' + mark);
  if (document.documentElement.scrollWidth > innerWidth) out.push('wider than the window');
  if (!document.title || !document.documentElement.lang) out.push('no title or language');

  const channels = (color) => color.match(/[\d.]+/g).map(Number);
  const brightness = (color) => {
    const [r, g, b] = channels(color).map((c) => c / 255)
      .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      const parts = channels(color);
      if (parts.length === 3 || parts[3] > 0) return color;
    }
    return 'rgb(255, 255, 255)';
  };
  const faint = new Set();
  for (const node of document.querySelectorAll('body *')) {
    if (![...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim())) continue;
    if (node.tagName === 'title' || node.tagName === 'NOSCRIPT' || node.disabled) continue;
    const style = getComputedStyle(node);
    const drawn = node.tagName === 'text';
    const back = node.classList.contains('on-op')
      ? getComputedStyle(node.previousElementSibling).fill : behind(node);
    const [low, high] = [brightness(drawn ? style.fill : style.color), brightness(back)]
      .sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) faint.add(`faint, ${ratio.toFixed(2)}: ${node.tagName} ${node.className} ` +
      node.textContent.slice(0, 40));
  }
  return out.concat([...faint]);
})())js";

}  // namespace sparsebalance::testing_support
