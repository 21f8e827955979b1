// Is the coordinator well? For whoever runs one for many teams.
local c = import 'common.libsonnet';
local config = import 'config.libsonnet';
local g = import 'grafana.libsonnet';

local rate(metric) = 'rate(%s[$__rate_interval])' % c.process(metric);
local total(metric) = 'sum (%s)' % rate(metric);
local by(labels, metric) = 'sum by (%s) (%s)' % [labels, rate(metric)];
local quantile(q, metric) = 'histogram_quantile(%s, sum by (le) (%s))' % [q, rate(metric + '_bucket')];
local process(metric) = '%s and on (instance) %s' % [metric, c.process('build_info')];

c.dashboard(
  'Coordinator',
  'Is the coordinator well: does it answer, plan in time, and keep what it must?',
  c.job_variables + [c.instance_variable],
  [
    g.strip(3, [
      g.stat(
        'Answers for jobs', 'none', 'Replicas that may answer for jobs: their lease with etcd holds, or they use SQLite. Of 0 nothing is planned and all jobs train by fallback plans.',
        g.instant('sum (%s)' % c.process('claims_alive'), 'replicas'), ['red', 1, 'green']
      ) + g.decimals(0),
      g.stat(
        'Store takes writes', 'none', '1 where the store took what was last written, on every replica. A store that refuses writes does not stop the service, but a restart would lose what was learned.',
        g.instant('min (%s)' % c.process('store_answers'), 'store'), ['red', 1, 'green']
      ) + g.words(['refuses', 'answers']),
      g.stat(
        'Plans in time', 'percentunit', 'Share of the plans in the time range that were made within %s s. The objective is %g %%.' % [config.plan_slo.seconds, config.plan_slo.objective * 100],
        g.instant(
          'sum (increase(sparsebalance_coordinator_plan_seconds_bucket{instance=~"$instance", le="%s"}[$__range])) / sum (increase(%s[$__range]))' %
          [config.plan_slo.seconds, c.process('plan_seconds_count')], 'in time'
        ), ['red', 0.95, 'yellow', config.plan_slo.objective, 'green']
      ) + g.decimals(2),
      g.stat(
        'Calls shed', 'short', 'Calls refused because of overload, in the time range.',
        g.instant('sum (increase(%s[$__range]))' % c.process('shed_calls_total'), 'shed'), ['green', 1, 'red']
      ) + g.decimals(0),
      g.stat(
        'Certificate ends in', 's', 'Time until the certificate in use, or its chain, ends: the least of the replicas. Empty with plaintext.',
        g.instant('min (%s - time())' % c.process('certificate_expiry_timestamp_seconds'), 'left'), ['red', 3600, 'yellow', 86400, 'green']
      ) + g.decimals(1),
      g.stat(
        'The chosen job is answered for by', 'none', 'The process that answers for the job chosen above. Two are a fault: see SparseBalanceTwoLeaders in docs/alerts.md.',
        g.instant('max by (instance) (%s)' % c.coordinator('info'), '{{instance}}'), ['text']
      ) + g.name_only,
    ]),
    g.row('Jobs', 6, [
      g.timeseries(
        'Jobs', 'short', 'Jobs that the processes answer for, by state: registered, joining, training, finished.',
        [g.query('sum by (state) (%s)' % c.process('jobs'), '{{state}}')]
      ) + g.stacked + g.bounds(0) + g.decimals(0),
      g.timeseries(
        'Members', 'short', 'Nodes that are in a job (left), and memberships a second, by whether a reconnect changed nothing (kept) or nodes had to join again (new); nodes that died (right).',
        [
          g.query('sum (%s)' % c.process('members'), 'nodes'),
          g.query('sum (rate(sparsebalance_coordinator_generations_total{instance=~"$instance", kept="false"}[$__rate_interval]))', 'new generations/s'),
          g.query('sum (rate(sparsebalance_coordinator_generations_total{instance=~"$instance", kept="true"}[$__rate_interval])) or vector(0)', 'kept generations/s'),
          g.query(total('dead_nodes_total'), 'dead nodes/s'),
        ]
      ) + g.unit_of('new generations/s', 'suffix:/s') + g.unit_of('kept generations/s', 'suffix:/s') + g.unit_of('dead nodes/s', 'suffix:/s') + g.bounds(0),
      g.table(
        'Jobs that train now', 'short', 'Jobs of the processes chosen above, with ranks, imbalance, step rate and memory. A job\'s name leads to its dashboard.',
        [
          g.rows('max by (namespace, job) (sparsebalance_coordinator_job_ranks{instance=~"$instance"})', 'ranks'),
          g.rows('max by (namespace, job) (sparsebalance_coordinator_job_step_imbalance_ratio{instance=~"$instance"})', 'imbalance'),
          g.rows('max by (namespace, job) (sparsebalance_coordinator_job_slow_ranks{instance=~"$instance"})', 'slow ranks'),
          g.rows('sum by (namespace, job) (rate(sparsebalance_coordinator_job_steps_total{instance=~"$instance"}[$__rate_interval]))', 'steps/s'),
          g.rows('max by (namespace, job) (sparsebalance_coordinator_job_state_bytes{instance=~"$instance"})', 'memory'),
        ],
        {
          namespace: [0, 'Namespace'],
          job: [1, 'Job'],
          'Value #A': [2, 'Ranks'],
          'Value #B': [3, 'Imbalance'],
          'Value #C': [4, 'Slow ranks'],
          'Value #D': [5, 'Steps/s'],
          'Value #E': [6, 'Memory'],
        },
        [
          {
            matcher: { id: 'byName', options: 'Job' },
            properties: [{ id: 'links', value: [{
              title: 'Training balance of this job',
              url: '/d/' + c.uids['Training balance'] + '?${__url_time_range}&var-datasource=${datasource}&var-namespace=${__data.fields.Namespace}&var-job=${__data.fields.Job}',
            }] }],
          },
          { matcher: { id: 'byName', options: 'Imbalance' }, properties: [{ id: 'unit', value: 'suffix:×' }, { id: 'decimals', value: 2 }] },
          { matcher: { id: 'byName', options: 'Memory' }, properties: [{ id: 'unit', value: 'bytes' }] },
        ]
      ) + g.width(12),
    ]),
    g.row('Planning', 6, [
      g.timeseries(
        'Time to make a plan', 's', 'Median and 99th percentile over all jobs, and the 99th percentile of the wait for a planner thread. `--search-effort` bounds the first, `--planner-threads` the second.',
        [
          g.query(quantile('0.5', 'plan_seconds'), 'median'),
          g.query(quantile('0.99', 'plan_seconds'), '99th percentile'),
          g.query(quantile('0.99', 'plan_queue_seconds'), '99th percentile of the queue'),
        ]
      ) + g.bounds(0),
      g.timeseries(
        '99th percentile by policy', 's', 'Time to make a plan, 99th percentile, by policy.',
        [g.query('histogram_quantile(0.99, sum by (le, policy) (%s))' % rate('plan_seconds_bucket'), '{{policy}}')]
      ) + g.bounds(0),
      g.timeseries(
        'Planner queue', 'short', 'Plans that wait for a thread and that are being made (left), and how long the oldest has waited (right).',
        [
          g.query('sum (%s)' % c.process('planner_queued'), 'queued'),
          g.query('sum (%s)' % c.process('planner_running'), 'running'),
          g.query('max (%s)' % c.process('planner_oldest_wait_seconds'), 'oldest wait'),
        ]
      ) + g.unit_of('oldest wait', 's') + g.bounds(0),
      g.timeseries(
        'Plans', 'suffix: plans/s', 'Plans a second by policy; plans that were put off because the queue was full; batches that could not be planned; times that nodes gave different batches for a step.',
        [
          g.query(by('policy', 'plans_total'), '{{policy}}'),
          g.query(total('plans_postponed_total'), 'postponed'),
          g.query(total('plan_failures_total'), 'failed'),
          g.query(total('batch_mismatches_total'), 'batch mismatches'),
        ]
      ) + g.bounds(0),
    ]),
    g.row('Calls', 6, [
      g.timeseries(
        'Answered calls by method', 'suffix: calls/s', 'Answered calls a second, by method.',
        [g.query(by('grpc_method', 'rpcs_total'), '{{grpc_method}}')]
      ) + g.bounds(0),
      g.timeseries(
        'Calls that were not answered OK', 'suffix: calls/s', 'By method and code. UNAVAILABLE and ABORTED are part of normal life when nodes come and go; RESOURCE_EXHAUSTED is overload or a quota.',
        [g.query('sum by (grpc_method, grpc_code) (rate(sparsebalance_coordinator_rpcs_total{instance=~"$instance", grpc_code!="OK"}[$__rate_interval]))', '{{grpc_method}} {{grpc_code}}')]
      ) + g.bounds(0),
      g.timeseries(
        'Refused calls', 'suffix: calls/s', 'Shed because of overload, by class; denied by authorization; fenced, because the caller\'s generation or incarnation is over.',
        [
          g.query(by('class', 'shed_calls_total'), 'shed, {{class}}'),
          g.query(total('denied_calls_total') + ' or vector(0)', 'denied'),
          g.query(total('fenced_calls_total'), 'fenced'),
        ]
      ) + g.bounds(0),
      g.timeseries(
        'Waiting', 's', 'From a node\'s ExchangeStep to its answer: median and 99th percentile (left). Most of it is waiting for the other nodes. Calls under way, waiting ones included (right).',
        [
          g.query(quantile('0.5', 'barrier_wait_seconds'), 'median'),
          g.query(quantile('0.99', 'barrier_wait_seconds'), '99th percentile'),
          g.query('sum (%s)' % c.process('calls'), 'calls under way'),
        ]
      ) + g.unit_of('calls under way', 'short') + g.bounds(0),
    ]),
    g.row('Objective, store, claims and certificates', 6, [
      g.timeseries(
        'Error budget burnt', 'suffix:×', 'How fast the error budget of the objective (%g %% of plans made within %s s, after no more than that in the queue) is used, by part and window; 1 uses it up in exactly 30 days. From the recording rules in dashboards/prometheus.' % [config.plan_slo.objective * 100, config.plan_slo.seconds],
        [
          g.query('max by (part) (job:sparsebalance_coordinator_late_plans:ratio_rate%s) / %g' % [w, 1 - config.plan_slo.objective], '{{part}}, ' + w)
          for w in ['1h', '6h', '3d']
        ]
      ) + g.bounds(0),
      g.timeseries(
        'Writes to the store', 's', 'Time of a write to the store, median and 99th percentile (left); writes and refused writes a second (right).',
        [
          g.query(quantile('0.5', 'store_write_seconds'), 'median'),
          g.query(quantile('0.99', 'store_write_seconds'), '99th percentile'),
          g.query(total('store_write_seconds_count'), 'writes/s'),
          g.query(total('store_write_failures_total'), 'refused/s'),
        ]
      ) + g.unit_of('writes/s', 'suffix:/s') + g.unit_of('refused/s', 'suffix:/s') + g.bounds(0),
      g.timeseries(
        'Claims and leader epoch', 'short', '1 where a process may answer for jobs, by process (left); the highest leader epoch of its jobs (right), which rises with every take-over.',
        [
          g.query(c.process('claims_alive'), '{{instance}} may answer'),
          g.query('max (%s)' % c.process('leader_epoch'), 'leader epoch'),
        ]
      ) + g.unit_of('leader epoch', 'none') + g.bounds(0) + g.decimals(0),
      g.timeseries(
        'Reloads that failed', 'short', 'Certificates and authorization files that could not be used, in the interval before each point. What was loaded before stays in use. Nothing is shown with plaintext.',
        [
          g.query('sum (increase(%s[$__rate_interval]))' % c.process('certificate_reload_failures_total'), 'certificates'),
          g.query('sum (increase(%s[$__rate_interval]))' % c.process('authorization_reload_failures_total'), 'authorization'),
        ]
      ) + g.bounds(0),
    ]),
    g.row('Process', 6, [
      g.timeseries(
        'CPU', 'suffix: cores', 'Cores in use, by process.',
        [g.query('rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) ' + c.process('build_info'), '{{instance}}')]
      ) + g.bounds(0),
      g.timeseries(
        'Memory', 'bytes', 'Resident and virtual memory, and what is remembered about jobs, estimated.',
        [
          g.query(process('process_resident_memory_bytes'), '{{instance}} resident'),
          g.query(process('process_virtual_memory_bytes'), '{{instance}} virtual'),
          g.query('sum (sparsebalance_coordinator_job_state_bytes{instance=~"$instance"})', 'remembered about jobs'),
        ]
      ) + g.bounds(0),
      g.timeseries(
        'Open files', 'percentunit', 'File descriptors in use, as a share of the limit. Every node holds a connection.',
        [g.query('process_open_fds / process_max_fds and on (instance) ' + c.process('build_info'), '{{instance}}')]
      ) + g.bounds(0),
      g.timeseries(
        'Scrape and age', 's', 'What the scrape before this one took (left), and how long the process has run (right).',
        [
          g.query(c.process('scrape_seconds'), '{{instance}} scrape'),
          g.query('time() - max (%s)' % process('process_start_time_seconds'), 'age of the youngest'),
        ]
      ) + g.unit_of('age of the youngest', 's') + g.bounds(0),
    ]),
  ]
)
