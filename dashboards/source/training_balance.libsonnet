// The main dashboard: one screen that answers what is asked about a job first.
local c = import 'common.libsonnet';
local g = import 'grafana.libsonnet';

local step_rate = c.rate(c.coordinator('step_seconds_count'));
local step_seconds = c.rate(c.coordinator('step_seconds_sum'));
local over_range(series) = c.increase(series);
local share_of_rank_time(series) =
  '%s / (%s * max by (namespace, job) (max_over_time(%s[$__range])))' %
  [over_range(series), over_range(c.coordinator('step_seconds_sum')), c.coordinator('ranks')];

local headline = g.strip(3, [
  g.stat(
    'Imbalance', 'suffix:×',
    'Compute time of the slowest rank over the mean of ranks, mean over the time range. 1.00 is perfect balance; 1.10 says that the mean rank idles for a tenth of its compute time. `IMBALANCE` in `sbctl job`.',
    g.instant('avg by (namespace, job) (avg_over_time(%s[$__range]))' % c.coordinator('step_imbalance_ratio'), 'imbalance'),
    ['green', 1.1, 'yellow', 1.25, 'red']
  ) + g.decimals(2),
  g.stat(
    'Won against length', 'percentunit',
    'Step time saved over the time range, as a share of what balancing by length would have taken: saved / (measured + saved). The saving is the latency model\'s ratio of both plans, times the step as measured.',
    g.instant(
      '%(saved)s / (%(saved)s + %(steps)s)' %
      { saved: over_range(c.coordinator('saved_seconds_total')), steps: over_range(c.coordinator('step_seconds_sum')) },
      'won'
    ),
    ['text', 0.02, 'green']
  ) + g.decimals(1),
  g.stat(
    'Waiting for the slowest', 'percentunit',
    'Share of all rank time in the time range that was spent waiting for the slowest rank of a step.',
    g.instant(share_of_rank_time(c.coordinator('straggler_seconds_total')), 'waiting'),
    ['green', 0.1, 'yellow', 0.2, 'red']
  ) + g.decimals(1),
  g.stat(
    'Slow ranks', 'short',
    'Ranks whose measured time is more than 1.25 times what the latency model says, now.' + c.names_hint,
    g.instant(c.gauge(c.coordinator('slow_ranks')), 'slow ranks'),
    ['green', 1, 'red']
  ) + g.decimals(0),
  g.stat(
    'Fallback steps', 'percentunit',
    'Share of the steps in the time range that were trained by the workers\' own plan, because there was none of the coordinator that they could use.',
    g.instant(
      c.or_zero(over_range(c.coordinator('fallback_steps_total')), over_range(c.coordinator('steps_total'))) +
      ' / ' + over_range(c.coordinator('steps_total')), 'fallback'
    ),
    ['green', 0.01, 'yellow', 0.1, 'red']
  ) + g.decimals(1),
  g.stat(
    'Least coverage kept', 'percentunit',
    'The sequence that gave up most: its coverage over what it would have at the base budget, least of the time range. It should stay above 1 less the job\'s `--coverage-guard` (0.9 by default).',
    g.instant('min by (namespace, job) (min_over_time(%s[$__range]))' % c.coordinator('coverage_min_ratio'), 'least coverage'),
    ['red', 0.8, 'yellow', 0.9, 'green']
  ) + g.decimals(1),
  g.stat(
    'Alerts', 'short',
    'Alerts of this job that are firing. docs/alerts.md says what each means and what to do.',
    g.instant('count(ALERTS{alertname=~"SparseBalance.*", alertstate="firing", namespace="$namespace", job="$job"}) or vector(0)', 'alerts'),
    ['green', 1, 'red']
  ) + g.decimals(0),
]);

c.dashboard(
  'Training balance',
  'Is my job balanced, what does balancing win, who is slow, is quality at risk?',
  c.job_variables,
  [
    headline,
    g.row('Is the job balanced, and what does balancing win?', 6, [
      g.timeseries(
        'Imbalance: measured, and by length', 'suffix:×',
        'Compute time of the slowest rank over the mean of ranks: as measured in each last finished step, and as the model predicts it for the same batch balanced by length. The distance between the lines is what balancing does.',
        [
          g.query(c.gauge(c.coordinator('step_imbalance_ratio')), 'measured'),
          g.query(c.gauge(c.coordinator('length_imbalance_ratio')), 'by length (predicted)'),
        ]
      ) + g.bounds(1),
      g.timeseries(
        'Step time: measured, and by length', 's',
        'Mean wall time of a step, and what it would have been had the batch been balanced by length: the same plus the time saved.',
        [
          g.query('%s / %s' % [step_seconds, step_rate], 'measured'),
          g.query(
            '(%s + %s) / %s' % [step_seconds, c.rate(c.coordinator('saved_seconds_total')), step_rate], 'by length'
          ),
        ]
      ) + g.per_step + g.bounds(0),
      g.timeseries(
        'Where rank time is lost', 'percentunit',
        'Shares of the job\'s rank time: waiting for the slowest rank of a step, and pipeline bubble by the plan. What remains is compute and communication.',
        [
          g.query('%s / %s' % [c.rate(c.coordinator('straggler_seconds_total')), c.rank_seconds(step_seconds)], 'waiting for the slowest'),
          g.query('%s / %s' % [c.rate(c.coordinator('bubble_seconds_total')), c.rank_seconds(step_seconds)], 'pipeline bubble'),
        ]
      ) + g.per_step + g.stacked + g.bounds(0),
    ]),
    g.row('Who is slow?', 6, [
      g.timeseries(
        'Ranks\' compute time over the mean', 'suffix:×',
        'Quantiles over all ranks and steps, from a histogram. A 99th percentile far above the median says that few ranks are slow; a wide middle says that the plans do not fit.' + c.names_hint,
        [
          g.query(c.quantile('0.5', c.coordinator('rank_compute_ratio_bucket')), 'median'),
          g.query(c.quantile('0.9', c.coordinator('rank_compute_ratio_bucket')), '90th percentile'),
          g.query(c.quantile('0.99', c.coordinator('rank_compute_ratio_bucket')), '99th percentile'),
        ]
      ) + g.per_step,
      g.timeseries(
        'Slow ranks, and the slowest', 'short',
        'Ranks whose time factor is above 1.25 (left), and the factor of the slowest rank (right): measured over predicted time, learned over many steps. 1 is the latency model itself.' + c.names_hint,
        [
          g.query(c.gauge(c.coordinator('slow_ranks')), 'slow ranks'),
          g.query(c.gauge(c.coordinator('rank_time_factor_max_ratio')), 'slowest rank\'s factor'),
        ]
      ) + g.unit_of('slowest rank\'s factor', 'suffix:×') + g.bounds(0),
      g.timeseries(
        'Waits and missing ranks', 's',
        'How long a node has been waiting for the others\' ExchangeStep, and the longest exposed wait of a rank for the last step\'s plan; on the right, ranks whose node is not in the job. `waits for` in `sbctl job` names them.',
        [
          g.query(c.gauge(c.coordinator('barrier_oldest_wait_seconds')), 'oldest wait at the barrier'),
          g.query(c.gauge(c.coordinator('plan_wait_seconds')), 'wait for the plan'),
          g.query(c.gauge(c.coordinator('ranks_missing')), 'ranks missing'),
        ]
      ) + g.unit_of('ranks missing', 'short') + g.bounds(0),
    ]),
    g.row('Is quality at risk?', 6, [
      g.timeseries(
        'Coverage', 'percentunit',
        'Share of attention that the chosen blocks hold. Planned: mean over the plan\'s sequences. Kept: of the worst sequence, over its coverage at the base budget. Audited: the true share of attention mass, from the workers\' audits.',
        [
          g.query(c.gauge(c.coordinator('coverage_mean_ratio')), 'planned, mean'),
          g.query(c.gauge(c.coordinator('coverage_min_ratio')), 'kept, least'),
          g.query('min by (namespace, job) (%s)' % c.worker('audited_attention_mass_ratio'), 'audited attention mass'),
        ]
      ) + g.bounds(0, 1),
      g.timeseries(
        'Guard, fallback and skipped steps', 'percentunit',
        'Share of sequences that workers gave more than the planned budget because the plan would have broken their coverage guard; share of steps by the workers\' own plan; share of steps without an update because the gradient was not finite.',
        [
          g.query('%s / %s' % [c.rate(c.coordinator('guard_raises_total')), c.rate(c.coordinator('sequences_total'))], 'sequences raised by the guard'),
          g.query(
            '%s / %s' % [
              c.or_zero(c.rate(c.coordinator('fallback_steps_total')), c.rate(c.coordinator('steps_total'))),
              c.rate(c.coordinator('steps_total')),
            ], 'fallback steps'
          ),
          g.query('%s / %s' % [c.worker_rate(c.worker('skipped_steps_total')), c.worker_rate(c.worker('step_seconds_count'))], 'skipped steps'),
        ]
      ) + g.per_step + g.bounds(0),
      g.timeseries(
        'Loss and throughput', 'suffix: nats',
        'Mean loss of the last finished step, nats a supervised token (left), and trained tokens a second over all ranks (right).',
        [
          g.query(c.gauge(c.coordinator('loss_nats')), 'loss'),
          g.query(c.rate(c.coordinator('tokens_total')), 'tokens/s'),
        ]
      ) + g.per_step + g.unit_of('tokens/s', 'suffix: tokens/s'),
    ]),
  ]
)
