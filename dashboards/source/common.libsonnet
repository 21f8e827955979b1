// What our dashboards share: selections, variables, annotations and links.
local g = import 'grafana.libsonnet';

local job_selector = '{namespace="$namespace", job="$job"}';

{
  // Series of the chosen job, at the coordinator and at its workers.
  coordinator(metric):: 'sparsebalance_coordinator_job_' + metric + job_selector,
  worker(metric):: 'sparsebalance_worker_' + metric + job_selector,
  // Series of the chosen coordinator processes.
  process(metric):: 'sparsebalance_coordinator_' + metric + '{instance=~"$instance"}',

  // A gauge of the job. While another replica takes a job over, two may have it for a moment.
  gauge(series):: 'max by (namespace, job) (%s)' % series,
  rate(series):: 'sum by (namespace, job) (rate(%s[$__rate_interval]))' % series,
  increase(series):: 'sum by (namespace, job) (increase(%s[$__range]))' % series,
  // Every node of a job reports the same steps: one node's, not the sum. A job's policies follow one
  // another, so they do add up.
  worker_rate(series):: 'sum by (namespace, job) (max by (namespace, job, policy) (rate(%s[$__rate_interval])))' % series,
  worker_rate_by(labels, series):: 'sum by (%s) (max by (namespace, job, policy, %s) (rate(%s[$__rate_interval])))' % [labels, labels, series],
  quantile(q, series):: 'histogram_quantile(%s, sum by (le, namespace, job) (rate(%s[$__rate_interval])))' % [q, series],
  worker_quantile(q, series):: 'histogram_quantile(%s, sum by (le, namespace, job) (max by (le, namespace, job, policy) (rate(%s[$__rate_interval]))))' % [q, series],
  // Rank-seconds of steps that took `seconds`: what shares of rank time are shares of.
  rank_seconds(seconds)::
    '(%s * max by (namespace, job) (%s))' % [seconds, $.coordinator('ranks')],
  // Counters with a `reason` need not exist before their first event: 0 where there are steps at all.
  or_zero(expr, of):: '(%s or 0 * %s)' % [expr, of],

  // --- Selectors of a dashboard ------------------------------------------------------------------
  // A job is known by its coordinator or, where that was away, by its workers.
  local known = '{__name__=~"sparsebalance_coordinator_job_info|sparsebalance_worker_step_seconds_count"%s}',
  job_variables: [
    g.datasource_variable,
    g.query_variable('namespace', 'Namespace', 'label_values(%s, namespace)' % known % ''),
    g.query_variable('job', 'Job', 'label_values(%s, job)' % known % ', namespace="$namespace"'),
  ],
  instance_variable: g.query_variable(
    'instance', 'Coordinator', 'label_values(sparsebalance_coordinator_build_info, instance)', all=true
  ),

  annotations: [
    // A window of two minutes holds two samples for scrape intervals of up to a minute.
    g.annotation(
      'Generations', 'blue',
      'max by (namespace, job) (changes(%s[2m])) > 0' % $.coordinator('generation'),
      'New generation', 'The membership of {{namespace}}/{{job}} was formed anew'
    ),
    g.annotation(
      'Coordinator starts', 'purple',
      'changes(process_start_time_seconds[2m]) > 0 and on (instance) sparsebalance_coordinator_build_info',
      'Coordinator restarted', '{{instance}}'
    ),
    g.annotation(
      'Alerts', 'red',
      'max by (alertname, severity) (ALERTS{alertname=~"SparseBalance.*", alertstate="firing", namespace="$namespace", job="$job"})',
      '{{alertname}}', '{{severity}}; see docs/alerts.md'
    ),
  ],

  local dashboards = [
    ['Training balance', 'sparsebalance-training-balance', 'Is the job balanced, what is won, who is slow, is quality at risk?'],
    ['Job detail', 'sparsebalance-job-detail', 'Everything about one job'],
    ['Coordinator', 'sparsebalance-coordinator', 'Is the coordinator well?'],
    ['GPU and node', 'sparsebalance-gpu-and-node', 'The machines of one job'],
  ],
  uids: { [d[0]]: d[1] for d in dashboards },
  dashboard(title, description, variables, rows)::
    g.dashboard(
      $.uids[title], 'SparseBalance / ' + title, description,
      [g.link(d[0], d[1], d[2]) for d in dashboards if d[0] != title],
      variables, $.annotations, g.layout(rows)
    ),

  names_hint: ' Ranks have no series of their own: `sbctl job NAMESPACE/JOB` and the status page of the coordinator name them.',
}
