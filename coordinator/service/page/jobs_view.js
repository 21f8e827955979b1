// The table of all jobs.

import {el, field, panel, Section, table} from './dom.js';
import {count, figure, jobLink, jobName, milliseconds, plural, stateName} from './format.js';

const PAGE = 200;

const columns = [{title: 'Job', name: true}, {title: 'State'}, {title: 'Ranks', number: true},
  {title: 'Generation', number: true}, {title: 'Next step', number: true}, {title: 'Policy'},
  {title: 'Step time', number: true}, {title: 'Imbalance', number: true}];

function row(job) {
  const name = jobName(job.job);
  const elsewhere = job.owner_address !== '';
  const state = elsewhere ? 'elsewhere' : stateName(job.state);
  const known = (name_, text) => (elsewhere ? '–' : field(name_, job[name_], text));
  return {
    attributes: {'data-job': name},
    cells: [
      elsewhere ? el('bdi', null, name)
        : el('a', {href: jobLink(job.job), 'data-focus': `job ${name}`}, el('bdi', null, name)),
      el('span', {class: 'state', 'data-state': state},
        elsewhere ? `answered for by ${job.owner_address}` : state),
      elsewhere ? '–' : [field('ranks_present', job.ranks_present, count(job.ranks_present)), ' / ',
        field('ranks', job.ranks, count(job.ranks))],
      known('generation', count(job.generation)),
      known('next_step', count(job.next_step)),
      job.policy || '–',
      known('step_ms', milliseconds(job.step_ms)),
      known('rank_imbalance', figure(job.rank_imbalance, 3)),
    ],
  };
}

function tablePanel({jobs, total, all, filter, offset}) {
  if (all === 0) {
    return panel('jobs', 'Jobs', el('p', null,
      'No job is known to this coordinator. A job appears here when its first worker registers it.'));
  }
  if (jobs.length === 0) return panel('jobs', 'Jobs', el('p', null, `No job has “${filter}” in its name.`));
  const shown = jobs.length < total
    ? `Jobs ${count(offset + 1)} to ${count(offset + jobs.length)} of ${count(total)}`
    : plural(total, 'job');
  return panel('jobs', shown, el('div', {class: 'scroll'}, table({
    caption: 'Jobs, by namespace and name', hideCaption: true, className: 'jobs', columns,
    rows: jobs.map(row)})));
}

export class JobsView {
  constructor() {
    this.filter = '';
    this.offset = 0;
    this.counts = new Section((states) => el('dl', {class: 'figures'}, states.map(([state, number]) =>
      el('div', null, el('dt', null, state), el('dd', null, el('span', {class: 'large'}, count(number)))))));
    this.table = new Section(tablePanel);
    this.title = 'Jobs';
  }

  mount(root, refresh) {
    const turn = (by) => {
      this.offset = Math.max(0, this.offset + by);
      refresh();
    };
    this.before = el('button', {type: 'button', on: {click: () => turn(-PAGE)}}, 'Previous');
    this.after = el('button', {type: 'button', on: {click: () => turn(PAGE)}}, 'Next');
    const input = el('input', {type: 'search', id: 'filter', autocomplete: 'off', spellcheck: 'false',
      value: this.filter, maxlength: 100, on: {input: (event) => {
        this.filter = event.target.value;
        this.offset = 0;
        refresh();
      }}});
    this.tools = el('div', {class: 'tools', hidden: true}, el('label', {for: 'filter'}, 'Name contains'),
      input, this.before, this.after);
    root.replaceChildren(
      el('div', {class: 'head'}, el('h1', {tabindex: -1}, 'Jobs')),
      this.counts.holder, this.tools, this.table.holder);
  }

  request() {
    return `/api/v1/jobs?limit=${PAGE}&offset=${this.offset}&filter=${encodeURIComponent(this.filter)}`;
  }

  update(data) {
    const states = ['training', 'joining', 'registered', 'finished']
      .map((state) => [state, data.by_state[state] ?? 0]);
    if (data.by_state.elsewhere) states.push(['at other replicas', data.by_state.elsewhere]);
    this.counts.update(states);
    this.tools.hidden = data.all === 0;
    const paged = data.total > PAGE || data.offset > 0;
    this.before.hidden = this.after.hidden = !paged;
    this.before.disabled = data.offset === 0;
    this.after.disabled = data.offset + data.jobs.length >= data.total;
    this.table.update({jobs: data.jobs, total: data.total, all: data.all, filter: this.filter,
      offset: data.offset});
    return `${plural(data.all, 'job')}, ${data.by_state.training ?? 0} training`;
  }
}
