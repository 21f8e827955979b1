// One job: how it is, what its last steps were like, its plan, its ranks.

import {el, field, folded, panel, Section, table} from './dom.js';
import {bytes, count, figure, fixed, milliseconds, plural, stateName} from './format.js';
import {fallbackPanel, imbalancePanel} from './step_view.js';
import {lengthsPanel, planPanel} from './timeline.js';

function headline({state, last}) {
  const tile = (title, value, note) => el('div', null, el('dt', null, title),
    el('dd', null, el('div', {class: 'large'}, value), el('div', {class: 'note'}, note)));
  if (last === undefined) return null;
  const planned = !last.used_fallback && last.predicted_step_ms > 0;
  const saved = last.length_imbalance > 0
    ? [figure(last.length_imbalance, 3), ' → ', figure(last.rank_imbalance, 3)]
    : figure(last.rank_imbalance, 3);
  const rate = last.step_ms > 0 ? Number(last.tokens) / last.step_ms * 1000 : 0;
  return el('dl', {class: 'figures', 'aria-label': `Step ${last.step}`},
    tile('last step', count(last.step), last.used_fallback ? 'fallback plan' : `by ${last.policy}`),
    tile('step time', milliseconds(last.step_ms),
      planned ? `${milliseconds(last.predicted_step_ms)} predicted, `
        + `${fixed(100 * last.optimality_gap, 2)} % above the lower bound` : 'no prediction'),
    tile('imbalance', saved, last.length_imbalance > 0 ? 'before → after' : 'measured'),
    tile('coverage', planned ? figure(last.mean_coverage, 4) : '–', planned
      ? `least ${fixed(100 * last.min_coverage_ratio, 0)} % of the base budget's` : 'no plan'),
    tile('tokens a second', rate > 0 ? count(Math.round(rate)) : '–',
      `${plural(last.sequences, 'sequence')} a step`),
    tile('wait for the plan', `${fixed(last.plan_wait_ms, 1)} ms`, 'largest over ranks'),
    tile('loss', figure(last.loss, 4), 'nats a token'));
}

function attentionPanel({data, silent}) {
  const notices = [];
  const {status} = data;
  if (status.state !== 'JOB_STATE_FINISHED' && data.missing_ranks_total > 0) {
    notices.push(el('li', {class: 'bad'}, `Waits for ${data.missing}.`));
  }
  for (const rank of silent) {
    notices.push(el('li', {class: 'bad'}, `Rank ${rank.rank} on node `,
      el('bdi', null, rank.node_id), ' is suspect: its node has been silent for half of what it may.'));
  }
  for (const rank of data.slow_ranks) {
    notices.push(el('li', {'data-slow-rank': rank.rank}, `Rank ${rank.rank} on node `,
      el('bdi', null, rank.node_id), ' is slow, it takes ',
      field('time_factor', rank.time_factor, fixed(rank.time_factor, 2)), ' times as long as predicted',
      rank.device_name && [' (', el('bdi', null, rank.device_name), ')'], '.'));
  }
  const more = data.slow_ranks_total - data.slow_ranks.length;
  if (more > 0) notices.push(el('li', null, `${plural(more, 'more rank is', 'more ranks are')} slow.`));
  if (status.memory_full) {
    notices.push(el('li', null,
      'The namespace is at its max-bytes: coverage of further sequences is not remembered.'));
  }
  if (Number(status.sequences_consumed_twice) > 0) {
    notices.push(el('li', {class: 'bad'},
      `${plural(status.sequences_consumed_twice, 'sequence')} consumed twice in this epoch.`));
  }
  return panel('attention', 'Needs attention', notices.length > 0
    ? el('ul', {class: 'notices'}, notices)
    : el('p', null, `Nothing: no rank is missing, and none takes ${fixed(data.slow_factor, 2)} times as ` +
      'long as predicted or longer.'));
}

function factsPanel(status) {
  const p = status.spec.parallelism;
  const size = (value) => Math.max(1, value);
  const fact = (title, ...value) => el('div', null, el('dt', null, title), el('dd', null, value));
  const counted = (title, name) => fact(title, field(name, status[name], count(status[name])));
  return panel('job', 'Job',
    el('dl', {class: 'facts'},
      fact('policy', status.spec.plan.policy || 'sparsebalance'),
      fact('ranks', `${count(size(p.data) * size(p.pipeline) * size(p.sequence))}: data ${size(p.data)}, ` +
        `pipeline ${size(p.pipeline)}, sequence ${size(p.sequence)}`),
      counted('generation', 'generation'),
      counted('leader epoch', 'leader_epoch'),
      counted('next step', 'next_step'),
      counted('steps reported', 'steps_reported'),
      counted('fallback steps', 'fallback_steps'),
      fact('global batch', plural(status.spec.global_batch_size, 'sequence')),
      counted('consumed this epoch', 'sequences_consumed'),
      counted('consumed twice', 'sequences_consumed_twice'),
      counted('sequences remembered', 'remembered_sequences'),
      fact('state', field('state_bytes', status.state_bytes, bytes(status.state_bytes))),
      fact('latency model', field('latency_source', status.latency_source, status.latency_source)),
      fact('profile', `${status.spec.device_class || '–'}, ${status.spec.model_class || '–'}`)));
}

function ranksPanel({ranks, total, present}) {
  if (ranks.length === 0) return panel('ranks', 'Ranks', el('p', null, 'No node is in the job.'));
  const described = {
    caption: 'Ranks: their nodes, speed and last step',
    columns: [{title: 'Rank', number: true}, {title: 'Node', name: true}, {title: 'Device'},
      {title: 'Time factor', number: true}, {title: 'Last step', number: true},
      {title: 'Silent', number: true}],
    rows: ranks.map((r) => ({attributes: {'data-rank': r.rank}, cells: [r.rank,
      el('bdi', null, r.node_id), el('bdi', null, r.device_name || '–'),
      field('time_factor', r.time_factor, fixed(r.time_factor, 3)), count(r.last_step),
      `${r.silent_s} s${r.suspect ? ', suspect' : ''}`]})),
  };
  const note = ranks.length < present
    ? ` The ${ranks.length} listed are those whose node is suspect and the slowest.` : '';
  return panel('ranks', 'Ranks',
    el('p', null, `${count(present)} of ${count(total)} are in. A time factor above 1 is slow: measured ` +
      `over predicted, robust against outliers.${note}`),
    ranks.length > 12 ? folded('ranks', 'Table of ranks', described)
      : el('div', {class: 'scroll'}, table({...described, hideCaption: true})));
}

export class JobView {
  constructor(key) {
    this.key = key;
    this.title = `${key.namespace}/${key.name}`;
    this.plan = null;
    this.planKey = '';
    this.state = null;
    this.sections = {
      headline: new Section(headline), attention: new Section(attentionPanel),
      imbalance: new Section(imbalancePanel), plan: new Section(planPanel),
      lengths: new Section(lengthsPanel), fallbacks: new Section(fallbackPanel),
      ranks: new Section(ranksPanel), facts: new Section(factsPanel),
    };
  }

  mount(root) {
    this.badge = el('span', {class: 'state'});
    root.replaceChildren(
      el('div', {class: 'head'},
        el('p', {class: 'crumb'}, el('a', {href: '#/', 'data-focus': 'crumb'}, '← All jobs')),
        el('h1', {tabindex: -1}, el('bdi', {class: 'soft'}, this.key.namespace), '/',
          el('bdi', null, this.key.name)),
        this.badge),
      ...Object.values(this.sections).map((section) => section.holder));
    this.root = root;
  }

  request() {
    return `/api/v1/job?namespace=${encodeURIComponent(this.key.namespace)}&name=` +
      `${encodeURIComponent(this.key.name)}&known_plan=${encodeURIComponent(this.planKey)}`;
  }

  update(data) {
    const {status} = data;
    if (data.plan_key === undefined) {
      this.plan = null;
      this.planKey = '';
    } else if (data.plan !== null) {
      this.plan = data.plan;
      this.planKey = data.plan_key;
    }
    this.last = data;
    this.draw();
    const state = stateName(status.state);
    this.badge.setAttribute('data-state', state);
    this.badge.textContent = state;
    const news = this.state !== null && this.state !== state ? `The job is ${state} now.` : '';
    this.state = state;
    return news;
  }

  // Also when the window has another width: charts are drawn to their size in pixels.
  draw() {
    if (this.last === undefined) return;
    const data = this.last;
    const {status} = data;
    const steps = status.recent_steps;
    const {plan} = this;
    const width = Math.max(460, this.root.clientWidth - 82);
    const ranks = status.ranks.map((r) => ({...r, silent_s: Math.round(Number(r.silent_ms) / 1000)}));
    const show = this.sections;
    show.headline.update({state: status.state, last: steps.at(-1)});
    show.attention.update({
      data: {status: {state: status.state, memory_full: status.memory_full,
        sequences_consumed_twice: status.sequences_consumed_twice}, missing: data.missing,
      missing_ranks_total: data.missing_ranks_total, slow_ranks: data.slow_ranks,
      slow_ranks_total: data.slow_ranks_total, slow_factor: data.slow_factor},
      silent: ranks.filter((r) => r.suspect).map((r) => ({rank: r.rank, node_id: r.node_id}))});
    show.imbalance.update({steps, width});
    show.plan.update({plan, group: Math.max(1, status.spec.parallelism.sequence), width});
    show.lengths.update(plan === null ? {lengths: []} : {lengths: plan.lengths,
      base: plan.base_budget_blocks, plan: plan.plan, width});
    show.fallbacks.update({steps: steps.filter((s) => s.used_fallback), planned: data.plan_fallbacks,
      total: status.fallback_steps, reported: status.steps_reported});
    show.ranks.update({ranks: ranks.map(({silent_ms, ...rest}) => rest), total: data.ranks_total,
      present: data.ranks_present});
    show.facts.update({spec: status.spec, ...Object.fromEntries(['generation', 'leader_epoch', 'next_step',
      'steps_reported', 'fallback_steps', 'sequences_consumed', 'sequences_consumed_twice',
      'remembered_sequences', 'state_bytes', 'latency_source'].map((name) => [name, status[name]]))});
  }
}
