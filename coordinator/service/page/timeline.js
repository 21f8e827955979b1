// The current plan: its figures, when each micro-batch runs on which rank and stage, and what became
// of budgets and coverage by length of sequence.

import {image, labels, legend, plane, roundStep, tip} from './charts.js';
import {el, field, folded, panel, svg} from './dom.js';
import {count, figure, fixed, milliseconds, plural, rankRun, tokens} from './format.js';

const LEFT = 118;
const MAX_ROWS = 500;

function contents(micro) {
  if (micro.zero_weight) return 'filler of weight zero';
  const named = micro.sequences.map((s) =>
    `sequence ${s.id}, ${count(s.tokens)} tokens, budget ${s.budget_blocks}`);
  const more = micro.sequences_total - micro.sequences.length;
  return named.join('; ') + (more > 0 ? `; and ${more} more` : '');
}

// Ranks of the job that run this stage of a plan's rank.
const laneName = (rank, stage, stages, group) =>
  rankRun((rank * stages + stage) * group, group) + (stages > 1 ? `, stage ${stage}` : '');

function lane(rank, stage, name, y, height, scale, span) {
  const parts = [
    svg('text', {x: LEFT - 8, y: y + height / 2 + 4, 'text-anchor': 'end'}, name),
    svg('rect', {class: 'idle', x: LEFT, y, width: Math.max(0, span * scale), height})];
  for (const [index, backward, begin, end] of rank.stages[stage]) {
    const x = LEFT + begin * scale;
    const width = Math.max(0.4, (end - begin) * scale - 0.6);
    parts.push(svg('rect', {class: backward ? 'backward' : 'forward', x, y, width, height},
      tip(`${name}, micro-batch ${index}, ${backward ? 'backward' : 'forward'}: ` +
        `${fixed(begin, 2)} to ${fixed(end, 2)} ms; ${contents(rank.micro_batches[index])}`)));
    if (width > 8 + 6 * String(index).length && height >= 12) {
      parts.push(svg('text', {class: 'on-op', x: x + width / 2, y: y + height / 2 + 3.5,
        'text-anchor': 'middle', 'pointer-events': 'none'}, index));
    }
  }
  return parts;
}

function timelineChart(plan, group, width) {
  const {stages, ranks} = plan.timeline;
  const height = stages > 1 ? 13 : 17;
  const pitch = stages * (height + 1) + (stages > 1 ? 7 : 3);
  const bottom = ranks.length * pitch + 4;
  const span = Math.max(1e-9, ...ranks.map((r) => r.predicted_ms));
  const scale = (width - LEFT - 34) / span;
  const step = roundStep(span, Math.max(2, width / 130));
  const parts = [];
  for (let tick = 0; tick * step <= span * 1.0001; ++tick) {
    const x = LEFT + tick * step * scale;
    parts.push(svg('line', {class: 'axis', x1: x, x2: x, y1: 0, y2: bottom}),
      svg('text', {x, y: bottom + 15, 'text-anchor': 'middle'}, `${+(tick * step).toPrecision(6)} ms`));
  }
  ranks.forEach((rank, i) => {
    for (let stage = 0; stage < stages; ++stage) {
      parts.push(...lane(rank, stage, laneName(rank.rank, stage, stages, group),
        i * pitch + stage * (height + 1) + 3, height, scale, span));
    }
  });
  const end = LEFT + span * scale;
  parts.push(svg('line', {class: 'end', x1: end, x2: end, y1: 0, y2: bottom}));
  return image(`When each micro-batch of step ${plan.plan.step} runs, by rank and stage; the figures ` +
    'are in the tables below', width, bottom + 20, parts);
}

function laneRows(plan, group) {
  const {stages, ranks} = plan.timeline;
  const span = Math.max(0, ...ranks.map((r) => r.predicted_ms));
  return ranks.flatMap((rank) => rank.stages.map((operations, stage) => {
    const time = (backward) => operations.filter((op) => op[1] === backward)
      .reduce((sum, op) => sum + op[3] - op[2], 0);
    const end = operations.length === 0 ? 0 : operations.at(-1)[3];
    return [laneName(rank.rank, stage, stages, group), rank.micro_batches_total,
      fixed(time(0), 2), fixed(time(1), 2), fixed(span - time(0) - time(1), 2), fixed(end, 2),
      fixed(rank.time_factor, 3)];
  }));
}

function microBatchRows(plan, group) {
  const {stages, ranks} = plan.timeline;
  return ranks.flatMap((rank) => rank.micro_batches.map((micro, index) => [
    rankRun(rank.rank * stages * group, stages * group), index, micro.sequences_total,
    count(micro.tokens), fixed(micro.predicted_ms, 2), contents(micro)])).slice(0, MAX_ROWS);
}

function whatIsLeftOut(timeline) {
  const drawn = timeline.ranks.length;
  const left = [];
  if (drawn < timeline.ranks_total) {
    left.push(`The ${drawn} slowest of ${count(timeline.ranks_total)} data-parallel ranks are drawn.`);
  }
  if (timeline.cut) left.push('Of many micro-batches the first are drawn.');
  return left.join(' ');
}

export function planPanel({plan, group, width}) {
  if (plan === null) {
    return panel('plan', 'Current plan', el('p', null, 'No plan is kept: none was made since the ' +
      'coordinator started, or none has been asked for.'));
  }
  const p = plan.plan;
  const left = whatIsLeftOut(plan.timeline);
  const fact = (title, ...value) => el('div', null, el('dt', null, title), el('dd', null, value));
  return panel('plan', `Current plan: step ${p.step}`,
    el('p', null, `When each micro-batch runs, by rank and ${plan.timeline.stages > 1
      ? 'pipeline stage (1F1B)' : 'stage'}, as predicted. ${left}`),
    el('dl', {class: 'facts'},
      fact('policy', field('plan.policy', p.policy, p.policy)),
      fact('predicted step', field('plan.predicted_step_ms', p.predicted_step_ms,
        milliseconds(p.predicted_step_ms)), plan.step_constant_ms > 0
        ? ` (${milliseconds(plan.step_constant_ms)} outside micro-batches)` : ''),
      fact('lower bound', milliseconds(p.lower_bound_ms)),
      fact('by length', milliseconds(p.length_policy_step_ms)),
      fact('imbalance of ranks', figure(p.rank_imbalance, 3)),
      fact('imbalance of micro-batches', figure(p.micro_batch_imbalance, 3)),
      fact('pipeline bubble', `${fixed(100 * p.bubble_fraction, 1)} %`),
      Number(p.extrapolated_sequences) > 0 && fact('extrapolated',
        `${plural(p.extrapolated_sequences, 'sequence')} outside the latency fit`),
      plan.exchanges_total > 0 && fact('look-ahead', plural(plan.exchanges_total, 'exchange'))),
    el('figure', null,
      legend([['forward', 'forward'], ['backward', 'backward'], ['idle', 'idle']]),
      timelineChart(plan, group, width),
      folded('lanes', 'Table by rank and stage', {
        caption: 'The schedule by rank and stage, milliseconds',
        columns: [{title: 'Rank'}, {title: 'Micro-batches', number: true},
          {title: 'Forward', number: true}, {title: 'Backward', number: true},
          {title: 'Idle', number: true}, {title: 'Ends at', number: true},
          {title: 'Time factor', number: true}],
        rows: laneRows(plan, group)}),
      folded('micro-batches', 'Table of micro-batches', {
        caption: `Micro-batches of the ranks drawn, at most ${MAX_ROWS}`,
        columns: [{title: 'Rank'}, {title: 'Micro-batch', number: true},
          {title: 'Sequences', number: true}, {title: 'Tokens', number: true},
          {title: 'Predicted ms', number: true}, {title: 'What it holds'}],
        rows: microBatchRows(plan, group)})));
}

const className = (c) => `${tokens(c.from_tokens)} to ${tokens(c.below_tokens)}`;

function lengthChart(classes, {name, from, to, width, column, base}) {
  const area = plane({width, height: 200, from, to, left: 46, bottom: 36});
  const pitch = (area.right - area.left) / classes.length;
  const places = classes.map((_, i) => area.left + pitch * (i + 0.5));
  return image(`${name}; the figures are in the table below`, width, 200, area.parts,
    base !== undefined && svg('line', {class: 'base', x1: area.left, x2: area.right,
      y1: area.y(base), y2: area.y(base)}, tip(`base budget, ${base} blocks`)),
    classes.map((c, i) => column(c, places[i], area)),
    labels(places, classes.map((c) => tokens(c.from_tokens)), area.base + 14, 40),
    svg('text', {x: (area.left + area.right) / 2, y: 198, 'text-anchor': 'middle'},
      'tokens in the sequence, at least'));
}

export function lengthsPanel({lengths, base, plan, width}) {
  if (lengths.length === 0) return null;
  const chartWidth = Math.max(300, width > 940 ? Math.floor((width - 24) / 2) : width);
  const most = Math.max(base, ...lengths.map((c) => c.most_budget)) * 1.08;
  const least = Math.min(...lengths.map((c) => c.least_coverage));
  const budgets = lengthChart(lengths, {
    name: 'Budgets by length of sequence', from: 0, to: most, width: chartWidth, base,
    column: (c, x, area) => [
      svg('line', {class: 'range', x1: x, x2: x, y1: area.y(c.least_budget) + 1,
        y2: area.y(c.most_budget) - 1}),
      svg('circle', {class: 'after-dot', cx: x, cy: area.y(c.mean_budget), r: 3.5},
        tip(`${className(c)} tokens: ${plural(c.sequences, 'sequence')}, budgets ${c.least_budget} ` +
          `to ${c.most_budget}, mean ${fixed(c.mean_budget, 1)} blocks`))],
  });
  const coverage = lengthChart(lengths, {
    name: 'Coverage by length of sequence', from: Math.max(0, Math.floor(least * 10) / 10 - 0.05), to: 1.02,
    width: chartWidth,
    column: (c, x, area) => [
      svg('line', {class: 'range', x1: x, x2: x, y1: area.y(c.least_coverage) + 1,
        y2: area.y(c.mean_coverage) - 1}),
      svg('rect', {class: 'before-dot', x: x - 3, y: area.y(c.mean_base_coverage) - 3, width: 6, height: 6},
        tip(`${className(c)} tokens at the base budget: ${fixed(c.mean_base_coverage, 4)}`)),
      svg('circle', {class: 'after-dot', cx: x, cy: area.y(c.mean_coverage), r: 3.5},
        tip(`${className(c)} tokens: mean ${fixed(c.mean_coverage, 4)}, least ` +
          fixed(c.least_coverage, 4)))],
  });
  const number = (title) => ({title, number: true});
  return panel('lengths', 'Budgets and coverage by sequence length',
    el('p', null, `Of the plan of step ${plan.step}. Coverage is the share of attention mass that the ` +
      'chosen blocks are expected to hold; its mean over sequences is ',
    field('plan.mean_coverage', plan.mean_coverage, fixed(plan.mean_coverage, 4)), ', and ',
    field('plan.baseline_mean_coverage', plan.baseline_mean_coverage, fixed(plan.baseline_mean_coverage, 4)),
    ' with every sequence at its base budget.'),
    el('figure', null,
      el('div', {class: 'pair'},
        el('div', null, el('h3', null, 'Budget, blocks a query attends to'),
          legend([['range', 'least to most'], ['dot', 'mean'], ['base', `base budget, ${base}`]]), budgets),
        el('div', null, el('h3', null, 'Coverage'),
          legend([['range', 'least to mean'], ['dot', 'mean'], ['square', 'mean at the base budget']]),
          coverage)),
      folded('lengths', 'Table by sequence length', {
        caption: 'Budgets and coverage by sequence length',
        columns: [{title: 'Tokens'}, number('Sequences'), number('Tokens in all'), number('Least budget'),
          number('Mean budget'), number('Most budget'), number('Mean coverage'), number('Least coverage'),
          number('Mean at base budget')],
        rows: lengths.map((c) => [className(c), count(c.sequences), count(c.tokens), c.least_budget,
          fixed(c.mean_budget, 1), c.most_budget, fixed(c.mean_coverage, 4), fixed(c.least_coverage, 4),
          fixed(c.mean_base_coverage, 4)])})));
}
