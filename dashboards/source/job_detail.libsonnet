// Everything about one job, from the outside in: what it does, its waits, its ranks, its plans, quality,
// and what the coordinator remembers about it.
local c = import 'common.libsonnet';
local g = import 'grafana.libsonnet';

local step_rate = c.rate(c.coordinator('step_seconds_count'));
local step_seconds = c.rate(c.coordinator('step_seconds_sum'));

local identity = g.strip(3, [
  g.stat(
    'Policy', 'short',
    'Policy of the job\'s plans, and where the coordinator\'s latency model comes from: profile (measured), learned (from the job\'s steps) or default (guessed).',
    g.instant('max by (policy, latency_source) (%s)' % c.coordinator('info'), '{{policy}}, {{latency_source}}'),
    ['text']
  ) + g.name_only,
  g.stat(
    'Ranks', 'short', 'Ranks that the job has.',
    g.instant(c.gauge(c.coordinator('ranks')), 'ranks'), ['text']
  ) + g.decimals(0),
  g.stat(
    'Ranks missing', 'short',
    'Ranks whose node is not in the job. `waits for` in `sbctl job NAMESPACE/JOB` names them.',
    g.instant(c.gauge(c.coordinator('ranks_missing')), 'ranks missing'), ['green', 1, 'red']
  ) + g.decimals(0),
  g.stat(
    'Generation', 'short',
    'Memberships formed so far. Each one after the first means that nodes died, left or were evicted, and that the job joined again.',
    g.instant(c.gauge(c.coordinator('generation')), 'generation'), ['text']
  ) + g.decimals(0),
  g.stat(
    'Next step', 'none', 'The highest step that a plan was asked for, plus 1.',
    g.instant(c.gauge(c.coordinator('next_step')), 'next step'), ['text']
  ) + g.decimals(0),
  g.stat(
    'Trained twice', 'short',
    'Sequences that were consumed more than once in an epoch. 0 in a sound run; otherwise a resumed run went on from an older checkpoint or another data order.',
    g.instant(c.gauge(c.coordinator('sequences_consumed_twice')), 'trained twice'), ['green', 1, 'red']
  ) + g.decimals(0),
]);

c.dashboard(
  'Job detail',
  'Everything that is measured of one job.',
  c.job_variables,
  [
    identity,
    g.row('Steps', 7, [
      g.heatmap(
        'Step time', 's', 'Wall time of steps, as a heat map: two bands say that two kinds of batches alternate.',
        'sum by (le) (increase(%s[$__rate_interval]))' % c.coordinator('step_seconds_bucket')
      ) + g.per_step,
      g.timeseries(
        'Step time, quantiles', 's', 'Wall time of steps: mean, median and 99th percentile, from the coordinator\'s histogram; and the workers\' own 99th percentile, which is there without a coordinator too.',
        [
          g.query('%s / %s' % [step_seconds, step_rate], 'mean'),
          g.query(c.quantile('0.5', c.coordinator('step_seconds_bucket')), 'median'),
          g.query(c.quantile('0.99', c.coordinator('step_seconds_bucket')), '99th percentile'),
          g.query(c.worker_quantile('0.99', c.worker('step_seconds_bucket')), '99th percentile, workers'),
        ]
      ) + g.per_step + g.bounds(0),
      g.timeseries(
        'Throughput', 'suffix: tokens/s', 'Trained tokens (left) and sequences (right) a second over all ranks, in reported steps.',
        [
          g.query(c.rate(c.coordinator('tokens_total')), 'tokens/s'),
          g.query(c.rate(c.coordinator('sequences_total')), 'sequences/s'),
          g.query(c.worker_rate(c.worker('tokens_total')), 'tokens/s, workers'),
        ]
      ) + g.per_step + g.unit_of('sequences/s', 'suffix: sequences/s') + g.bounds(0),
      g.timeseries(
        'Steps', 'suffix: steps/s', 'Steps a second that all ranks have reported, and those that workers counted themselves. The second goes on where the coordinator is away.',
        [
          g.query(c.rate(c.coordinator('steps_total')), 'reported'),
          g.query(c.worker_rate(c.worker('step_seconds_count')), 'workers'),
        ]
      ) + g.per_step + g.bounds(0),
    ]),
    g.row('Waits', 7, [
      g.timeseries(
        'Waiting by stage', 'percentunit', 'Rank time spent waiting, as the workers measure it, by what for: the plan, the ranks\' agreement on it, or the slowest rank; as a share of all rank time.',
        [g.query(
          '%s / on () group_left () %s' % [
            c.worker_rate_by('stage', c.worker('wait_seconds_total')),
            'sum (%s)' % c.rank_seconds(c.worker_rate(c.worker('step_seconds_sum'))),
          ], '{{stage}}'
        )]
      ) + g.per_step + g.stacked + g.bounds(0),
      g.timeseries(
        'Exposed wait for a plan', 's', 'How long a step waited for its plan after everything else of it was ready, largest over ranks. `--plan-deadline-ms` bounds it: beyond it the step is trained by the fallback plan.',
        [
          g.query(c.worker_quantile('0.5', c.worker('plan_wait_seconds_bucket')), 'median'),
          g.query(c.worker_quantile('0.99', c.worker('plan_wait_seconds_bucket')), '99th percentile'),
          g.query(c.gauge(c.coordinator('plan_wait_seconds')), 'last step'),
        ]
      ) + g.per_step + g.bounds(0),
      g.timeseries(
        'Oldest wait at the barrier', 's', 'How long the node that has waited longest for the others\' ExchangeStep has waited. Up to a step\'s length is normal; one that grows steadily is a node that hangs.',
        [g.query(c.gauge(c.coordinator('barrier_oldest_wait_seconds')), 'oldest wait')]
      ) + g.bounds(0),
      g.timeseries(
        'Fallback steps by reason', 'suffix: steps/s', 'Steps trained by the workers\' own plan. coordinator_away: there was no connection; late: the plan came after the deadline; unfit: it could not be used; ranks_differ: the ranks had different plans.',
        [g.query('sum by (reason) (rate(%s[$__rate_interval]))' % c.coordinator('fallback_steps_total'), '{{reason}}'),
         g.query(c.worker_rate_by('reason', c.worker('fallback_steps_total')), '{{reason}}, workers')]
      ) + g.per_step + g.bounds(0),
    ]),
    g.row('Ranks', 7, [
      g.heatmap(
        'Ranks\' compute time over the mean', 'suffix:×', 'Compute time of each rank over the mean of its step, all ranks and steps. A narrow band at 1 is balance; a separate band above it is a slow rank.' + c.names_hint,
        'sum by (le) (increase(%s[$__rate_interval]))' % c.coordinator('rank_compute_ratio_bucket')
      ) + g.per_step,
      g.timeseries(
        'Imbalance', 'suffix:×', 'Slowest rank over the mean of ranks: of the last finished step; median and 99th percentile over steps, as the workers measure it; and predicted for the same batch balanced by length.',
        [
          g.query(c.gauge(c.coordinator('step_imbalance_ratio')), 'last step'),
          g.query(c.worker_quantile('0.5', c.worker('imbalance_ratio_bucket')), 'median, workers'),
          g.query(c.worker_quantile('0.99', c.worker('imbalance_ratio_bucket')), '99th percentile, workers'),
          g.query(c.gauge(c.coordinator('length_imbalance_ratio')), 'by length (predicted)'),
        ]
      ) + g.per_step + g.bounds(1),
      g.timeseries(
        'Slowest rank\'s time factor', 'suffix:×', 'Measured over predicted time of the slowest rank, learned over steps; above 1.25 a rank counts as slow.' + c.names_hint,
        [g.query(c.gauge(c.coordinator('rank_time_factor_max_ratio')), 'factor')]
      ),
      g.timeseries(
        'Slow and missing ranks', 'short', 'Ranks whose time factor is above 1.25, and ranks whose node is not in the job.' + c.names_hint,
        [
          g.query(c.gauge(c.coordinator('slow_ranks')), 'slow'),
          g.query(c.gauge(c.coordinator('ranks_missing')), 'missing'),
        ]
      ) + g.bounds(0) + g.decimals(0),
    ]),
    g.row('Plans', 7, [
      g.timeseries(
        'Predicted over measured step time', 'suffix:×', 'Of the last finished step that had a plan. 1 is a perfect model. A steady deviation says that the latency profile does not fit the machines; a change says that the machines or the model changed.',
        [g.query(c.gauge(c.coordinator('predicted_over_measured_ratio')), 'predicted / measured')]
      ),
      g.timeseries(
        'Optimality gap', 'percentunit', 'Predicted time of the plan over its lower bound, less 1: no plan can be faster than this one by more than that.',
        [g.query(c.gauge(c.coordinator('optimality_gap_ratio')), 'gap')]
      ) + g.bounds(0),
      g.timeseries(
        'Time saved and lost', 'percentunit', 'As shares of step time: saved against balancing by length (of what that would have taken); waiting for the slowest rank; pipeline bubble.',
        [
          g.query('%(s)s / (%(s)s + %(t)s)' % { s: c.rate(c.coordinator('saved_seconds_total')), t: step_seconds }, 'saved'),
          g.query('%s / %s' % [c.rate(c.coordinator('straggler_seconds_total')), c.rank_seconds(step_seconds)], 'waiting for the slowest'),
          g.query('%s / %s' % [c.rate(c.coordinator('bubble_seconds_total')), c.rank_seconds(step_seconds)], 'pipeline bubble'),
        ]
      ) + g.per_step,
      g.heatmap(
        'Budgets', 'suffix: blocks', 'Budgets of the sequences of planned steps, blocks that a query attends to. Balance is bought by spreading them; all at the base budget says that budgets are not touched.',
        'sum by (le) (increase(%s[$__rate_interval]))' % c.coordinator('budget_blocks_bucket')
      ) + g.per_step,
    ]),
    g.row('Quality', 7, [
      g.timeseries(
        'Coverage', 'percentunit', 'Share of attention that the chosen blocks hold by the router\'s scores: planned, and at the budgets that workers used. Kept: of the worst sequence, over its coverage at the base budget.',
        [
          g.query(c.gauge(c.coordinator('coverage_mean_ratio')), 'planned, mean'),
          g.query('min by (namespace, job) (%s)' % c.worker('coverage_ratio'), 'used, mean'),
          g.query(c.gauge(c.coordinator('coverage_min_ratio')), 'kept, least'),
        ]
      ),
      g.timeseries(
        'Audit: attention mass against coverage', 'percentunit', 'At the last audit: the true share of past attention on the chosen blocks, and what coverage said of it. Where the lines part, coverage no longer tells the truth and budgets are cut blindly. `--audit-every` sets how often.',
        [
          g.query('min by (namespace, job) (%s)' % c.worker('audited_attention_mass_ratio'), 'attention mass'),
          g.query('min by (namespace, job) (%s)' % c.worker('audited_coverage_ratio'), 'coverage'),
        ]
      ),
      g.timeseries(
        'Loss', 'suffix: nats', 'Mean loss of the last finished step, nats a supervised token, as the coordinator was told and as the workers have it.',
        [
          g.query(c.gauge(c.coordinator('loss_nats')), 'coordinator'),
          g.query('max by (namespace, job, policy) (%s)' % c.worker('loss_nats'), 'workers, {{policy}}'),
        ]
      ),
      g.timeseries(
        'Guard raises and skipped steps', 'percentunit', 'Share of sequences that workers gave more than the planned budget because the plan would have broken their coverage guard, by the coordinator and by the workers; share of steps without an update because the gradient was not finite.',
        [
          g.query('%s / %s' % [c.rate(c.coordinator('guard_raises_total')), c.rate(c.coordinator('sequences_total'))], 'guard'),
          g.query('%s / %s' % [c.worker_rate(c.worker('guard_raises_total')), c.worker_rate(c.worker('sequences_total'))], 'guard, workers'),
          g.query('%s / %s' % [c.worker_rate(c.worker('skipped_steps_total')), c.worker_rate(c.worker('step_seconds_count'))], 'skipped'),
        ]
      ) + g.per_step + g.bounds(0),
    ]),
    g.row('Membership and memory', 7, [
      g.timeseries(
        'Rejoins', 'short', 'Times in the time range before each point that a worker joined again after the loss of a peer: largest over workers.',
        [g.query('max by (namespace, job) (increase(%s[$__rate_interval]))' % c.worker('rejoins_total'), 'rejoins')]
      ) + g.bounds(0),
      g.timeseries(
        'Generations', 'short', 'Memberships formed so far. The blue annotations mark the changes.',
        [g.query(c.gauge(c.coordinator('generation')), 'generation')]
      ) + g.decimals(0),
      g.timeseries(
        'Remembered at the coordinator', 'bytes', 'Memory that the coordinator holds for the job, estimated (left), and sequences in coverage memory (right). The quota `max-bytes` bounds it.',
        [
          g.query(c.gauge(c.coordinator('state_bytes')), 'bytes'),
          g.query(c.gauge(c.coordinator('remembered_sequences')), 'sequences'),
        ]
      ) + g.unit_of('sequences', 'short') + g.bounds(0),
      g.timeseries(
        'Sequences trained twice', 'short', 'More than once in an epoch; 0 in a sound run.',
        [g.query(c.gauge(c.coordinator('sequences_consumed_twice')), 'sequences')]
      ) + g.bounds(0) + g.decimals(0),
    ]),
  ]
)
