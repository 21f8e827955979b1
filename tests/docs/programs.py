"""What our programs and scripts understand, read off their own --help and texts."""

import dataclasses
import functools
import os
import pathlib
import re
import subprocess

OWN = ('sparsebalance-coordinator', 'sparsebalance-worker', 'sparsebalance-data', 'sbctl')
_FLAG = re.compile(r'^ {2,}((?:-\w,)?--[\w-]+(?:\{[^}]*\})?(?:,--[\w-]+(?:\{[^}]*\})?)*)(.*)$')
_SECTION = re.compile(r'^(\S.*):$')


@dataclasses.dataclass
class Flag:
    takes_value: bool
    choices: frozenset  # empty: any value


@dataclasses.dataclass
class Help:
    flags: dict
    verbs: list
    required: int      # positional arguments
    positionals: int
    variables: set


def parse_help(text):
    """Of CLI11's output."""
    flags = {}
    verbs = []
    required = positionals = 0
    section = ''
    for line in text.split('\n'):
        head = _SECTION.match(line)
        if head:
            section = head[1]
            continue
        if section.startswith('Subcommands') or section.startswith('Verbs'):
            verb = re.match(r'^ {2}([\w-]+) ', line)
            if verb:
                verbs.append(verb[1])
            continue
        if section == 'Positionals':
            name = re.match(r'^ {2}([\w-]+) [A-Z]', line)
            if name:
                positionals += 1
                required += 'REQUIRED' in line
            continue
        flag = _FLAG.match(line)
        if not flag:
            continue
        names = [re.sub(r'\{.*?\}', '', name) for name in flag[1].split(',')]
        rest = flag[2]
        value = re.match(r' ([A-Z]{2,}\S*)', rest)  # its type, as TEXT:{a,b}=a
        choices = re.search(r':\{([^}]*)\}', value[1]) if value else None
        for name in names:
            # --config says no type and takes a file.
            flags[name] = Flag(bool(value) or name == '--config',
                               frozenset(choices[1].split(',')) if choices else frozenset())
    variables = set(re.findall(r'\(Env:(\w+)\)', text))
    return Help(flags, verbs, required, positionals, variables)


class Programs:

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        missing = [name for name in OWN if not (self.folder / name).exists()]
        if missing:
            raise FileNotFoundError(f'{self.folder} lacks {", ".join(missing)}: build them first')

    def path(self, program):
        return str(self.folder / program)

    @functools.lru_cache(maxsize=None)
    def help(self, program, verb=''):
        argv = [self.path(program)] + ([verb] if verb else []) + ['--help']
        run = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        if run.returncode != 0:
            raise RuntimeError(f'{" ".join(argv)} ended with {run.returncode}: {run.stderr}')
        return parse_help(run.stdout)

    @functools.lru_cache(maxsize=None)
    def all_flags(self):
        flags = set()
        for program in OWN:
            own = self.help(program)
            flags |= set(own.flags)
            for verb in own.verbs:
                flags |= set(self.help(program, verb).flags)
        return flags

    @functools.lru_cache(maxsize=None)
    def all_variables(self):
        return set().union(*(self.help(program).variables for program in OWN))

    def check(self, program, arguments):
        """Faults of a command line, as text."""
        own = self.help(program)
        flags = dict(own.flags)
        required, positionals = own.required, own.positionals
        verb = ''
        positional = 0
        elided = False
        at = 0
        while at < len(arguments):
            argument = arguments[at]
            at += 1
            if argument == '...':
                elided = True
            elif argument.startswith('--') or re.match(r'-\w$', argument):
                name, _, value = argument.partition('=')
                flag = flags.get(name)
                if flag is None:
                    yield (f'`{program}{" " + verb if verb else ""}` has no {name}')
                    continue
                if flag.takes_value and not value:
                    if at == len(arguments):
                        yield f'{name} wants a value'
                        continue
                    value = arguments[at]
                    at += 1
                if flag.choices and value and not is_placeholder(value):
                    for one in value.split(','):
                        if one not in flag.choices:
                            yield f'{name} is one of {", ".join(sorted(flag.choices))}, not {one}'
            elif own.verbs and not verb and not (program == 'sparsebalance-worker' and positional):
                if argument not in own.verbs:
                    yield (f'`{program}` has no verb "{argument}"; it has {", ".join(own.verbs)}')
                    return
                verb = argument
                further = self.help(program, verb)
                flags.update(further.flags)
                required, positionals = further.required, further.positionals
            else:
                positional += 1
        if own.verbs and not verb and not elided and own.required == 0 and program != 'sparsebalance-worker':
            if not any(a in ('--help', '--version') for a in arguments):
                yield f'`{program}` is called without a verb'
            return
        if elided or any(a in ('--help', '--version') for a in arguments):
            return
        if positional > positionals:
            yield f'`{program} {verb}`: {positional} arguments where it takes {positionals}'
        if positional < required:
            yield f'`{program} {verb}`: {positional} arguments where it wants {required}'


def is_placeholder(word):
    return bool(re.fullmatch(r'[A-Z][A-Z0-9_:,./-]*|\.\.\.|.*\$.*', word))


class Repository:
    """Its files, scripts and the names of its tests."""

    SCRIPT = ('.sh', '.py')

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.files = set()
        for folder, folders, names in os.walk(self.root):
            relative = pathlib.Path(folder).relative_to(self.root)
            folders[:] = [f for f in folders if f not in ('.git', 'build', 'node_modules', '__pycache__')]
            self.files |= {str(relative / name) for name in names if name != '.git'}
        self.folders = {str(parent) for file in self.files for parent in pathlib.Path(file).parents}
        self.names = {pathlib.Path(file).name for file in self.files}

    def read(self, file):
        return (self.root / file).read_text(encoding='utf-8', errors='replace')

    def exists(self, path, base='.'):
        """Of a path as a page in folder `base` writes it."""
        for start in dict.fromkeys((base, '.')):
            plain = os.path.normpath(os.path.join(start, path))
            if plain in self.files or plain in self.folders:
                return True
            if any(char in path for char in '*?[') and list(self.root.glob(plain)):
                return True
        return False

    @functools.cached_property
    def run_verbs(self):
        """Of ./run: its commands, with the text of each."""
        return dict(re.findall(r'^cmd_(\w+)\(\) \{\n(.*?)^\}', self.read('run'), re.M | re.S))

    @functools.cached_property
    def script_flags(self):
        """Flags that scripts know, and the programs of tests and benchmarks, which say them in quotes."""
        flags = set()
        for file in self.files:
            if file.startswith('tests/docs/'):
                continue
            name = pathlib.Path(file).name
            if file.endswith(self.SCRIPT) or '.' not in name and self.read(file).startswith('#!'):
                flags |= set(re.findall(r'(?<![\w-])--[a-z][\w-]*', self.read(file)))
            elif file.endswith('.cc'):
                flags |= set(re.findall(r'"!?(?:-\w,)?(--[a-z][\w-]*)[=",]', self.read(file)))
        return flags

    @functools.cached_property
    def targets(self):
        """Names of programs, tests and benchmarks in CMake."""
        names = set()
        for file in self.files:
            if not file.endswith('CMakeLists.txt'):
                continue
            text = self.read(file)
            text = re.sub(r'#.*', '', text)
            lists = {m[1]: m[2].split() for m in re.finditer(r'foreach\((\w+) (?:IN ITEMS )?([^)]*)\)', text)}
            for m in re.finditer(r'\b(?:sb_\w*(?:test|program|benchmark|library)|add_executable|add_test|add_library|\w+_test)'
                                 r'\s*\(\s*(?:NAME\s+)?([\w${}-]+)', text):
                variable = re.search(r'\$\{(\w+)\}', m[1])
                if not variable:
                    names.add(m[1])
                for value in lists.get(variable[1], []) if variable else []:
                    names.add(m[1].replace(variable[0], value))
        return names

    @functools.cached_property
    def variables(self):
        """Environment variables and CMake options of ours that some file reads."""
        names = set()
        for file in self.files:
            if not file.endswith('.md') and not file.startswith('tests/docs/'):
                names |= set(re.findall(r'\bSPARSEBALANCE_[A-Z0-9_]+\b', self.read(file)))
        return names

    @functools.cached_property
    def source_text(self):
        return '\n'.join(self.read(file) for file in sorted(self.files)
                         if file.endswith(('.h', '.cc', '.cu', '.proto')))
