// Recording rules and alerts, as groups of a Prometheus rule file.
//
// Series of a job carry its `namespace` and `job`. On series of a process these two say where it is
// scraped: `job` is the scrape job, and `namespace` Kubernetes' where that is used. Both group by
// (namespace, job), so every rule also tells several deployments of coordinators apart.
//
// Alerts about a job look back in time, so each also asks that the job is there now: one that has ended
// is nobody's concern.
local config = import 'config.libsonnet';

local coordinator(metric) = 'sparsebalance_coordinator_' + metric;
local of_job(metric) = 'sparsebalance_coordinator_job_' + metric;
local worker(metric) = 'sparsebalance_worker_' + metric;

local number(value) = '%g' % value;

local record(name, expr, labels={}) = {
  record: name,
  expr: expr,
  [if std.length(labels) > 0 then 'labels']: labels,
};

local alert(name, severity, duration, expr, summary, description) = {
  alert: name,
  expr: expr,
  'for': duration,
  labels: { severity: severity },
  annotations: {
    summary: summary,
    description: description,
    local section = '#' + std.asciiLower(name),
    runbook: 'docs/alerts.md' + section,
    [if config.runbook_url != '' then 'runbook_url']: config.runbook_url + section,
  },
};

local job_name = '{{ $labels.namespace }}/{{ $labels.job }}';
local live(expr) =
  '(\n  %s\n)\nand on (namespace, job) namespace_job:sparsebalance_job:live' %
  std.strReplace(std.rstripChars(expr, '\n'), '\n', '\n  ');

// --- Figures of jobs -------------------------------------------------------------------------------

local job_rate(series, window) = 'sum by (namespace, job) (rate(%s[%s]))' % [series, window];
// Every node of a job reports the same steps; the policies of a job follow one another.
local worker_increase(series, window, labels='') =
  'sum by (namespace, job) (max by (namespace, job, policy%s) (increase(%s[%s])))' % [labels, series, window];

local rank_time(seconds_rate) = '(%s * max by (namespace, job) (%s))' % [seconds_rate, of_job('ranks')];

local job_figures = {
  name: 'sparsebalance-jobs',
  interval: config.rule_interval,
  rules: [
    // 1 where the coordinator or a worker reports the job now.
    record('namespace_job:sparsebalance_job:live', |||
      group by (namespace, job) (%s)
      or
      group by (namespace, job) (%s)
    ||| % [of_job('info'), worker('step_seconds_count')]),
    record('namespace_job:sparsebalance_steps:rate5m', job_rate(of_job('steps_total'), '5m')),
    record('namespace_job:sparsebalance_tokens:rate5m', job_rate(of_job('tokens_total'), '5m')),
    record('namespace_job:sparsebalance_step_seconds:mean1h', |||
      %s
      /
      (%s > 0)
    ||| % [job_rate(of_job('step_seconds_sum'), '1h'), job_rate(of_job('step_seconds_count'), '1h')]),
    // Share of the time that balancing by length would have taken.
    record('namespace_job:sparsebalance_saved_time:ratio_rate15m', |||
      %(saved)s
      /
      (%(saved)s + %(steps)s > 0)
    ||| % {
      saved: job_rate(of_job('saved_seconds_total'), '15m'),
      steps: job_rate(of_job('step_seconds_sum'), '15m'),
    }),
    // Share of rank time.
    record('namespace_job:sparsebalance_straggler_time:ratio_rate15m', |||
      %s
      /
      (%s > 0)
    ||| % [job_rate(of_job('straggler_seconds_total'), '15m'), rank_time(job_rate(of_job('step_seconds_sum'), '15m'))]),
    // Steps and fallback steps are the workers' own where they are scraped: these go on where the
    // coordinator is away, which is when it matters.
    record('namespace_job:sparsebalance_steps:increase30m', |||
      %s
      or
      sum by (namespace, job) (increase(%s[30m]))
    ||| % [worker_increase(worker('step_seconds_count'), '30m'), of_job('steps_total')]),
    // Counters with a reason need not exist before their first event.
    record('namespace_job:sparsebalance_fallback_steps:increase30m', |||
      %s
      or
      0 * %s
      or
      sum by (namespace, job) (increase(%s[30m]))
      or
      0 * namespace_job:sparsebalance_steps:increase30m
    ||| % [
      worker_increase(worker('fallback_steps_total'), '30m', ', reason'),
      worker_increase(worker('step_seconds_count'), '30m'),
      of_job('fallback_steps_total'),
    ]),
    record('namespace_job:sparsebalance_fallback_steps:ratio30m', |||
      namespace_job:sparsebalance_fallback_steps:increase30m
      /
      (namespace_job:sparsebalance_steps:increase30m > 0)
    |||),
    record('namespace_job:sparsebalance_guard_raises:ratio30m', |||
      sum by (namespace, job) (increase(%s[30m]))
      /
      (sum by (namespace, job) (increase(%s[30m])) > 0)
    ||| % [of_job('guard_raises_total'), of_job('sequences_total')]),
    // The median: one late step does not move it.
    record(
      'namespace_job:sparsebalance_predicted_over_measured:median30m',
      'avg by (namespace, job) (quantile_over_time(0.5, %s[30m]))' % of_job('predicted_over_measured_ratio')
    ),
  ],
};

// --- The objective of planning ---------------------------------------------------------------------

local late_plans(histogram, window) = |||
  1 - sum by (namespace, job) (rate(%(name)s_bucket{le="%(le)s"}[%(window)s]))
  /
  (sum by (namespace, job) (rate(%(name)s_count[%(window)s])) > 0)
||| % { name: coordinator(histogram), le: config.plan_slo.seconds, window: window };

local late_plan_records(windows) = std.flattenArrays([
  [
    record('job:sparsebalance_coordinator_late_plans:ratio_rate' + window, late_plans('plan_seconds', window), { part: 'planning' }),
    record('job:sparsebalance_coordinator_late_plans:ratio_rate' + window, late_plans('plan_queue_seconds', window), { part: 'queue' }),
  ]
  for window in windows
]);

local objective = [
  {
    name: 'sparsebalance-plan-objective',
    interval: config.rule_interval,
    rules: late_plan_records(['5m', '30m', '1h']),
  },
  {
    // These move slowly and are dear to compute.
    name: 'sparsebalance-plan-objective-long',
    interval: '2m',
    rules: late_plan_records(['2h', '6h', '1d', '3d']),
  },
];

// Budget of 30 days burnt `factor` times too fast: over the long window, so that it matters, and over
// the short one, so that the alert ends when it is over.
local burning(factor, long, short, plans) = |||
  (
    job:sparsebalance_coordinator_late_plans:ratio_rate%(long)s > %(ratio)s
    and
    job:sparsebalance_coordinator_late_plans:ratio_rate%(short)s > %(ratio)s
    and on (namespace, job)
    sum by (namespace, job) (increase(%(count)s[%(long)s])) >= %(least)s
  )
||| % {
  ratio: number(factor * (1 - config.plan_slo.objective)),
  long: long,
  short: short,
  count: coordinator('plan_seconds_count'),
  least: number(plans),
};

local plan_latency(severity, duration, expr) = alert(
  'SparseBalancePlanLatencyBurn', severity, duration, expr,
  'Plans of {{ $labels.job }} are late ({{ $labels.part }})',
  '{{ $value | humanizePercentage }} of plans took longer than %s s ({{ $labels.part }}); the objective allows %g %%. Jobs whose plans come after their deadline train by fallback plans.' %
  [config.plan_slo.seconds, (1 - config.plan_slo.objective) * 100]
);

// --- Alerts ----------------------------------------------------------------------------------------

local up = 'up{job=~"%s"}' % config.coordinator_scrape_jobs;

local remaining = '(%s - time())' % coordinator('certificate_expiry_timestamp_seconds');
// With 15 minutes between looks, certificates that live for an hour are told in time too.
local ends(share) = '%(left)s < %(share)s * max_over_time(%(left)s[21d:15m])' % { left: remaining, share: number(share) };
local certificate(severity, share) = alert(
  'SparseBalanceCertificateExpiry', severity, '5m', ends(share),
  'The certificate of {{ $labels.instance }} has not been renewed',
  'The certificate of coordinator {{ $labels.instance }}, or its chain, ends in {{ $value | humanizeDuration }}: less than %g %% of its validity is left. After that no node can connect, and connections end within the hour.' % (share * 100)
);

local shed = |||
  (
    sum by (namespace, job, class) (rate(%s[5m]))
    or
    label_replace(sum by (namespace, job) (rate(%s[5m])), "class", "plan", "", "")
  ) > %s
||| % [coordinator('shed_calls_total'), coordinator('plans_postponed_total'), number(config.shedding.calls_per_second)];

local coordinator_alerts = {
  name: 'sparsebalance-coordinator-alerts',
  interval: config.rule_interval,
  rules: [
    alert(
      'SparseBalanceCoordinatorDown', 'critical', '2m',
      'absent(%s == 1)' % up,
      'No coordinator is up',
      'Prometheus has reached no coordinator (%s) for 2 minutes. Jobs go on by fallback plans: they lose balance, not steps. New jobs cannot start.' % config.coordinator_scrape_jobs
    ),
    alert(
      'SparseBalanceCoordinatorReplicaDown', 'warning', '5m',
      '%(up)s == 0 and on () (max(%(up)s) == 1)' % { up: up },
      'Coordinator {{ $labels.instance }} is down',
      'Prometheus has not reached {{ $labels.instance }} of {{ $labels.job }} for 5 minutes; others are up. Jobs have moved to them if all share one etcd; otherwise the jobs of this one train by fallback plans.'
    ),
    alert(
      'SparseBalanceNoLeader', 'critical', '1m',
      'sum by (namespace, job) (%s) == 0' % coordinator('claims_alive'),
      'No replica of {{ $labels.job }} may answer for jobs',
      '{{ $value }} of the replicas of {{ $labels.job }} hold a lease with etcd, although they run. Nothing is planned; jobs go on by fallback plans.'
    ),
    alert(
      'SparseBalanceJobWithoutCoordinator', 'warning', '10m',
      |||
        (
          sum by (namespace, job) (max by (namespace, job, policy) (rate(%(steps)s[5m]))) > 0
          unless on (namespace, job) %(info)s
        )
        and on () count(%(alive)s) > 0
      ||| % { steps: worker('step_seconds_count'), info: of_job('info'), alive: coordinator('claims_alive') },
      'Nobody answers for job ' + job_name,
      'Job %s trains {{ $value | humanize }} steps a second, and no coordinator that is up answers for it: it trains by fallback plans.' % job_name
    ),
    alert(
      'SparseBalanceTwoLeaders', 'critical', '2m',
      'count by (namespace, job) (group by (namespace, job, instance) (%s)) > 1' % of_job('info'),
      '{{ $value }} coordinators answer for job ' + job_name,
      '{{ $value }} processes expose job %s for 2 minutes; one job has one. Either two coordinators that share no store serve nodes of one job, or a replica has not noticed that it lost its claim.' % job_name
    ),
    plan_latency('critical', '2m', burning(14.4, '1h', '5m', config.plan_slo.min_plans) + 'or\n' + burning(6, '6h', '30m', config.plan_slo.min_plans)),
    plan_latency('warning', '15m', burning(3, '1d', '2h', config.plan_slo.min_plans_slow) + 'or\n' + burning(1, '3d', '6h', config.plan_slo.min_plans_slow)),
    alert(
      'SparseBalanceShedding', 'warning', '5m', shed,
      '{{ $labels.job }} sheds calls of class {{ $labels.class }}',
      '{{ $value | humanize }} calls a second of class {{ $labels.class }} are refused because of overload. Shed plans and training calls are made again and cost balance; shed liveness calls cost nodes.'
    ),
    certificate('warning', config.certificate.warning),
    certificate('critical', config.certificate.critical),
    alert(
      'SparseBalanceStoreSlow', 'warning', '10m',
      |||
        histogram_quantile(0.99, sum by (le, namespace, job, instance) (rate(%(writes)s_bucket[10m]))) > %(seconds)s
        and on (namespace, job, instance)
        sum by (namespace, job, instance) (increase(%(writes)s_count[10m])) >= %(least)s
      ||| % {
        writes: coordinator('store_write_seconds'),
        seconds: number(config.store.seconds),
        least: number(config.store.min_writes),
      },
      'The store of {{ $labels.instance }} is slow',
      'One write in a hundred of {{ $labels.instance }} to its store takes longer than {{ $value | humanizeDuration }}. Membership and consumed sequences are written at once, so joining and reports slow down with it.'
    ),
    alert(
      'SparseBalanceStoreRefuses', 'critical', '2m',
      '%s == 0' % coordinator('store_answers'),
      'The store of {{ $labels.instance }} refuses writes',
      'The store did not take what {{ $labels.instance }} wrote last (store_answers is {{ $value }}). Service goes on; what is learned and consumed from now on is lost if the process ends.'
    ),
  ],
};

// A poll that ends begins its wait anew, so the longest of a minute counts. A normal wait grows
// with the step, so it is measured in steps too, as soon as there are some.
local wait = 'max by (namespace, job) (max_over_time(%s[1m]))' % of_job('barrier_oldest_wait_seconds');

local job_alerts = {
  name: 'sparsebalance-job-alerts',
  interval: config.rule_interval,
  rules: [
    alert(
      'SparseBalanceFallbackHigh', 'warning', '5m',
      live(|||
        namespace_job:sparsebalance_fallback_steps:ratio30m > %s
        and namespace_job:sparsebalance_steps:increase30m >= %s
        and namespace_job:sparsebalance_fallback_steps:increase30m >= %s
      ||| % [number(config.fallback.ratio), number(config.fallback.min_steps), number(config.fallback.min_fallbacks)]),
      'Job %s trains without the coordinator\'s plans' % job_name,
      '{{ $value | humanizePercentage }} of the steps of job %s in the last 30 minutes were trained by the workers\' own plan.' % job_name
    ),
    alert(
      'SparseBalanceStuckAtBarrier', 'critical', '5m',
      live(|||
        %(wait)s > %(seconds)s
        unless on (namespace, job)
        %(wait)s <= %(steps)s * namespace_job:sparsebalance_step_seconds:mean1h
      ||| % { wait: wait, seconds: number(config.barrier.seconds), steps: number(config.barrier.steps) }),
      'Job %s waits at the barrier' % job_name,
      'A node of job %s has waited {{ $value | humanizeDuration }} for the others to ask for the next step, and so it has been for 5 minutes: a rank is alive and does not go on.' % job_name
    ),
    alert(
      'SparseBalanceSlowRank', 'warning', '10m',
      |||
        max by (namespace, job) (%(slow)s) > 0
        unless on (namespace, job)
        max by (namespace, job) (%(slow)s) > %(share)s * max by (namespace, job) (%(ranks)s)
      ||| % { slow: of_job('slow_ranks'), ranks: of_job('ranks'), share: number(config.slow_rank.max_share) },
      'Job %s has {{ $value }} slow ranks' % job_name,
      '{{ $value }} ranks of job %s have taken more than 1.25 times the predicted time for 10 minutes. Plans give them less, but the job is slower than its machines could be.' % job_name
    ),
    alert(
      'SparseBalanceGuardViolations', 'warning', '15m',
      live(|||
        namespace_job:sparsebalance_guard_raises:ratio30m > %s
        and
        sum by (namespace, job) (increase(%s[30m])) >= %s
      ||| % [number(config.guard.ratio), of_job('sequences_total'), number(config.guard.min_sequences)]),
      'Plans of job %s would break its coverage guard' % job_name,
      'Workers raised the budgets of {{ $value | humanizePercentage }} of the sequences of job %s in the last 30 minutes, because the planned ones would have lost more coverage than its guard allows. Quality is kept; balance is not.' % job_name
    ),
    alert(
      'SparseBalancePredictionDrift', 'warning', '15m',
      live(|||
        (
          namespace_job:sparsebalance_predicted_over_measured:median30m < %(low)s
          or
          namespace_job:sparsebalance_predicted_over_measured:median30m > %(high)s
        )
        and
        sum by (namespace, job) (increase(%(steps)s[30m])) >= %(least)s
      ||| % {
        low: number(config.drift.low),
        high: number(config.drift.high),
        steps: of_job('steps_total'),
        least: number(config.drift.min_steps),
      }),
      'Step times of job %s are not what the model predicts' % job_name,
      'Over the last 30 minutes the predicted step time of job %s was {{ $value | humanize }} times the measured one (median); it should be between %s and %s. Plans balance by a model that is wrong.' %
      [job_name, number(config.drift.low), number(config.drift.high)]
    ),
  ],
};

{ groups: [job_figures] + objective + [coordinator_alerts, job_alerts] }
