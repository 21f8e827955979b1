// The last steps of a job: imbalance before and after, their figures, and why fallbacks were taken.

import {image, labels, legend, line, plane, triangle} from './charts.js';
import {el, field, folded, panel} from './dom.js';
import {count, figure, fixed, milliseconds, noPlanReason, planFallback, plural} from './format.js';

function imbalanceChart(steps, width) {
  const height = 210;
  const known = steps.flatMap((s) => [s.rank_imbalance, s.length_imbalance]).filter((v) => v > 0);
  const to = Math.max(1.05, ...known.map((v) => v * 1.02));
  const area = plane({width, height, from: 1, to});
  const places = steps.map((_, i) => area.left + 12 +
    (area.right - area.left - 24) * (steps.length === 1 ? 0.5 : i / (steps.length - 1)));
  const series = (name, text) => steps.map((s, i) => ({
    x: places[i],
    y: s[name] > 0 ? area.y(Math.max(1, s[name])) : null,
    tip: `step ${s.step}, ${text}: ${fixed(s[name], 3)}`,
  }));
  const name = `Imbalance of the last ${plural(steps.length, 'step')}, before and after; ` +
    'the figures are in the table of the steps below';
  return image(name, width, height, area.parts,
    steps.map((s, i) => s.used_fallback && triangle(places[i], area.base,
      `step ${s.step} was trained by the fallback plan`)),
    line(series('length_imbalance', 'balanced by length, predicted'), 'before'),
    line(series('rank_imbalance', 'measured'), 'after'),
    labels(places, steps.map((s) => String(s.step)), height - 5, 56));
}

const stepColumns = [
  {title: 'Step', number: true}, {title: 'Policy'}, {title: 'Step time', number: true},
  {title: 'Predicted', number: true}, {title: 'Imbalance by length', number: true},
  {title: 'Imbalance measured', number: true}, {title: 'Coverage', number: true},
  {title: 'Gap to bound', number: true}, {title: 'Plan wait', number: true},
  {title: 'Slowest rank', number: true}, {title: 'Tokens', number: true},
  {title: 'Loss', number: true}];

function stepRow(s) {
  const number = (name, text) => field(name, s[name], text);
  return {
    attributes: {'data-step': s.step},
    cells: [
      s.step, `${s.policy}${s.used_fallback ? ' (fallback)' : ''}`,
      number('step_ms', milliseconds(s.step_ms)),
      number('predicted_step_ms', milliseconds(s.predicted_step_ms)),
      number('length_imbalance', figure(s.length_imbalance, 3)),
      number('rank_imbalance', figure(s.rank_imbalance, 3)),
      number('mean_coverage', figure(s.mean_coverage, 4)),
      number('optimality_gap', s.predicted_step_ms > 0 ? `${fixed(100 * s.optimality_gap, 2)} %` : '–'),
      number('plan_wait_ms', `${fixed(s.plan_wait_ms, 1)} ms`),
      number('slowest_rank', s.slowest_rank),
      number('tokens', count(s.tokens)),
      number('loss', figure(s.loss, 4)),
    ],
  };
}

export function imbalancePanel({steps, width}) {
  if (steps.length === 0) {
    return panel('imbalance', 'Imbalance of the last steps',
      el('p', null, 'No step has been reported by all ranks yet.'));
  }
  const newestFirst = [...steps].reverse();
  return panel('imbalance', 'Imbalance of the last steps',
    el('p', null, 'Largest over mean compute time of ranks; 1 is perfect balance.'),
    el('figure', null,
      legend([['before', 'before: predicted for the same batch balanced by length'],
        ['after', 'after: measured'], ['fallback', 'fallback plan']]),
      imbalanceChart(steps, width),
      folded('steps', `Table of the last ${plural(steps.length, 'step')}`,
        {caption: 'The last steps, latest first', columns: stepColumns, rows: newestFirst.map(stepRow)})));
}

// Steps that follow each other for the same reason are told as one.
function runs(steps) {
  const out = [];
  for (const s of steps.filter((step) => step.used_fallback)) {
    const last = out.at(-1);
    const reason = noPlanReason(s.no_plan_reason);
    if (last && last.reason === reason && BigInt(last.to) + 1n === BigInt(s.step)) {
      last.to = s.step;
    } else {
      out.push({from: s.step, to: s.step, reason});
    }
  }
  return out.reverse();
}

export function fallbackPanel({steps, planned, total, reported}) {
  const taken = runs(steps).map((run) => el('li', {'data-fallback-step': run.from},
    run.from === run.to ? `Step ${run.from} was` : `Steps ${run.from} to ${run.to} were`,
    ` trained by the workers' own plan, balanced by length: ${run.reason}.`));
  const made = planned.map((p) => el('li', {'data-plan-fallback': p.step},
    `The plan of step ${p.step} is not what its policy was asked for: ${planFallback(p.fallback)}`,
    p.fallback_detail ? ` (${p.fallback_detail}).` : '.'));
  return panel('fallbacks', 'Fallbacks',
    el('p', null, Number(reported) === 0 ? 'No step has been reported by all ranks yet.' : Number(total) === 0
      ? 'Every step that was reported was trained by a plan of the coordinator.'
      : `${plural(total, 'step')} of ${count(reported)} were trained without a plan of the coordinator` +
        (taken.length === 0 ? ', none of the last ones.' : '.')),
    taken.length + made.length > 0 && el('ul', {class: 'notices'}, taken, made));
}
