"""Reads a Dockerfile and carries out its stages in Debian roots, where there is no container engine.

    stages = dockerfile.parse(text)
    image = dockerfile.Builder(stages, base, context, roots).build('coordinator')
    image.root.run(image.entrypoint + ['--version'], user=image.user)

It knows what deploy/docker/Dockerfile uses, and refuses what it does not know, so that no line is passed
over: ARG, FROM, RUN (with --mount=type=bind,from=), COPY from the context, WORKDIR, USER, ENV, and what
only says something about an image.
"""

import dataclasses
import json
import re
import shlex
import shutil

SAYS_ONLY = {'EXPOSE', 'VOLUME', 'STOPSIGNAL', 'LABEL'}
KNOWN = SAYS_ONLY | {'ARG', 'FROM', 'RUN', 'COPY', 'ADD', 'WORKDIR', 'USER', 'ENV', 'ENTRYPOINT', 'CMD'}


class DockerfileError(ValueError):
    pass


@dataclasses.dataclass
class Stage:
    name: str
    base: str
    instructions: list  # (line number, instruction, text)


def parse(text):
    """The stages by name, in order; ARGs before the first FROM are put in."""
    arguments = {}
    stages = {}
    current = None
    for number, instruction, rest in _instructions(text):
        if instruction not in KNOWN:
            raise DockerfileError(f'line {number}: {instruction} is not known')
        rest = _substitute(rest, arguments) if instruction == 'FROM' else rest
        if instruction == 'ARG' and current is None:
            name, _, value = rest.partition('=')
            arguments[name] = value
        elif instruction == 'FROM':
            found = re.fullmatch(r'(\S+) AS (\S+)', rest)
            if found is None:
                raise DockerfileError(f'line {number}: a stage has no name: FROM {rest}')
            current = Stage(found[2], found[1], [])
            stages[current.name] = current
        elif current is None:
            raise DockerfileError(f'line {number}: {instruction} before the first FROM')
        else:
            current.instructions.append((number, instruction, rest))
    return stages


def _instructions(text):
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith('#'):
            continue
        while line.endswith('\\'):
            _, following = next(lines)
            if following.lstrip().startswith('#'):
                following = '\\'
            line = line[:-1].rstrip() + ' ' + following.strip()
        instruction, _, rest = line.strip().partition(' ')
        yield number, instruction, rest.strip()


def _substitute(text, values):
    return re.sub(r'\$\{(\w+)\}', lambda m: values.get(m[1], m[0]), text)


@dataclasses.dataclass
class Image:
    root: object
    user: str = 'root'
    folder: str = '/'
    environment: dict = dataclasses.field(default_factory=dict)
    entrypoint: list = dataclasses.field(default_factory=list)


class Builder:
    """`given` are images that are there already, by the name of their stage: those are not built."""

    def __init__(self, stages, base, context, roots, given=None):
        self.stages = stages
        self.base = base
        self.context = context
        self.roots = roots
        self.images = dict(given or {})

    def build(self, name):
        if name not in self.images:
            self.images[name] = self._build(self.stages[name])
        return self.images[name]

    def _build(self, stage):
        if stage.base in self.stages:
            parent = self.build(stage.base)
            image = dataclasses.replace(parent, root=parent.root.copy(self.roots / stage.name),
                                        environment=dict(parent.environment))
        else:
            if not stage.base.startswith('debian:bookworm'):
                raise DockerfileError(f'stage {stage.name}: {stage.base} is no Debian 12')
            image = Image(self.base.copy(self.roots / stage.name))
        for number, instruction, rest in stage.instructions:
            try:
                self._carry_out(image, instruction, rest)
            except (RuntimeError, OSError) as error:
                raise DockerfileError(f'line {number}: {instruction} {rest}\n{error}') from error
        return image

    def _carry_out(self, image, instruction, rest):
        rest = _substitute(rest, image.environment)
        if instruction in SAYS_ONLY:
            return
        if instruction == 'RUN':
            binds = []
            while rest.startswith('--mount='):
                mount, rest = rest.split(None, 1)
                binds.append(self._mount(mount.removeprefix('--mount=')))
            image.root.run(['/bin/sh', '-c', rest], cwd=image.folder, binds=binds,
                           environment=image.environment)
        elif instruction == 'COPY':
            self._copy(image, rest)
        elif instruction == 'WORKDIR':
            image.folder = rest
            (image.root.path / rest.lstrip('/')).mkdir(parents=True, exist_ok=True)
        elif instruction == 'USER':
            image.user = rest
        elif instruction == 'ENV':
            image.environment.update(word.split('=', 1) for word in shlex.split(rest))
        elif instruction in ('ENTRYPOINT', 'CMD'):
            image.entrypoint = json.loads(rest) if instruction == 'ENTRYPOINT' else image.entrypoint
        else:
            raise DockerfileError(f'{instruction} {rest}: only a container engine can do that')

    def _mount(self, text):
        options = dict(option.split('=', 1) for option in text.split(','))
        if options.get('type') != 'bind' or set(options) != {'type', 'from', 'source', 'target'}:
            raise DockerfileError(f'--mount={text}: only a bind from another stage is known')
        source = self.build(options['from']).root.path / options['source'].lstrip('/')
        return source, options['target'], False

    def _copy(self, image, rest):
        if rest.startswith('--'):
            raise DockerfileError(f'COPY {rest}: options are not known')
        source, target = rest.split()
        into = image.root.path / (image.folder if target == './' else target).lstrip('/')
        for path in self.context(source):
            to = into / path[1]
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path[0], to)
