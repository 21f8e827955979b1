// What is shown where, and the refresh: every two seconds, not while the page is hidden.

import {el, replace} from './dom.js';
import {JobView} from './job_view.js';
import {JobsView} from './jobs_view.js';

const REFRESH_MS = 2000;
const PATIENCE_MS = 8000;  // for an answer

const main = document.getElementById('main');
const banners = document.getElementById('banners');
let view = null;
let timer = null;
let asking = null;  // AbortController of the request under way
let reached = null;  // time of the last answer
let away = false;

const setText = (id, text) => {
  const node = document.getElementById(id);
  if (node.textContent !== text) node.textContent = text;
};

// For screen readers, sparingly: only what somebody would want to be interrupted for.
const say = (text) => setText('live', text);

const clock = (time) => time.toLocaleTimeString('en-GB');

// Parts of #/job/NAMESPACE/NAME, or null for the table of jobs.
function jobOfAddress() {
  const parts = location.hash.split('/');
  if (parts.length !== 4 || parts[1] !== 'job') return null;
  try {
    return {namespace: decodeURIComponent(parts[2]), name: decodeURIComponent(parts[3])};
  } catch {
    return null;  // not encoded as a link of ours
  }
}

function showConnection(state, text) {
  document.getElementById('connection').setAttribute('data-state', state);
  setText('connection', text);
}

function showBanners(problem, error) {
  const wanted = [];
  if (away) {
    wanted.push(['bad', 'alert', `The coordinator cannot be reached (${error}). ` + (reached === null
      ? 'Trying again.' : `What is shown is from ${clock(reached)}; trying again.`)]);
  } else if (problem) {
    wanted.push(['warn', 'status', `Degraded: ${problem}.`]);
  }
  const shown = JSON.stringify(wanted);
  if (banners.dataset.shown === shown) return;
  banners.dataset.shown = shown;
  replace(banners, wanted.map(([kind, role, text]) => el('p', {class: `banner ${kind}`, role}, text)));
}

function showError(error) {
  if (view.error === error.message) return;
  view.error = error.message;
  replace(main, el('section', {class: 'panel'}, el('h1', {tabindex: -1}, view.title),
    el('p', null, error.message),
    el('p', null, el('a', {href: '#/', 'data-focus': 'all jobs'}, 'All jobs'))));
}

async function refresh() {
  clearTimeout(timer);
  asking?.abort();
  const mine = asking = new AbortController();
  const shown = view;
  const late = setTimeout(() => mine.abort('late'), PATIENCE_MS);
  try {
    const answer = await fetch(shown.request(), {signal: mine.signal, cache: 'no-store',
      headers: {Accept: 'application/json'}});
    const data = await answer.json();
    if (mine !== asking) return;
    reached = new Date();
    away = false;
    showConnection('live', `updated ${clock(reached)}`);
    if (data.error) {
      shown.mounted = false;
      showError(data.error);
    } else {
      if (!shown.mounted) {
        shown.mount(main, refresh);
        shown.mounted = true;
        shown.error = null;
      }
      setText('version', data.version);
      setText('epoch', data.leader_epoch);
      setText('store', data.store);
      const news = shown.update(data);
      if (news) say(news);
      main.setAttribute('data-ready', shown.title);
    }
    showBanners(data.problem, '');
    if (shown.focusWhenReady) main.querySelector('h1')?.focus({preventScroll: true});
    shown.focusWhenReady = false;
  } catch (error) {
    if (mine !== asking) return;
    away = true;
    showConnection('away', reached === null ? 'not reached' : `not reached since ${clock(reached)}`);
    showBanners('', mine.signal.aborted ? `no answer within ${PATIENCE_MS / 1000} s` : 'no connection');
  } finally {
    clearTimeout(late);
    if (mine === asking) {
      asking = null;
      schedule();
    }
  }
}

function schedule() {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(refresh, REFRESH_MS);
}

function route(event) {
  const key = jobOfAddress();
  view = key === null ? new JobsView() : new JobView(key);
  // After a link was followed the focus goes where a new page's would; not at the first load.
  view.focusWhenReady = event !== undefined;
  document.title = `${view.title} – SparseBalance coordinator`;
  main.removeAttribute('data-ready');
  if (event !== undefined) {
    window.scrollTo(0, 0);
    // What was shown is of another page; until the answer comes nothing may be taken for this one's.
    replace(main, el('div', {class: 'head'}, el('h1', {tabindex: -1}, view.title)));
  }
  refresh();
}

document.addEventListener('visibilitychange', () => {
  if (document.hidden) {
    clearTimeout(timer);
  } else {
    refresh();
  }
});
window.addEventListener('hashchange', route);
// The skip link's own address would be taken for a job's.
document.getElementById('skip').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});
let resized = null;
window.addEventListener('resize', () => {
  clearTimeout(resized);
  resized = setTimeout(() => view?.draw?.(), 150);
});
route();
