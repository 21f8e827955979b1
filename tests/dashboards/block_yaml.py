"""Reads the YAML that dashboards/source/yaml.libsonnet writes, with Python's standard library alone.

Not YAML at large: block mappings and sequences, scalars as JSON writes them, and `|-` blocks. Anything
else is an error, so that nothing is misread.
"""

import json
import re

_KEY = re.compile(r'([A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"):(?: (.*))?$')


class BlockYamlError(ValueError):
    pass


def loads(text):
    lines = [(number, line) for number, line in enumerate(text.split('\n'), 1)
             if line.strip() and not line.lstrip().startswith('#')]
    reader = _Reader(lines)
    value = reader.node(0)
    if reader.at < len(lines):
        raise BlockYamlError(f'line {lines[reader.at][0]}: unexpected indentation')
    return value


class _Reader:

    def __init__(self, lines):
        self.lines = lines
        self.at = 0

    def _peek(self):
        if self.at >= len(self.lines):
            return -1, ''
        line = self.lines[self.at][1]
        content = line.lstrip(' ')
        return len(line) - len(content), content

    def _fail(self, why):
        number = self.lines[min(self.at, len(self.lines) - 1)][0]
        raise BlockYamlError(f'line {number}: {why}')

    def node(self, indent):
        found, content = self._peek()
        if found != indent:
            self._fail(f'expected {indent} spaces, found {found}')
        return self._sequence(indent) if content.startswith('- ') else self._mapping(indent)

    def _sequence(self, indent):
        items = []
        while True:
            found, content = self._peek()
            if found != indent or not content.startswith('- '):
                return items
            rest = content[2:]
            if _KEY.match(rest):
                # The item is a mapping whose first key stands on the dash's line.
                number, line = self.lines[self.at]
                self.lines[self.at] = (number, ' ' * (indent + 2) + rest)
                items.append(self._mapping(indent + 2))
            else:
                items.append(self._scalar(rest, indent))

    def _mapping(self, indent):
        mapping = {}
        while True:
            found, content = self._peek()
            if found != indent or content.startswith('- '):
                return mapping
            match = _KEY.match(content)
            if not match:
                self._fail(f'not a key: {content!r}')
            key = json.loads(match[1]) if match[1].startswith('"') else match[1]
            if key in mapping:
                self._fail(f'key {key!r} occurs twice')
            if match[2] is None:
                self.at += 1
                mapping[key] = self.node(indent + 2)
            else:
                mapping[key] = self._scalar(match[2], indent)

    def _scalar(self, text, indent):
        if text == '|-':
            self.at += 1
            block = []
            while self._peek()[0] > indent:
                block.append(self.lines[self.at][1][indent + 2:])
                self.at += 1
            return '\n'.join(block)
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            self._fail(f'not a scalar that our generator writes: {text!r}')
        self.at += 1
        return value
