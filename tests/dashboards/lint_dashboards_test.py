#!/usr/bin/env python3
"""Plants each fault that lint_dashboards.py looks for into the real files, and wants it found."""

import copy
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import block_yaml  # noqa: E402
import lint_dashboards as lint  # noqa: E402
import list_queries  # noqa: E402

DASHBOARDS = lint.ROOT / 'dashboards'
METRICS = lint.documented_metrics((lint.ROOT / 'docs/metrics.md').read_text(encoding='utf-8'))
EXPOSED = lint.exposed_names(METRICS)
RULES = list_queries.load_rules(DASHBOARDS)
RECORDED = lint.recorded_names(RULES)
RUNBOOK = (lint.ROOT / 'docs/alerts.md').read_text(encoding='utf-8')
MAIN = list_queries.load_dashboards(DASHBOARDS)[DASHBOARDS / 'grafana/training-balance.json']


class DashboardFaults(unittest.TestCase):

    def setUp(self):
        self.dashboard = copy.deepcopy(MAIN)
        self.panel = next(p for p in self.dashboard['panels'] if p['type'] == 'timeseries')
        self.target = self.panel['targets'][0]

    def faults(self):
        return list(lint.dashboard_faults('training-balance', self.dashboard, EXPOSED, RECORDED))

    def assertFault(self, text):
        faults = self.faults()
        self.assertTrue(any(text in fault for fault in faults), f'"{text}" is not among {faults}')

    def test_the_real_one_has_none(self):
        self.assertEqual(self.faults(), [])

    def test_no_unit(self):
        self.panel['fieldConfig']['defaults']['unit'] = ''
        self.assertFault('has no unit')

    def test_no_description_of_a_panel(self):
        self.panel['description'] = ' '
        self.assertFault(f'panel "{self.panel["title"]}" has no description')

    def test_no_description_of_the_dashboard(self):
        self.dashboard['description'] = ''
        self.assertFault('has no description')

    def test_no_legend(self):
        for legend in ('', '__auto'):
            self.target['legendFormat'] = legend
            self.assertFault('query A has no legend')

    def test_hidden_legend(self):
        self.panel['options']['legend']['showLegend'] = False
        self.assertFault('shows no legend')

    def test_no_query(self):
        self.panel['targets'] = []
        self.assertFault('has no query')

    def test_fixed_data_source_of_a_panel(self):
        self.panel['datasource'] = {'type': 'prometheus', 'uid': 'P1809F7CD0C75ACF3'}
        self.assertFault('does not use the data source variable')

    def test_fixed_data_source_of_a_query(self):
        self.target['datasource'] = {'type': 'prometheus', 'uid': 'P1809F7CD0C75ACF3'}
        self.assertFault('query A does not use the data source variable')

    def test_fixed_data_source_of_a_variable(self):
        self.dashboard['templating']['list'][1]['datasource'] = {'type': 'prometheus', 'uid': 'x'}
        self.assertFault('variable namespace does not use the data source variable')

    def test_fixed_data_source_of_an_annotation(self):
        self.dashboard['annotations']['list'][1]['datasource'] = {'type': 'prometheus', 'uid': 'x'}
        self.assertFault('annotation "Generations" does not use the data source variable')

    def test_missing_variables(self):
        for name in ('datasource', 'namespace', 'job'):
            self.dashboard = copy.deepcopy(MAIN)
            kept = [v for v in self.dashboard['templating']['list'] if v['name'] != name]
            self.dashboard['templating']['list'] = kept
            self.assertFault(f'has no variable {name}')

    def test_unknown_variable(self):
        self.target['expr'] = 'sparsebalance_coordinator_jobs{state="$state"}'
        self.assertFault('unknown variable $state')

    def test_hard_coded_job_and_namespace(self):
        for matcher in ('job="moba"', 'job=~"moba.*"', 'namespace="research"', 'job=~"$job"'):
            self.target['expr'] = 'sparsebalance_coordinator_job_ranks{%s}' % matcher
            self.assertFault(matcher + ' is hard-coded')

    def test_metric_that_is_not_documented(self):
        self.target['expr'] = 'sparsebalance_coordinator_job_rank_seconds{job="$job"}'
        self.assertFault('sparsebalance_coordinator_job_rank_seconds is not in docs/metrics.md')

    def test_histogram_without_its_suffix(self):
        self.target['expr'] = 'sparsebalance_coordinator_job_step_seconds'
        self.assertFault('sparsebalance_coordinator_job_step_seconds is not in docs/metrics.md')

    def test_metric_by_its_name_in_a_matcher(self):
        self.target['expr'] = '{__name__=~"sparsebalance_coordinator_job_infos"}'
        self.assertFault('sparsebalance_coordinator_job_infos is not in docs/metrics.md')

    def test_figure_that_no_rule_records(self):
        self.target['expr'] = 'namespace_job:sparsebalance_steps:rate9m'
        self.assertFault('namespace_job:sparsebalance_steps:rate9m is not recorded')

    def test_rate_of_a_gauge(self):
        for function in ('rate', 'irate', 'increase'):
            self.target['expr'] = function + '(sparsebalance_coordinator_job_ranks[5m])'
            self.assertFault(function + '() over sparsebalance_coordinator_job_ranks')

    def test_rate_of_an_expression(self):
        self.target['expr'] = 'rate((sparsebalance_coordinator_job_steps_total * 2)[5m:])'
        self.assertFault('rate() over an expression')

    def test_forbidden_labels(self):
        for label in ('rank', 'sequence', 'step', 'generation'):
            for expr in ('sparsebalance_coordinator_job_ranks{%s="3"}',
                         'max by (job, %s) (sparsebalance_coordinator_job_ranks)',
                         'max without (%s) (sparsebalance_coordinator_job_ranks)',
                         'up * on (%s) group_left () up', 'up * on (job) group_left (%s) up'):
                self.target['expr'] = expr % label
                self.assertFault(f'label {label} is forbidden')
            self.target['expr'] = 'sparsebalance_coordinator_job_ranks'
            self.target['legendFormat'] = '{{ %s }}' % label
            self.assertFault(f'label {label} in the legend is forbidden')
            self.target['legendFormat'] = 'ranks'

    def test_quantile_without_le(self):
        self.target['expr'] = ('histogram_quantile(0.9, sum by (job) '
                               '(rate(sparsebalance_coordinator_job_step_seconds_bucket[5m])))')
        self.assertFault('histogram_quantile() wants sum by (le, ...)')

    def test_other_uid(self):
        self.dashboard['uid'] = 'abc'
        self.assertFault('uid abc is none of ours')

    def test_old_schema(self):
        self.dashboard['schemaVersion'] = 36
        self.assertFault('schemaVersion is below 39')

    def test_missing_link(self):
        del self.dashboard['links'][0]
        self.assertFault('has no link to sparsebalance-job-detail')

    def test_link_that_forgets(self):
        for key in ('keepTime', 'includeVars'):
            self.dashboard = copy.deepcopy(MAIN)
            self.dashboard['links'][0][key] = False
            self.assertFault('loses the time range or the variables')

    def test_no_generations(self):
        del self.dashboard['annotations']['list'][1]
        self.assertFault('has no annotation for generation changes')

    def test_two_panels_of_one_title(self):
        self.dashboard['panels'][0]['title'] = self.panel['title']
        self.assertFault(f'has two panels "{self.panel["title"]}"')

    def test_overlapping_panels(self):
        self.panel['gridPos']['y'] -= 1
        self.assertFault('overlap')

    def test_panel_beyond_the_grid(self):
        self.panel['gridPos']['w'] = 25
        self.assertFault('reaches beyond the grid')

    def test_more_than_a_screen(self):
        self.dashboard['panels'][-1]['gridPos']['h'] += 1
        self.assertFault('rows high; one screen has 24')

    def test_panels_in_a_collapsed_row_are_looked_at(self):
        self.panel['description'] = ''
        row = next(p for p in self.dashboard['panels'] if p['type'] == 'row')
        self.dashboard['panels'].remove(self.panel)
        row['panels'] = [self.panel]
        self.assertFault('has no description')


class RuleFaults(unittest.TestCase):

    def setUp(self):
        self.rules = copy.deepcopy(RULES)
        self.alert = next(r for r in lint.alerts_of(self.rules) if r['alert'] == 'SparseBalanceSlowRank')

    def assertFault(self, text, sections=None):
        found = set(lint.sections_of(RUNBOOK)) if sections is None else sections
        faults = list(lint.rule_faults(self.rules, EXPOSED, found))
        self.assertTrue(any(text in fault for fault in faults), f'"{text}" is not among {faults}')

    def test_the_real_ones_have_none(self):
        self.assertEqual(list(lint.rule_faults(self.rules, EXPOSED, set(lint.sections_of(RUNBOOK)))), [])

    def test_severity(self):
        self.alert['labels']['severity'] = 'page'
        self.assertFault('has no severity that we know')

    def test_texts(self):
        for key in ('summary', 'description'):
            self.setUp()
            self.alert['annotations'][key] = ''
            self.assertFault(f'has no {key}')

    def test_no_value(self):
        self.alert['annotations']['description'] = 'Some rank is slow.'
        self.assertFault('says no value')

    def test_no_section(self):
        self.assertFault('has no section in docs/alerts.md', sections=set())

    def test_wrong_runbook(self):
        self.alert['annotations']['runbook'] = 'docs/alerts.md'
        self.assertFault('names another section')

    def test_fires_at_once(self):
        del self.alert['for']
        self.assertFault('has no `for`')

    def test_forbidden_label_in_a_text(self):
        self.alert['annotations']['summary'] = 'Rank {{ $labels.rank }} is slow'
        self.assertFault('label rank is forbidden')

    def test_metric_that_is_not_documented(self):
        self.alert['expr'] = 'sparsebalance_coordinator_job_slow > 0'
        self.assertFault('sparsebalance_coordinator_job_slow is not in docs/metrics.md')

    def test_rate_of_a_gauge(self):
        self.alert['expr'] = 'increase(sparsebalance_coordinator_job_slow_ranks[5m]) > 0'
        self.assertFault('increase() over sparsebalance_coordinator_job_slow_ranks')

    def test_hard_coded_job(self):
        self.alert['expr'] = 'sparsebalance_coordinator_job_slow_ranks{job="moba"} > 0'
        self.assertFault('is hard-coded')

    def test_figure_that_is_not_recorded(self):
        self.rules['groups'][0]['rules'] = []
        self.assertFault('is not recorded by any rule')


class OtherFaults(unittest.TestCase):

    def test_the_operator_gets_the_same_rules(self):
        text = (DASHBOARDS / 'prometheus/prometheus-rule.yaml').read_text(encoding='utf-8')
        resource = block_yaml.loads(text)
        self.assertEqual((resource['apiVersion'], resource['kind']),
                         ('monitoring.coreos.com/v1', 'PrometheusRule'))
        self.assertEqual(resource['spec'], RULES)

    def test_section_of_no_alert(self):
        faults = list(lint.runbook_faults(RUNBOOK + '\n## SparseBalanceGhost\n', RULES, {'job'}, set()))
        self.assertIn('section SparseBalanceGhost is of no alert', faults)

    def test_verb_and_flag_that_do_not_exist(self):
        faults = list(lint.runbook_faults('`sbctl mend JOB --quickly`', RULES, {'job'}, {'--slowly'}))
        self.assertIn('sbctl has no verb mend', faults)
        self.assertIn('no program of ours has --quickly', faults)

    def test_alert_without_cases(self):
        faults = list(lint.case_faults(RULES, ''))
        self.assertIn('SparseBalanceSlowRank has no case in which it fires', faults)
        self.assertIn('SparseBalanceSlowRank has no case in which it does not fire', faults)

    def test_needs(self):
        entries = [{'id': 'a', 'needs': 'luck', 'reason': ''}, {'id': 'a', 'needs': 'gpu', 'reason': 'x'},
                   {'id': 'b', 'needs': 'gpu', 'reason': 'x'}]
        faults = list(lint.need_faults(entries, {'a'}))
        for text in ('b is no query of ours', 'a occurs twice', 'a: needs luck is none', 'a has no reason'):
            self.assertTrue(any(text in fault for fault in faults), f'"{text}" is not among {faults}')

    def test_metrics_are_read_from_all_tables(self):
        self.assertEqual(METRICS['sparsebalance_coordinator_plan_seconds'], 'histogram')
        self.assertEqual(METRICS['sparsebalance_coordinator_planner_running'], 'gauge')
        self.assertEqual(METRICS['sparsebalance_coordinator_job_ranks_missing'], 'gauge')
        self.assertEqual(METRICS['sparsebalance_worker_rejoins_total'], 'counter')
        self.assertEqual(METRICS['process_cpu_seconds_total'], 'counter')


class Queries(unittest.TestCase):

    def test_ids_are_unique(self):
        ids = [query['id'] for query in list_queries.all_queries(DASHBOARDS)]
        self.assertEqual(len(ids), len(set(ids)))

    def test_variables_are_put_in(self):
        for query in list_queries.all_queries(DASHBOARDS, {'job': 'moba', 'namespace': 'research'}):
            self.assertNotIn('$', query['expr'], query['id'])
        values = {'job': 'a', 'jobs': 'b'}
        self.assertEqual(list_queries.substitute('$job ${job} $jobs', values), 'a a b')

    def test_kinds_and_places(self):
        kinds = {query['kind'] for query in list_queries.all_queries(DASHBOARDS)}
        self.assertEqual(kinds, {'panel', 'variable', 'annotation', 'record', 'alert'})


class BlockYaml(unittest.TestCase):

    def test_reads_what_we_write(self):
        text = '# head\na:\n  - b: "x: \\"y\\""\n    c: |-\n      1\n      - 2\n    d:\n      e: 3\n  - "z"\n'
        self.assertEqual(block_yaml.loads(text),
                         {'a': [{'b': 'x: "y"', 'c': '1\n- 2', 'd': {'e': 3}}, 'z']})

    def test_refuses_the_rest(self):
        for text in ('a: plain\n', "a: 'x'\n", 'a: {b: 1}\n', 'a: 1\na: 2\n', 'a: 1\n   b: 2\n', 'a: &x 1\n'):
            with self.assertRaises(block_yaml.BlockYamlError, msg=text):
                block_yaml.loads(text)


if __name__ == '__main__':
    unittest.main()
