// What differs between sites. Change it here, then run dashboards/generate.sh.
{
  // Scrape jobs of coordinators, matched against `job` of `up` only: every other query finds
  // coordinators by their own metrics.
  coordinator_scrape_jobs: 'sparsebalance-coordinator.*',

  // Where people read docs/alerts.md, as a URL: alerts then carry `runbook_url`, which tools make a link.
  // They carry `runbook`, the file and its section, in any case.
  runbook_url: '',

  // Tells the prometheus operator which Prometheus takes the rules; it must agree with that one's
  // `ruleSelector`.
  prometheus_rule_labels: { prometheus: 'sparsebalance', role: 'alert-rules' },

  rule_interval: '30s',

  // Of the objective "a plan is made, and had waited for a thread, within so long". `seconds` must be
  // a bucket's boundary of sparsebalance_coordinator_plan_seconds and ..._plan_queue_seconds, written
  // as it is exposed. With few plans one late one is a large share of all, so there must be some: more for
  // the alert about small shares, which a coordinator that has just started would give otherwise.
  plan_slo: { seconds: '0.5', objective: 0.99, min_plans: 100, min_plans_slow: 1000 },

  fallback: { ratio: 0.1, min_steps: 10, min_fallbacks: 5 },
  // A node waits for the others at every step: only a wait of several steps' length is one too long.
  barrier: { seconds: 30, steps: 5 },
  // Where most ranks are above the model's time, the model is wrong and not the ranks.
  slow_rank: { max_share: 0.5 },
  guard: { ratio: 0.1, min_sequences: 500 },
  drift: { low: 0.8, high: 1.25, min_steps: 20 },
  shedding: { calls_per_second: 0.1 },
  // Of the validity that a certificate had after its last renewal, as seen in the last 21 days. A share
  // and not a time, because certificates that live for an hour and for a year are both in use.
  // One of months warns at 7 days: a quarter of the 28 that it had 21 days before.
  certificate: { warning: 0.25, critical: 0.1 },
  store: { seconds: 0.5, min_writes: 20 },
}
