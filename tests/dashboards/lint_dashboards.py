#!/usr/bin/env python3
"""Holds dashboards, rules and alerts against what we ask of them, and against docs/metrics.md.

    lint_dashboards.py [--root REPOSITORY]

Prints one line a fault; exit code 1 where there is any. Every check is a function that gives faults as
text, so that lint_dashboards_test.py can plant each fault.
"""

import argparse
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import list_queries  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]

DASHBOARD_UIDS = {
    'sparsebalance-training-balance', 'sparsebalance-job-detail', 'sparsebalance-coordinator',
    'sparsebalance-gpu-and-node',
}
ONE_SCREEN = {'sparsebalance-training-balance': 24}  # rows of the grid that 1080 lines show
FORBIDDEN_LABELS = {'rank', 'sequence', 'step', 'generation'}
SEVERITIES = {'critical', 'warning'}
NEEDS = {'fault', 'tls', 'gpu', 'exporter', 'config'}

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_LABEL_LIST = re.compile(r'\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)')
_MATCHERS = re.compile(r'\{([^{}]*)\}')
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*")')
_METRIC = re.compile(r'[A-Za-z_:][A-Za-z0-9_:]*')


# --- The contract ----------------------------------------------------------------------------------

def documented_metrics(text):
    """Type by metric name, from the tables of docs/metrics.md."""
    metrics = {}
    prefix = ''
    for line in text.split('\n'):
        if line.startswith('## '):
            prefix = ''
        begin = re.match(r'All begin with `(\w+)`', line)
        if begin:
            prefix = begin[1]
        cells = [cell.strip() for cell in line.strip().strip('|').split('|')]
        if not line.startswith('|') or len(cells) < 3:
            continue
        if cells[1] not in ('gauge', 'counter', 'histogram'):
            continue
        for name in re.findall(r'`([a-z][a-z0-9_]*)`', cells[0]):
            metrics[name if name.startswith('process_') else prefix + name] = cells[1]
    return metrics


def exposed_names(metrics):
    """Names of series, with the suffixes of histograms."""
    names = set()
    for name, kind in metrics.items():
        names |= {name + s for s in ('_bucket', '_sum', '_count')} if kind == 'histogram' else {name}
    return names


# --- Queries ---------------------------------------------------------------------------------------

def query_faults(expr, exposed, recorded):
    """Faults of one PromQL expression wherever it stands."""
    for name in sorted(set(re.findall(r'(?:[a-z_]+:)?\b(?:sparsebalance|process)_[A-Za-z0-9_:]+', expr))):
        if ':' in name:
            if name not in recorded:
                yield f'{name} is not recorded by any rule'
        elif name not in exposed:
            yield f'{name} is not in docs/metrics.md'

    bare = _STRING.sub('""', expr)
    for call in re.finditer(r'\b(rate|irate|increase)\s*\(\s*([^\s{[(]*)', bare):
        if not re.fullmatch(r'[A-Za-z_:][A-Za-z0-9_:]*_(total|bucket|sum|count)', call[2]):
            yield f'{call[1]}() over {call[2] or "an expression"}, which is not a counter'

    labels = {l.strip() for group in _LABEL_LIST.findall(bare) for l in group.split(',')}
    labels |= {m[0] for group in _MATCHERS.findall(expr) for m in _MATCHER.findall(group)}
    for label in sorted(labels & FORBIDDEN_LABELS):
        yield f'label {label} is forbidden: its number has no bound'

    for call in re.finditer(r'\bhistogram_quantile\s*\(', bare):
        if not re.match(r'[^,]+,\s*sum by \(le\b', bare[call.end():]):
            yield 'histogram_quantile() wants sum by (le, ...)'


def hard_coded(expr, allowed):
    """Matchers on job or namespace that name one. `allowed`: value by label that may stand."""
    for group in re.finditer(r'([A-Za-z_:][A-Za-z0-9_:]*)?\{([^{}]*)\}', expr):
        if group[1] == 'up':
            continue  # the one place where the scrape job is the point
        for label, operator, value in _MATCHER.findall(group[2]):
            if label in ('job', 'namespace') and (operator, value) != ('=', allowed.get(label)):
                yield f'{label}{operator}{value} is hard-coded'


IN_DASHBOARDS = {'job': '"$job"', 'namespace': '"$namespace"'}


# --- Dashboards ------------------------------------------------------------------------------------

def is_variable_datasource(owner):
    return owner.get('datasource') == {'type': 'prometheus', 'uid': '${datasource}'}


def panel_faults(panel):
    if not panel.get('description', '').strip():
        yield 'has no description'
    if not panel['fieldConfig']['defaults'].get('unit'):
        yield 'has no unit'
    if not is_variable_datasource(panel):
        yield 'does not use the data source variable'
    if panel['type'] == 'timeseries' and not panel['options'].get('legend', {}).get('showLegend'):
        yield 'shows no legend'
    if not panel['targets']:
        yield 'has no query'
    for target in panel['targets']:
        if not is_variable_datasource(target):
            yield f'query {target["refId"]} does not use the data source variable'
        legend = target.get('legendFormat', '')
        if not legend or legend == '__auto':
            yield f'query {target["refId"]} has no legend'
        for label in re.findall(r'\{\{ *(\w+) *\}\}', legend):
            if label in FORBIDDEN_LABELS:
                yield f'query {target["refId"]}: label {label} in the legend is forbidden'


def layout_faults(dashboard):
    taken = {}
    for panel in dashboard['panels']:
        grid = panel['gridPos']
        if grid['x'] + grid['w'] > 24:
            yield f'panel "{panel["title"]}" reaches beyond the grid'
        for x in range(grid['x'], grid['x'] + grid['w']):
            for y in range(grid['y'], grid['y'] + grid['h']):
                if (x, y) in taken:
                    yield f'panels "{panel["title"]}" and "{taken[x, y]}" overlap'
                    return
                taken[x, y] = panel['title']
    height = max(panel['gridPos']['y'] + panel['gridPos']['h'] for panel in dashboard['panels'])
    limit = ONE_SCREEN.get(dashboard['uid'])
    if limit and height > limit:
        yield f'is {height} rows high; one screen has {limit}'


def dashboard_faults(name, dashboard, exposed, recorded):
    if dashboard.get('uid') not in DASHBOARD_UIDS:
        yield f'uid {dashboard.get("uid")} is none of ours: links and bookmarks would break'
    if dashboard.get('schemaVersion', 0) < 39:
        yield 'schemaVersion is below 39'
    if not dashboard.get('description', '').strip():
        yield 'has no description'

    variables = {v['name']: v for v in dashboard['templating']['list']}
    for needed, kind in {'datasource': 'datasource', 'namespace': 'query', 'job': 'query'}.items():
        if variables.get(needed, {}).get('type') != kind:
            yield f'has no variable {needed} of type {kind}'
    for variable in variables.values():
        if variable['type'] == 'query' and not is_variable_datasource(variable):
            yield f'variable {variable["name"]} does not use the data source variable'

    linked = {link['url'].removeprefix('/d/') for link in dashboard['links']}
    for uid in sorted(DASHBOARD_UIDS - linked - {dashboard.get('uid')}):
        yield f'has no link to {uid}'
    for link in dashboard['links']:
        if not (link.get('keepTime') and link.get('includeVars')):
            yield f'link to {link["url"]} loses the time range or the variables'

    annotations = [a for a in dashboard['annotations']['list'] if not a.get('builtIn')]
    if not any('sparsebalance_coordinator_job_generation' in a['expr'] for a in annotations):
        yield 'has no annotation for generation changes'
    for annotation in annotations:
        if not is_variable_datasource(annotation):
            yield f'annotation "{annotation["name"]}" does not use the data source variable'

    titles = set()
    for panel in list_queries.panels_of(dashboard):
        if panel['title'] in titles:
            yield f'has two panels "{panel["title"]}"'
        titles.add(panel['title'])
        for fault in panel_faults(panel):
            yield f'panel "{panel["title"]}" {fault}'
    yield from layout_faults(dashboard)

    known = set(variables) | set(list_queries.DEFAULTS)
    for query in list_queries.dashboard_queries(name, dashboard):
        where = query['id'].removeprefix(name + '/')
        for fault in [*query_faults(query['raw'], exposed, recorded), *hard_coded(query['raw'], IN_DASHBOARDS)]:
            yield f'{where}: {fault}'
        try:
            list_queries.substitute(query['raw'], {variable: '' for variable in known})
        except list_queries.UnknownVariable as unknown:
            yield f'{where}: {unknown}'


# --- Rules and alerts ------------------------------------------------------------------------------

def recorded_names(rules):
    return {r['record'] for group in rules['groups'] for r in group['rules'] if 'record' in r}


def alerts_of(rules):
    return [r for group in rules['groups'] for r in group['rules'] if 'alert' in r]


def alert_faults(rule, sections):
    annotations = rule.get('annotations', {})
    if rule.get('labels', {}).get('severity') not in SEVERITIES:
        yield 'has no severity that we know'
    for needed in ('summary', 'description'):
        if not annotations.get(needed, '').strip():
            yield f'has no {needed}'
    # absent() gives neither a value nor labels.
    if '$value' not in annotations.get('description', '') and not re.match(r'(absent|up)\b', rule['expr']):
        yield 'says no value in its description'
    if rule['alert'] not in sections:
        yield 'has no section in docs/alerts.md'
    if annotations.get('runbook') != 'docs/alerts.md#' + rule['alert'].lower():
        yield 'names another section than its own as its runbook'
    if not rule.get('for'):
        yield 'fires at once: it has no `for`'
    for label in re.findall(r'\$labels\.(\w+)', ' '.join(annotations.values())):
        if label in FORBIDDEN_LABELS:
            yield f'label {label} is forbidden'


def rule_faults(rules, exposed, sections):
    recorded = recorded_names(rules)
    for group in rules['groups']:
        for rule in group['rules']:
            name = rule.get('alert') or rule['record']
            for fault in [*query_faults(rule['expr'], exposed, recorded), *hard_coded(rule['expr'], {})]:
                yield f'{name}: {fault}'
            if 'alert' in rule:
                for fault in alert_faults(rule, sections):
                    yield f'{name} {fault}'


def sections_of(text):
    return re.findall(r'^## (SparseBalance\w+)$', text, re.MULTILINE)


def runbook_faults(text, rules, verbs, flags):
    """`verbs`: of sbctl; `flags`: all that our programs have."""
    names = {rule['alert'] for rule in alerts_of(rules)}
    for section in sections_of(text):
        if section not in names:
            yield f'section {section} is of no alert'
    for verb in sorted(set(re.findall(r'\bsbctl ([a-z]+)', text)) - verbs):
        yield f'sbctl has no verb {verb}'
    for flag in sorted(set(re.findall(r'(?<![\w-])--[a-z][a-z0-9-]*', text)) - flags):
        yield f'no program of ours has {flag}'


def case_faults(rules, tests):
    """`tests`: text of the files for `promtool test rules`."""
    fires = set(re.findall(r'alertname: (\w+)\n\s+exp_alerts:\n', tests))
    quiet = set(re.findall(r'alertname: (\w+), exp_alerts: \[\]', tests))
    for name in sorted({rule['alert'] for rule in alerts_of(rules)}):
        if name not in fires:
            yield f'{name} has no case in which it fires'
        if name not in quiet:
            yield f'{name} has no case in which it does not fire'


def need_faults(needs, ids):
    seen = set()
    for entry in needs:
        if entry['id'] not in ids:
            yield f'{entry["id"]} is no query of ours'
        if entry['id'] in seen:
            yield f'{entry["id"]} occurs twice'
        seen.add(entry['id'])
        if entry.get('needs') not in NEEDS:
            yield f'{entry["id"]}: needs {entry.get("needs")} is none of {", ".join(sorted(NEEDS))}'
        if not entry.get('reason', '').strip():
            yield f'{entry["id"]} has no reason'


# --- The repository --------------------------------------------------------------------------------

def declared_flags(root):
    flags = {'--help', '--version', '--config', '--auto-compaction-retention', '--endpoints'}  # last two: etcd's
    for folder in ('coordinator', 'worker'):
        for path in (root / folder).rglob('*.cc'):
            flags |= set(re.findall(r'--[a-z][a-z0-9-]*', path.read_text(encoding='utf-8')))
    return flags


def repository_faults(root):
    metrics = documented_metrics((root / 'docs/metrics.md').read_text(encoding='utf-8'))
    exposed = exposed_names(metrics)
    rules = list_queries.load_rules(root / 'dashboards')
    recorded = recorded_names(rules)
    uids = set()
    for path, dashboard in list_queries.load_dashboards(root / 'dashboards').items():
        for fault in dashboard_faults(path.stem, dashboard, exposed, recorded):
            yield f'{path.name}: {fault}'
        uids.add(dashboard.get('uid'))
    for uid in sorted(DASHBOARD_UIDS - uids):
        yield f'dashboards/grafana has no dashboard {uid}'

    runbook = (root / 'docs/alerts.md').read_text(encoding='utf-8')
    for fault in rule_faults(rules, exposed, set(sections_of(runbook))):
        yield f'rules.yaml: {fault}'
    verbs = set(re.findall(r'add_subcommand\(\s*"([a-z]+)"', (root / 'coordinator/cli/sbctl.cc').read_text(encoding='utf-8')))
    for fault in runbook_faults(runbook, rules, verbs, declared_flags(root)):
        yield f'docs/alerts.md: {fault}'
    cases = ''.join(path.read_text(encoding='utf-8')
                    for path in sorted((root / 'tests/dashboards').glob('rules_*test.yaml')))
    for fault in case_faults(rules, cases):
        yield f'tests/dashboards: {fault}'

    ids = {query['id'] for query in list_queries.all_queries(root / 'dashboards')}
    needs = json.loads((root / 'dashboards/needs.json').read_text(encoding='utf-8'))
    for fault in need_faults(needs['queries'], ids):
        yield f'needs.json: {fault}'


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--root', type=pathlib.Path, default=ROOT, help='of the repository')
    faults = list(repository_faults(parser.parse_args().root.resolve()))
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
