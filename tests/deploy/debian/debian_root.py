"""Debian systems in folders, to install packages into and to run programs in.

    base, reason = debian_root.base('build/roots')  # debootstrap, kept between runs
    root = base.copy('build/roots/coordinator')
    root.run(['apt-get', 'install', '-y', 'hello'])
    root.run(['hello'], user='nobody', read_only=True)

systemd-nspawn starts the programs. It needs root and namespaces, which not every machine lends: then
there is no base but a reason.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import time

SUITE = 'bookworm'
MIRROR = 'http://deb.debian.org/debian'
ENVIRONMENT = {'DEBIAN_FRONTEND': 'noninteractive', 'LANG': 'C.UTF-8'}


def _missing():
    if os.geteuid() != 0:
        return 'making a Debian root needs root'
    for program in ('debootstrap', 'systemd-nspawn'):
        if shutil.which(program) is None:
            return f'{program} is not installed; ./run setup installs it'
    return None


def _checked(command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, **options)
    # systemd-nspawn says so at its end where /run is no tmpfs.
    done.stdout = ''.join(line for line in done.stdout.splitlines(keepends=True)
                          if not line.startswith('Attempted to remove disk file system'))
    if done.returncode != 0:
        raise RuntimeError(f'{" ".join(map(str, command))}\nended with {done.returncode}:\n'
                           f'{done.stdout[-4000:]}')
    return done.stdout


def base(folder):
    """The smallest Debian that apt works in, or None and why there is none, in one line."""
    reason = _missing()
    if reason is not None:
        return None, reason
    root = pathlib.Path(folder).resolve() / 'base'
    whole = root.with_name('base.whole')
    if not whole.exists():
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        try:
            _checked(['debootstrap', '--variant=minbase', SUITE, str(root), MIRROR])
        except RuntimeError as error:
            return None, f'debootstrap from {MIRROR} failed: {str(error).splitlines()[-1]}'
        whole.touch()
    try:
        Root(root).run(['true'])
    except RuntimeError as error:
        return None, f'systemd-nspawn cannot start programs here: {str(error).splitlines()[-1]}'
    return Root(root), None


class Root:

    def __init__(self, path):
        self.path = pathlib.Path(path).resolve()

    def copy(self, path):
        target = pathlib.Path(path).resolve()
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        _checked(['cp', '-a', '--reflink=auto', str(self.path), str(target)])
        return Root(target)

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)

    def command(self, arguments, user=None, read_only=False, binds=(), cwd=None, environment=()):
        """The command line that runs `arguments` inside; `binds` are (outside, inside, writable)."""
        nspawn = ['systemd-nspawn', '--quiet', '--directory', str(self.path), '--register=no',
                  '--keep-unit', '--as-pid2', '--console=pipe', '--resolv-conf=copy-host',
                  '--timezone=off', '--link-journal=no']
        if read_only:
            nspawn += ['--read-only', '--tmpfs=/tmp:mode=1777']
            # A root that is mounted read-only takes no copy.
            nspawn.remove('--resolv-conf=copy-host')
            nspawn.append('--resolv-conf=off')
        if user is not None:
            nspawn.append(f'--user={user}')
        if cwd is not None:
            nspawn.append(f'--chdir={cwd}')
        for outside, inside, writable in binds:
            # As container engines do: a root that is read-only gets no mount point later.
            point = self.path / str(inside).lstrip('/')
            if not point.exists():
                (point if pathlib.Path(outside).is_dir() else point.parent).mkdir(parents=True, exist_ok=True)
                if not pathlib.Path(outside).is_dir():
                    point.touch()
            nspawn.append(f'--bind{"" if writable else "-ro"}={outside}:{inside}')
        for name, value in {**ENVIRONMENT, **dict(environment)}.items():
            nspawn.append(f'--setenv={name}={value}')
        return nspawn + ['--'] + [str(argument) for argument in arguments]

    def run(self, arguments, **options):
        """Runs to its end; returns what it printed, and raises with it where it fails."""
        return _checked(self.command(arguments, **options), stdin=subprocess.DEVNULL)

    def files(self):
        """Everything inside, as absolute paths of the root."""
        found = set()
        for folder, folders, files in os.walk(self.path):
            inside = '/' + os.path.relpath(folder, self.path)
            for name in folders + files:
                found.add(os.path.normpath(os.path.join(inside, name)))
        return found

    @contextlib.contextmanager
    def booted(self):
        """systemd as process 1, without a network but loopback. Yields a function that runs a command
        inside and returns (exit status, output)."""
        log = self.path.with_suffix('.boot.log')
        with open(log, 'wb') as out:
            container = subprocess.Popen(
                ['systemd-nspawn', '--quiet', '--directory', str(self.path), '--boot', '--register=no',
                 '--keep-unit', '--private-network', '--console=pipe', '--link-journal=no'],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        try:
            leader = self._leader(container, log)
            def inside(*arguments):
                done = subprocess.run(
                    ['nsenter', '--target', str(leader), '--mount', '--uts', '--ipc', '--net', '--pid',
                     '--root', '--wd', '--', 'env', '-i', 'PATH=/usr/sbin:/usr/bin:/sbin:/bin',
                     *(f'{name}={value}' for name, value in ENVIRONMENT.items()), *arguments],
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    text=True, check=False)
                return done.returncode, done.stdout
            self._await_boot(inside, log)
            yield inside
        finally:
            # SIGTERM asks systemd in there for an orderly end.
            container.terminate()
            try:
                container.wait(timeout=60)
            except subprocess.TimeoutExpired:
                container.kill()
                container.wait()

    @staticmethod
    def _leader(container, log):
        """The process that is number 1 inside: the only child of systemd-nspawn's."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if container.poll() is not None:
                raise RuntimeError(f'systemd-nspawn ended: {pathlib.Path(log).read_text()[-2000:]}')
            children = pathlib.Path(f'/proc/{container.pid}/task/{container.pid}/children')
            found = children.read_text().split()
            if found:
                return int(found[0])
            time.sleep(0.05)
        raise RuntimeError('systemd-nspawn started nothing within a minute')

    @staticmethod
    def _await_boot(inside, log):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            _, state = inside('systemctl', 'is-system-running')
            if state.strip() in ('running', 'degraded'):
                return
            time.sleep(0.2)
        raise RuntimeError(f'systemd did not come up: {state}\n{pathlib.Path(log).read_text()[-2000:]}')
