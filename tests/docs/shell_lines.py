"""Finds the commands in a block of shell lines, as documents show them.

Knows continuation lines, comments, quotes, pipes and lists, redirections, here-documents, variables
before a command, functions, and two habits of documents: a prompt `$ ` before commands that stand among
their output, and `[--option VALUE]` for what may be left out.
"""

import dataclasses
import re
import shlex

_SEPARATORS = re.compile(r'[|&;()]+$|<\($|>\($|[{}]$')
_REDIRECTION = re.compile(r'[<>]+&?$|&>+$')
_KEYWORDS = {'if', 'then', 'else', 'elif', 'fi', 'while', 'until', 'do', 'done', 'esac', '!', 'time'}
_SILENT = {'for', 'case', 'select', 'function'}  # what follows is no command
_HERE = re.compile(r'<<-?\s*([\'"]?)(\w+)\1')
_ASSIGNMENT = re.compile(r'[A-Za-z_][A-Za-z0-9_]*\+?=')
# Programs that run another: the options of theirs that take a value.
_WRAPPERS = {'sudo': {'-u', '-g'}, 'nohup': set(), 'nice': {'-n'}, 'env': {'-u'}, 'exec': set(),
             'timeout': {'-s', '-k'}, 'setsid': set(), 'systemd-run': {'-p'}}


@dataclasses.dataclass
class Command:
    line: int
    program: str
    arguments: list
    text: str
    variables: dict = dataclasses.field(default_factory=dict)


class ShellError(ValueError):

    def __init__(self, line, problem):
        super().__init__(problem)
        self.line = line


def logical_lines(lines, first, prompts=False):
    """(number, text) of each whole line: prompts, comments and here-documents taken away.

    With `prompts`, or where some line has one, lines without are output.
    """
    prompts = prompts or any(line.startswith('$ ') for line in lines)
    at = 0
    while at < len(lines):
        number = first + at
        line = lines[at]
        at += 1
        if prompts:
            if not line.startswith('$ '):
                continue
            line = line[2:]
        line = _without_comment(line)
        while at < len(lines) and (line.endswith('\\') or _open_quote(line)):
            glue = line[:-1] if line.endswith('\\') else line + '\n'
            line = glue + _without_comment(lines[at], glue)
            at += 1
        here = _HERE.search(line)
        if here:
            while at < len(lines) and lines[at].strip() != here[2]:
                at += 1
            at += 1
            line = line[:here.start()] + line[here.end():]
        if line.strip():
            yield number, line.rstrip()


def _open_quote(line):
    quote = ''
    escaped = False
    for char in line:
        if escaped:
            escaped = False
        elif char == '\\' and quote != "'":
            escaped = True
        elif quote:
            quote = '' if char == quote else quote
        elif char in '\'"':
            quote = char
    return quote


def _without_comment(line, before=''):
    quote = _open_quote(before)
    escaped = False
    for at, char in enumerate(line):
        if escaped:
            escaped = False
        elif char == '\\' and quote != "'":
            escaped = True
        elif quote:
            quote = '' if char == quote else quote
        elif char in '\'"':
            quote = char
        elif char == '#' and (at == 0 or line[at - 1].isspace()):
            return line[:at].rstrip()
    return line.rstrip()


def _plain(text):
    """Without the habits of documents."""
    def optional(match):
        return ' ' + re.sub(r'\|', '/', match[1].replace('|-', ' -'))
    text = re.sub(r'(?<=\s)\[((?:-|[A-Z])[^\[\]]*)\]', optional, text)
    text = re.sub(r'<([A-Za-z][\w -]*)>', lambda m: m[1].replace(' ', '-').upper(), text)
    return re.sub(r'(?<=[\w-])\|(?=[\w-])', '/', text)  # one of several words


def commands(lines, first=1, prompts=False):
    """Every simple command; ShellError for lines that cannot be taken apart."""
    found = []
    for number, line in logical_lines(lines, first, prompts):
        lexer = shlex.shlex(_plain(line), posix=True, punctuation_chars='();<>|&')
        lexer.whitespace_split = True
        lexer.commenters = ''
        try:
            tokens = list(lexer)
        except ValueError as error:
            raise ShellError(number, str(error)) from error
        simple = []
        skip = False
        for token in tokens + [';']:
            if skip:
                skip = False
            elif _SEPARATORS.match(token):
                found += _simple(number, simple, line)
                simple = []
            elif _REDIRECTION.match(token):
                skip = True
            else:
                simple.append(token)
    return found


def functions(lines):
    return {m[1] for line in lines for m in [re.match(r'\s*(?:function +)?(\w[\w-]*) *\(\)', line)] if m}


def _simple(number, tokens, text):
    variables = {}
    while tokens:
        head = tokens[0]
        if head in _SILENT:
            return []
        if head in _KEYWORDS or head == '$':
            tokens = tokens[1:]
        elif _ASSIGNMENT.match(head):
            name, value = head.split('=', 1)
            variables[name.rstrip('+')] = value
            tokens = tokens[1:]
        elif head in _WRAPPERS:
            takes = _WRAPPERS[head]
            tokens = tokens[1:]
            while tokens and tokens[0].startswith('-'):
                tokens = tokens[2:] if tokens[0] in takes else tokens[1:]
            if head == 'timeout' and tokens:
                tokens = tokens[1:]
        else:
            return [Command(number, head, tokens[1:], text, variables)]
    return []
