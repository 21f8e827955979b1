#!/usr/bin/env python3
"""Holds what the pages say against the repository and the programs: links, anchors, paths, commands,
flags, configuration.

    lint_docs.py [--root REPOSITORY] [--programs FOLDER]   (default: $SPARSEBALANCE_BIN_DIR)

Prints one line a fault; exit code 1 where there is any. What can be executed cheaply is executed by
walkthrough_test.py. Every check is a function that gives faults as (line, text), so that lint_docs_test.py
can plant each fault.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import known  # noqa: E402
import markdown  # noqa: E402
import programs as own_programs  # noqa: E402
import shell_lines  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]

SHELL_LANGUAGES = {'sh', 'bash', 'shell', 'console'}
CODE_LANGUAGES = {'cpp', 'c++', 'proto', 'python', 'go'}
SOURCE_NAME = re.compile(r'[\w.-]+\.(?:h|cc|cu|proto|py|sh|libsonnet|jsonnet|cmake)$')
_FLAG = re.compile(r'(?<![\w-])--[a-zA-Z][\w-]*')
_VARIABLE = re.compile(r'\bSPARSEBALANCE_[A-Z0-9_]*')
_TOML_LINE = re.compile(r'([A-Za-z][\w-]*) *= *("[^"]*"|\'[^\']*\'|\[.*\]|true|false|[-+0-9.eE_]+)\s*(#.*)?$')
_YAML_LINE = re.compile(r'(- )?("?[\w./{}-]+"?:( |$)|- |#|---)')


class Context:
    """What a page is held against."""

    def __init__(self, repository, programs, pages):
        self.repository = repository
        self.programs = programs
        self.pages = pages  # Page by path


def all_pages(repository):
    return {file: markdown.Page(repository.read(file)) for file in sorted(repository.files)
            if file.endswith('.md')}


# --- Links -----------------------------------------------------------------------------------------

def link_faults(path, page, context):
    folder = os.path.dirname(path)
    for line, target in page.links:
        if re.match(r'[a-z][a-z0-9+.-]*:', target):
            continue  # among page.urls
        file, _, anchor = target.partition('#')
        file = urllib.parse.unquote(file)
        full = os.path.normpath(os.path.join(folder, file)) if file else path
        if not file and not anchor:
            yield line, 'a link to nothing'
        elif file.startswith('/'):
            yield line, f'{target}: link by a path from this page, not from the root'
        elif full not in context.repository.files and full not in context.repository.folders:
            yield line, f'{target}: there is no {full}'
        elif anchor and not full.endswith('.md'):
            if not re.fullmatch(r'L\d+(-L\d+)?', anchor):
                yield line, f'{target}: {full} is no page and has no anchors'
        elif anchor and anchor not in context.pages[full].anchors:
            near = [a for a in sorted(context.pages[full].anchors) if anchor.split('-')[0] in a]
            yield line, f'{target}: {full} has no heading "#{anchor}"' + (
                f'; it has {", ".join("#" + a for a in near)}' if near else '')
    for line, url in page.urls:
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
        except ValueError as error:
            yield line, f'{url}: {error}'
            continue
        host = parts.hostname or ''
        if not host or port == 0:
            yield line, f'{url}: no host'
        elif host not in known.HOSTS and not re.search(r'(^|\.)example\.(org|com|net)$', host) and not (
                re.fullmatch(r'[A-Z][A-Z0-9_-]*', parts.netloc.split(':')[0]) or '$' in host
                or re.search(r'\.svc(\.cluster\.local)?$', host)):
            yield line, f'{url}: the host {host} is not among HOSTS in tests/docs/known.py'


# --- Inline code -----------------------------------------------------------------------------------

def path_faults(path, page, context):
    """Inline code that looks like a path of the repository, or like a source's name."""
    repository = context.repository
    folder = os.path.dirname(path)
    tops = {file.split('/')[0] for file in repository.files if '/' in file}
    for inline in page.inline:
        for word in inline.text.split():
            word = word.strip(',;:()\'"').removeprefix('./')
            if not re.fullmatch(r'[\w.@*?-]+(/[\w.@*?-]+)*/?', word):
                continue
            if '/' in word.rstrip('/') and word.split('/')[0] in tops:
                if not repository.exists(word, folder):
                    yield inline.line, f'`{word}`: there is no such file or folder'
            elif SOURCE_NAME.match(word) and '/' not in word and '*' not in word:
                if word not in repository.names and not re.search(r'\.(pb|grpc\.pb)\.(h|cc)$', word):
                    yield inline.line, f'`{word}`: no file of the repository has this name'
            elif re.fullmatch(r'sb_[a-z0-9_]+', word) and word not in repository.targets:
                yield inline.line, f'`{word}`: CMake knows no such target or test'


def flag_faults(page, context):
    """Flags that the text names must be some program's."""
    flags = context.programs.all_flags() | context.repository.script_flags | set(known.FOREIGN_FLAGS)
    for inline in page.inline:
        if inline.text.split()[0] in known.FOREIGN:
            continue
        for flag in _FLAG.findall(inline.text):
            if flag not in flags and not flag.startswith(tuple(known.FOREIGN_FLAG_PREFIXES)):
                yield inline.line, (f'`{flag}`: no program or script of ours knows this flag; one of '
                                    "another's belongs to FOREIGN_FLAGS in tests/docs/known.py")


def variable_faults(page, context):
    """Environment variables, in text and in blocks."""
    names = context.programs.all_variables() | context.repository.variables
    spots = [(i.line, i.text) for i in page.inline]
    spots += [(b.line + n, text) for b in page.blocks for n, text in enumerate(b.lines)]
    for line, text in spots:
        for name in _VARIABLE.findall(text):
            if not any(n.startswith(name) if name.endswith('_') else n == name for n in names):
                yield line, f'{name}: no program or file reads this variable'


def inline_command_faults(path, page, context):
    for inline in page.inline:
        first = inline.text.split()[0]
        rest = inline.text.split()[1:]
        if first == './run' or (first in own_programs.OWN and rest):
            # Options are often named with what follows left out: `sbctl plan --explain`.
            words = inline.text + (' ...' if first in own_programs.OWN else '')
            try:
                found = shell_lines.commands([words], inline.line)
            except shell_lines.ShellError as error:
                yield inline.line, f'`{inline.text}`: {error}'
                continue
            for command in found:
                for fault in command_faults(command, path, set(), context):
                    yield inline.line, fault


# --- Blocks ----------------------------------------------------------------------------------------

def kind_of(path, block, context):
    """shell, flags, toml, json, yaml, code, sketch, output, or None where nothing covers it."""
    if block.fenced and block.language:
        if block.language in SHELL_LANGUAGES:
            return 'shell'
        if block.language in CODE_LANGUAGES:
            return 'code'
        return {'toml': 'toml', 'json': 'json', 'jsonc': 'json', 'yaml': 'yaml', 'yml': 'yaml',
                'text': 'output', 'ini': 'ini', 'promql': 'output'}.get(block.language)
    first = next((line for line in block.lines if line.strip()), '').strip()
    for (page, beginning) in known.OUTPUTS:
        if page == path and first.startswith(beginning):
            return 'output'
    for (page, beginning) in known.SKETCHES:
        if page == path and first.startswith(beginning):
            return 'sketch'
    if block.quoted_from:
        return 'code'
    if first.startswith('--'):
        return 'flags'
    if _all_match(block, _TOML_LINE, r'\[.*\]$|#'):
        return 'toml'
    if first.startswith('$ ') or starts_like_a_command(first, path, context):
        return 'shell'
    if _YAML_LINE.match(first):
        return 'yaml'
    return None


def _all_match(block, pattern, or_else):
    lines = [line.strip() for line in block.lines if line.strip()]
    return all(pattern.match(line) or re.match(or_else, line) for line in lines) and any(
        pattern.match(line) for line in lines)


def starts_like_a_command(line, path, context):
    try:
        found = shell_lines.commands([line.rstrip('\\')])
    except shell_lines.ShellError:
        return False
    if not found:
        return line.startswith('#') or bool(re.match(r'[A-Z_]+=', line)) or line.split(' ')[0] in (
            'for', 'if', 'while')
    program = found[0].program
    return (program in own_programs.OWN or program in known.FOREIGN or program in known.SHELL
            or program in context.repository.targets or program == 'ctest' or program.startswith('./')
            or '/' in program and context.repository.exists(program, os.path.dirname(path))
            or program.startswith('build/'))


def block_faults(path, page, context):
    shell_functions = set()
    for block in page.blocks:
        kind = kind_of(path, block, context)
        if kind is None:
            yield block.line, (
                'nothing covers this block: fence output as ```text; quote code behind a line '
                '"<!-- from FILE -->"; a program that is not known here belongs to FOREIGN in '
                'tests/docs/known.py, with its reason, or into walkthrough_test.py')
        elif kind == 'shell':
            shell_functions |= shell_lines.functions(block.lines)
            yield from shell_faults(path, block, shell_functions, context)
        elif kind == 'flags':
            yield from flag_block_faults(block, context)
        elif kind == 'toml':
            yield from toml_faults(block, context)
        elif kind == 'json':
            yield from json_faults(block, context)
        elif kind == 'yaml':
            yield from yaml_faults(block, context)
        elif kind == 'code':
            yield from quote_faults(block, context)
        elif kind == 'sketch':
            yield from sketch_faults(block, context)
        elif kind == 'output' and block.fenced:
            for number, line in enumerate(block.lines, block.line):
                if line.split(' ')[0] in own_programs.OWN + ('./run',) and ':' not in line.split(' ')[0]:
                    yield number, f'"{line}" looks like a command: fence it as ```sh, or as ```console with "$ "'


def shell_faults(path, block, shell_functions, context):
    try:
        found = shell_lines.commands(block.lines, block.line, block.language == 'console')
    except shell_lines.ShellError as error:
        yield error.line, f'cannot be read as shell: {error}'
        return
    if block.language == 'console' and not found:
        yield block.line, 'a console block without a command: commands begin with "$ "'
    for command in found:
        for fault in command_faults(command, path, shell_functions, context):
            yield command.line, fault


def command_faults(command, path, shell_functions, context):
    """Faults as text."""
    program, arguments = command.program, command.arguments
    folder = os.path.dirname(path)
    repository = context.repository
    name = os.path.basename(program)
    if program in shell_functions or program == '...':
        return
    if program == './run':
        yield from run_faults(arguments, context)
    elif name in own_programs.OWN and (program == name or program.startswith(('build/', '/usr/bin/', '../build/'))):
        yield from context.programs.check(name, arguments)
    elif program == 'ctest':
        yield from ctest_faults(arguments, context)
    elif re.match(r'(\.\./)*build/', program) or program in repository.targets:
        if name not in repository.targets:
            yield f'{program}: CMake makes no program {name}'
    elif '/' in program and not program.startswith('/'):
        yield from script_faults(program, arguments, folder, context)
    elif program in known.FOREIGN or program in known.SHELL:
        yield from foreign_faults(command, folder, context)
    else:
        yield (f'the program "{program}" is not known: execute it in tests/docs/walkthrough_test.py or '
               'declare it in FOREIGN in tests/docs/known.py, with its reason')


def run_faults(arguments, context):
    verbs = context.repository.run_verbs
    if not arguments:
        return
    verb, rest = arguments[0], arguments[1:]
    if verb in ('-h', '--help', 'COMMAND', '...'):
        return
    if verb not in verbs:
        yield f'`./run` has no command "{verb}"; it has {", ".join(sorted(verbs))}'
        return
    # What the command calls knows its flags: a script, or a program of tests and benchmarks.
    for argument in rest:
        flag = argument.split('=')[0]
        if flag.startswith('--') and flag not in context.repository.script_flags and not flag.startswith(
                tuple(known.FOREIGN_FLAG_PREFIXES)):
            yield f'`./run {verb}`: no script knows {flag}'
    choices = {'build': {'release', 'debug', 'asan', 'tsan'},
               'verify': {'release', 'asan', 'tsan', 'long'}}.get(verb)
    for argument in rest:
        if choices and not argument.startswith('-') and argument not in choices:
            yield f'`./run {verb}` knows {", ".join(sorted(choices))}, not {argument}'
    if verb == 'test':
        yield from ctest_faults(rest, context)


def ctest_faults(arguments, context):
    for at, argument in enumerate(arguments):
        pattern = None
        if argument in ('-R', '--tests-regex') and at + 1 < len(arguments):
            pattern = arguments[at + 1]
        elif re.match(r'-R.', argument):
            pattern = argument[2:]
        if pattern is None or own_programs.is_placeholder(pattern):
            continue
        tests = [t for t in context.repository.targets if re.search(r'test|dashboards|docs', t)]
        try:
            matched = [t for t in tests if re.search(pattern, t)]
        except re.error as error:
            yield f'ctest -R {pattern}: {error}'
            continue
        if not matched:
            yield f'ctest -R {pattern}: no test has such a name'


def script_faults(program, arguments, folder, context):
    repository = context.repository
    found = None
    for start in dict.fromkeys((folder, '.')):
        candidate = os.path.normpath(os.path.join(start, program))
        if candidate in repository.files:
            found = candidate
            break
    if found is None:
        yield f'{program}: there is no such script'
        return
    if not os.access(repository.root / found, os.X_OK):
        yield f'{found} is not executable'
    text = repository.read(found)
    for argument in arguments:
        flag = argument.split('=')[0]
        if flag.startswith('--') and not re.search(r'(?<![\w-])' + re.escape(flag) + r'(?![\w-])', text):
            yield f'{found} does not know {flag}'


def foreign_faults(command, folder, context):
    """Of files of ours that another's program is given."""
    repository = context.repository
    tops = {file.split('/')[0] for file in repository.files if '/' in file} | {'prometheus', 'provisioning'}
    for argument in command.arguments:
        for word in re.split(r'[=,:]', argument):
            word = word.removeprefix('$PWD/').removeprefix('./').removeprefix('@')
            if word.split('/')[0] in tops and '/' in word.rstrip('/') and re.fullmatch(r'[\w./*-]+', word):
                if not repository.exists(word, folder):
                    yield f'{command.program}: there is no {word}'
        if command.program == 'python3' and argument.endswith('.py'):
            if not repository.exists(argument, folder):
                yield f'python3: there is no {argument}'
    units = {name for name in repository.names if name.endswith('.service')}
    if command.program in ('systemctl', 'journalctl') and units:
        for argument in command.arguments:
            unit = re.sub(r'@[^.]*', '@', argument)
            unit = unit if unit.endswith('.service') else unit + '.service'
            if argument.startswith('sparsebalance-') and unit not in units:
                yield f'{command.program}: there is no {unit}; there are {", ".join(sorted(units))}'


def flag_block_faults(block, context):
    flags = context.programs.all_flags()
    for number, line in enumerate(block.lines, block.line):
        for flag in _FLAG.findall(line):
            if flag not in flags:
                yield number, f'no program of ours knows {flag}'


def toml_faults(block, context):
    keys = {}
    for number, line in enumerate(block.lines, block.line):
        match = _TOML_LINE.match(line.strip())
        if match:
            keys[match[1]] = number
        elif line.strip() and not line.strip().startswith('#'):
            yield number, f'"{line.strip()}" is not NAME = VALUE, which is all that our programs read'
    best = None
    for program in ('sparsebalance-worker', 'sparsebalance-coordinator'):
        flags = context.programs.help(program).flags
        strangers = [key for key in keys if '--' + key not in flags]
        if best is None or len(strangers) < len(best[1]):
            best = (program, strangers)
    program, strangers = best
    for key in strangers:
        yield keys[key], f'`{program}` has no flag --{key}'
    if program == 'sparsebalance-coordinator' and not strangers:
        fault = check_coordinator_file(block.text, context)
        if fault:
            yield block.line, fault


def json_faults(block, context):
    plain = re.sub(r'^\s*//.*$', '', block.text, flags=re.M)
    try:
        value = json.loads(plain)
    except ValueError as error:
        yield block.line, f'is no JSON: {error}'
        return
    if isinstance(value, dict) and 'rules' in value:
        fault = check_authorization(block.text, context)
        if fault:
            yield block.line, fault


def yaml_faults(block, context):
    flags = context.programs.all_flags() | context.repository.script_flags | set(known.FOREIGN_FLAGS)
    for number, line in enumerate(block.lines, block.line):
        if '\t' in line:
            yield number, 'YAML has no tabs'
        # Arguments of our programs, in manifests.
        for flag in re.findall(r'^\s*- ["\']?(--[a-z][\w-]*)', line):
            if flag not in flags:
                yield number, f'no program of ours knows {flag}'


def quote_faults(block, context):
    if not block.quoted_from:
        yield block.line, 'code that quotes nothing: say "<!-- from FILE -->" on the line before it'
        return
    if block.quoted_from not in context.repository.files:
        yield block.line, f'quotes {block.quoted_from}, which does not exist'
    elif block.text.strip('\n') + '\n' not in context.repository.read(block.quoted_from):
        yield block.line, f'{block.quoted_from} does not say this; quote its lines as they are'


def sketch_faults(block, context):
    for number, line in enumerate(block.lines, block.line):
        include = re.match(r'\s*#include "(.*)"', line)
        if include:
            if include[1] not in context.repository.files:
                yield number, f'there is no {include[1]}'
            continue
        for name in re.findall(r'\b[A-Z]\w{3,}\b', re.sub(r'"[^"]*"', '', line)):
            if name not in known.SKETCH_NAMES and not re.search(
                    r'\b' + name + r'\b', context.repository.source_text):
                yield number, f'no source has the name {name}'


# --- The coordinator's own checks ------------------------------------------------------------------

def make_certificates(folder):
    """A CA and a certificate for both sides: ca.crt, own.crt, own.key. None where openssl is missing."""
    if not shutil.which('openssl'):
        return None
    def openssl(*arguments):
        subprocess.run(['openssl', *arguments], cwd=folder, check=True, capture_output=True, timeout=60)
    key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes']
    openssl('req', '-x509', *key, '-days', '2', '-subj', '/CN=CA', '-keyout', 'ca.key', '-out', 'ca.crt')
    openssl('req', *key, '-subj', '/CN=own', '-keyout', 'own.key', '-out', 'own.csr')
    (pathlib.Path(folder) / 'extensions').write_text('subjectAltName=DNS:localhost,IP:127.0.0.1\n')
    openssl('x509', '-req', '-in', 'own.csr', '-CA', 'ca.crt', '-CAkey', 'ca.key', '-CAcreateserial',
            '-days', '1', '-out', 'own.crt', '-extfile', 'extensions')
    return folder


def check_config(arguments, folder, context):
    """What `sparsebalance-coordinator --check-config` objects to; empty where it does not."""
    run = subprocess.run([context.programs.path('sparsebalance-coordinator'), '--check-config', *arguments],
                         cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    if run.returncode == 0:
        return ''
    return f'--check-config says: {(run.stderr + run.stdout).strip()}'


def check_coordinator_file(text, context):
    """Files that the configuration names are put there first."""
    with tempfile.TemporaryDirectory() as folder:
        files = {'tls-cert': 'own.crt', 'tls-key': 'own.key', 'tls-client-ca': 'ca.crt',
                 'etcd-cert': 'own.crt', 'etcd-key': 'own.key', 'etcd-ca': 'ca.crt'}
        if re.search(r'^\s*(tls|etcd)-', text, re.M) and make_certificates(folder) is None:
            return 'openssl is needed to check this'
        (pathlib.Path(folder) / 'authorization.json').write_text(
            '{"rules": [{"san": "dns:example.org", "role": "reader", "namespaces": ["*"]}]}')
        files['authorization'] = 'authorization.json'
        for key, file in files.items():
            text = re.sub(rf'^(\s*{key} *= *).*$', rf'\1"{file}"', text, flags=re.M)
        text = re.sub(r'^(\s*store *= *)"(?!etcd:|memory).*$', r'\1"store.db"', text, flags=re.M)
        (pathlib.Path(folder) / 'file.toml').write_text(text)
        return check_config(['--config', 'file.toml'], folder, context)


def check_authorization(text, context):
    with tempfile.TemporaryDirectory() as folder:
        if make_certificates(folder) is None:
            return 'openssl is needed to check this'
        (pathlib.Path(folder) / 'authorization.json').write_text(text)
        return check_config(['--store', 'memory', '--tls-cert', 'own.crt', '--tls-key', 'own.key',
                             '--tls-client-ca', 'ca.crt', '--authorization', 'authorization.json'],
                            folder, context)


# --- All of it -------------------------------------------------------------------------------------

def page_faults(path, page, context):
    yield from link_faults(path, page, context)
    yield from path_faults(path, page, context)
    yield from flag_faults(page, context)
    yield from variable_faults(page, context)
    yield from inline_command_faults(path, page, context)
    yield from block_faults(path, page, context)


def unused_declarations(context):
    """Declarations that cover nothing any more hide the next fault."""
    for name in ('OUTPUTS', 'SKETCHES'):
        for page, beginning in getattr(known, name):
            blocks = context.pages[page].blocks if page in context.pages else []
            if not any(block.text.strip().startswith(beginning) for block in blocks):
                yield f'tests/docs/known.py: {name} declares "{beginning}" of {page}, which is gone'


def make_context(root, folder):
    repository = own_programs.Repository(root)
    return Context(repository, own_programs.Programs(folder), all_pages(repository))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--root', default=ROOT)
    parser.add_argument('--programs', default=os.environ.get('SPARSEBALANCE_BIN_DIR', 'build/release/bin'))
    arguments = parser.parse_args()
    try:
        context = make_context(arguments.root, arguments.programs)
    except FileNotFoundError as error:
        print(f'lint_docs: {error}', file=sys.stderr)
        return 2
    count = 0
    for path, page in context.pages.items():
        for line, fault in sorted(set(page_faults(path, page, context))):
            print(f'{path}:{line}: {fault}')
            count += 1
    for fault in unused_declarations(context):
        print(fault)
        count += 1
    blocks = sum(len(page.blocks) for page in context.pages.values())
    links = sum(len(page.links) for page in context.pages.values())
    print(f'{len(context.pages)} pages, {links} links, {blocks} blocks: {count} faults')
    return 1 if count else 0


if __name__ == '__main__':
    sys.exit(main())
