// The same rules for Prometheus' own rule files and for the prometheus operator. Gives file names and
// texts.
local config = import 'config.libsonnet';
local rules = import 'rules.libsonnet';
local yaml = import 'yaml.libsonnet';

local head = '# Made from dashboards/source/rules.libsonnet by dashboards/generate.sh; change it there.\n';

{
  'rules.yaml': head + yaml.document(rules),
  'prometheus-rule.yaml': head + yaml.document({
    apiVersion: 'monitoring.coreos.com/v1',
    kind: 'PrometheusRule',
    metadata: { name: 'sparsebalance', labels: config.prometheus_rule_labels },
    spec: rules,
  }),
}
