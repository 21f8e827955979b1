#!/usr/bin/env python3
"""Lists every query of dashboards, rules and alerts, as one JSON object a line.

    list_queries.py [--namespace NAME] [--job NAME] [--instance REGEX] [--rate-interval 1m] ...

Each line has
    id     stable: file/panel title/refId, file/variable/name, file/annotation/name,
           rules/group/record/name[/label value], rules/group/alert/name/severity
    kind   panel, variable, annotation, record or alert
    file   relative to the dashboards folder
    title  of the panel, or the name of the rest
    expr   PromQL, template variables put in; of a variable, the selector whose series it lists
    label  of a variable: the label whose values it shows
    raw    as it stands in the file
A panel's query that Grafana evaluates at the end of the range only has "instant": true.
"""

import argparse
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import block_yaml  # noqa: E402

DASHBOARDS = pathlib.Path(__file__).resolve().parents[2] / 'dashboards'

DEFAULTS = {
    'namespace': 'default',
    'job': 'job',
    'instance': '.*',
    'datasource': 'prometheus',
    '__rate_interval': '1m',
    '__interval': '15s',
    '__range': '1h',
}


class UnknownVariable(ValueError):
    pass


def substitute(text, values):
    """Puts values in for $name and ${name}. A name that is not known is an error."""

    def value(match):
        name = match[1] or match[2]
        if name not in values:
            raise UnknownVariable(f'unknown variable ${name} in: {text}')
        return values[name]

    return re.sub(r'\$(?:\{(\w+)\}|(\w+))', value, text)


def panels_of(dashboard):
    """All panels, those of collapsed rows included, rows themselves not."""
    for panel in dashboard['panels']:
        if panel['type'] == 'row':
            yield from panel.get('panels', [])
        else:
            yield panel


LABEL_VALUES = re.compile(r'label_values\((.*), *(\w+)\)$', re.DOTALL)


def dashboard_queries(name, dashboard):
    for variable in dashboard['templating']['list']:
        if variable['type'] != 'query':
            continue
        query = variable['query']['query']
        match = LABEL_VALUES.match(query)
        yield {
            'id': f'{name}/variable/{variable["name"]}', 'kind': 'variable', 'title': variable['name'],
            'raw': match[1] if match else query, 'label': match[2] if match else None,
        }
    for annotation in dashboard['annotations']['list']:
        if not annotation.get('builtIn'):
            yield {
                'id': f'{name}/annotation/{annotation["name"]}', 'kind': 'annotation',
                'title': annotation['name'], 'raw': annotation['expr'],
            }
    for panel in panels_of(dashboard):
        for target in panel['targets']:
            yield {
                'id': f'{name}/{panel["title"]}/{target["refId"]}', 'kind': 'panel',
                'title': panel['title'], 'raw': target['expr'],
                'instant': bool(target.get('instant')),
            }


def rule_queries(rules):
    for group in rules['groups']:
        for rule in group['rules']:
            kind = 'alert' if 'alert' in rule else 'record'
            # Rules of one name differ in a label.
            labels = '/'.join(value for _, value in sorted(rule.get('labels', {}).items()))
            yield {
                'id': f'rules/{group["name"]}/{kind}/{rule[kind]}' + (f'/{labels}' if labels else ''),
                'kind': kind, 'title': rule[kind], 'raw': rule['expr'],
            }


def load_dashboards(folder=DASHBOARDS):
    return {path: json.loads(path.read_text(encoding='utf-8'))
            for path in sorted((folder / 'grafana').glob('*.json'))}


def load_rules(folder=DASHBOARDS):
    return block_yaml.loads((folder / 'prometheus' / 'rules.yaml').read_text(encoding='utf-8'))


def all_queries(folder=DASHBOARDS, values=None):
    values = DEFAULTS | (values or {})
    for path, dashboard in load_dashboards(folder).items():
        for query in dashboard_queries(path.stem, dashboard):
            yield query | {
                'file': str(path.relative_to(folder)), 'expr': substitute(query['raw'], values)
            }
    for query in rule_queries(load_rules(folder)):
        yield query | {'file': 'prometheus/rules.yaml', 'expr': query['raw']}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--dashboards', type=pathlib.Path, default=DASHBOARDS, help='folder')
    for name, default in DEFAULTS.items():
        parser.add_argument('--' + name.strip('_').replace('_', '-'), dest=name, default=default,
                            help=f'value of ${name} (default {default})')
    arguments = vars(parser.parse_args())
    folder = arguments.pop('dashboards').resolve()
    for query in all_queries(folder, arguments):
        print(json.dumps(query, ensure_ascii=False))


if __name__ == '__main__':
    main()
