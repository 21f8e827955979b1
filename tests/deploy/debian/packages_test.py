"""The Debian packages of ./run package, in Debian systems of their own that run systemd.

    packages_test.py build/package/packages build/roots
"""

import pathlib
import re
import shutil
import subprocess
import sys
import time
import unittest

import debian_root

NAMES = ['sparsebalance-coordinator', 'sparsebalance-worker', 'sparsebalance-tools']
COORDINATOR_TOML = '/etc/sparsebalance/coordinator.toml'

JOB = '''
job = "{name}"
coordinator = "127.0.0.1:7070"
dataset = "/var/lib/sparsebalance/data/recall"
data-parallel = 1
steps = {steps}
global-batch-size = 4
max-tokens-per-micro-batch = 512
block-tokens = 16
base-budget = 4
hidden-size = 64
layers = 2
heads = 2
kv-heads = 2
intermediate-size = 128
checkpoint-dir = "checkpoints"
'''

packages = []   # paths of the .deb files
prepared = None  # a root with systemd and all that the packages depend on
source = pathlib.Path(__file__).resolve().parents[3]


def field(deb, name):
    return subprocess.run(['dpkg-deb', '--field', str(deb), name], check=True, text=True,
                          stdout=subprocess.PIPE).stdout.strip()


def prepare(base, roots):
    root = base.copy(roots / 'prepared')
    root.run(['apt-get', 'update', '-q'])
    root.run(['apt-get', 'install', '-y', '-q', '--no-install-recommends', 'systemd', 'systemd-sysv'])
    for deb in packages:
        ours = re.sub(r'\s*sparsebalance-[a-z-]+[^,]*,?', '', field(deb, 'Depends'))
        root.run(['apt-get', 'satisfy', '-y', '-q', '--no-install-recommends', ours])
    return root


class InstalledSystem(unittest.TestCase):
    """A copy of the prepared system; installed() boots it and installs the packages."""

    def setUp(self):
        self.root = prepared.copy(prepared.path.with_name(self.id().rsplit('.', 1)[-1]))
        self.addCleanup(self.root.remove)
        for deb in packages:
            shutil.copy(deb, self.root.path / 'root')
        boot = self.root.booted()
        self.inside = boot.__enter__()
        self.addCleanup(boot.__exit__, None, None, None)

    def must(self, *arguments):
        code, output = self.inside(*arguments)
        self.assertEqual(code, 0, f'{" ".join(arguments)}:\n{output}\n{self.journal()}')
        return output

    def journal(self):
        return self.inside('journalctl', '--no-pager', '--lines=30', '--unit=sparsebalance-*')[1]

    def install(self, *names):
        self.must('dpkg', '--install', *(f'/root/{deb.name}' for deb in packages
                                         if not names or field(deb, 'Package') in names))

    def await_line(self, wanted, *arguments):
        """Runs a command until its output holds `wanted`."""
        deadline = time.monotonic() + 60
        output = ''
        while time.monotonic() < deadline:
            _, output = self.inside(*arguments)
            if wanted in output:
                return output
            time.sleep(0.1)
        self.fail(f'{" ".join(arguments)} did not come to say "{wanted}":\n{output}\n{self.journal()}')

    def write(self, path, text):
        (self.root.path / path.lstrip('/')).write_text(text)


class PackagesTest(InstalledSystem):

    def test_the_coordinator_serves_as_soon_as_it_is_installed(self):
        self.install()
        self.assertEqual(self.must('systemctl', 'is-active', 'sparsebalance-coordinator').strip(),
                         'active')
        self.assertEqual(self.must('systemctl', 'is-enabled', 'sparsebalance-coordinator').strip(),
                         'enabled')
        self.await_line('no jobs', 'sbctl', 'jobs')
        process = self.must('systemctl', 'show', '--property=MainPID', '--value',
                            'sparsebalance-coordinator').strip()
        self.assertEqual(self.must('stat', '--format=%U', f'/proc/{process}').strip(),
                         'sparsebalance')
        self.assertEqual(self.must('systemctl', '--failed', '--no-legend', '--plain').strip(), '')

    def test_the_units_hold_nothing_that_systemd_does_not_know(self):
        self.install()
        self.write('/etc/sparsebalance/workers/a.toml', JOB.format(name='a', steps=1))
        output = self.must('systemd-analyze', 'verify', 'sparsebalance-coordinator.service',
                           'sparsebalance-worker@a.service')
        self.assertEqual(output.strip(), '')

    def test_a_worker_trains_by_the_file_that_has_its_name(self):
        self.install()
        self.must('runuser', '-u', 'sparsebalance', '--', 'sparsebalance-worker', 'recall-data',
                  '--output', '/var/lib/sparsebalance/data/recall', '--sequences', '200')
        self.write('/etc/sparsebalance/workers/first.toml', JOB.format(name='first', steps=5))
        self.must('systemctl', 'start', 'sparsebalance-worker@first')
        self.await_line('inactive', 'systemctl', 'show', '--property=ActiveState', '--value',
                        'sparsebalance-worker@first')
        self.assertEqual(self.must('systemctl', 'show', '--property=Result', '--value',
                                   'sparsebalance-worker@first').strip(), 'success')
        self.assertIn('first', self.must('sbctl', 'jobs'))
        self.assertIn('finished', self.must('sbctl', 'job', 'first'))

        # Stopped in the middle it leaves a checkpoint, and counts as ended well.
        self.write('/etc/sparsebalance/workers/long.toml', JOB.format(name='long', steps=1000000))
        self.must('systemctl', 'start', 'sparsebalance-worker@long')
        self.await_line('training', 'sbctl', 'job', 'long')
        self.must('systemctl', 'stop', 'sparsebalance-worker@long')
        self.assertEqual(self.must('systemctl', 'show', '--property=Result', '--value',
                                   'sparsebalance-worker@long').strip(), 'success')
        self.must('ls', '/var/lib/sparsebalance/workers/long/checkpoints')

    def test_a_wrong_configuration_is_refused_and_the_service_that_runs_goes_on(self):
        self.install()
        self.await_line('no jobs', 'sbctl', 'jobs')
        toml = self.root.path / COORDINATOR_TOML.lstrip('/')
        toml.write_text(toml.read_text() + '\nquota = "*:max-jobs=many"\n')
        self.must('systemctl', 'reload', 'sparsebalance-coordinator')
        self.await_line('max-jobs', 'journalctl', '--no-pager', '--unit=sparsebalance-coordinator')
        self.must('sbctl', 'jobs')
        code, _ = self.inside('systemctl', 'restart', 'sparsebalance-coordinator')
        self.assertNotEqual(code, 0)

    def test_an_upgrade_keeps_state_and_configuration(self):
        self.install()
        self.await_line('no jobs', 'sbctl', 'jobs')
        toml = self.root.path / COORDINATOR_TOML.lstrip('/')
        changed = toml.read_text() + '\nquota = "*:max-jobs=7"\n'
        toml.write_text(changed)
        before = self.must('stat', '--format=%i', '/var/lib/sparsebalance/coordinator.db')
        self.install()
        self.assertEqual(toml.read_text(), changed)
        self.await_line('no jobs', 'sbctl', 'jobs')
        self.assertEqual(self.must('stat', '--format=%i', '/var/lib/sparsebalance/coordinator.db'),
                         before)

    def test_purging_leaves_nothing_but_data(self):
        before = self.root.files()
        self.install()
        self.await_line('no jobs', 'sbctl', 'jobs')
        self.must('apt-get', 'purge', '-y', '-q', *NAMES)
        self.assertNotEqual(
            self.inside('systemctl', 'is-active', 'sparsebalance-coordinator')[0], 0)
        ours = {path for path in self.root.files() - before if 'sparsebalance' in path}
        data = {path for path in ours if path.startswith('/var/lib/sparsebalance')}
        self.assertEqual(ours - data, set())
        self.assertIn('/var/lib/sparsebalance/coordinator.db', data)

    def test_completion_is_installed_where_bash_looks(self):
        self.install('sparsebalance-tools')
        output = self.must('bash', '-c', '. /usr/share/bash-completion/completions/sbctl; complete -p sbctl')
        self.assertIn('sbctl', output)


class DemoTest(unittest.TestCase):
    """./run demo's own script, on the installed programs, by a user without rights."""

    def test_the_demo_runs_from_the_packages(self):
        root = prepared.copy(prepared.path.with_name('demo'))
        self.addCleanup(root.remove)
        for deb in packages:
            shutil.copy(deb, root.path / 'root')
        root.run(['dpkg', '--install', *(f'/root/{deb.name}' for deb in packages)])
        root.run(['useradd', '--create-home', 'trainer'])
        output = root.run(
            ['/source/tests/demo/demo.sh', 'build/release', '--policy', 'length,sparsebalance',
             '--steps', '4', '--dataset', '/source/docs'],
            user='trainer', cwd='/home/trainer', binds=[(source, '/source', False)],
            environment={'SPARSEBALANCE_BIN_DIR': '/usr/bin'})
        self.assertRegex(output, r'(?m)^sparsebalance\s+4\s')


def main():
    global prepared
    roots = pathlib.Path(sys.argv[2]).resolve()
    packages.extend(sorted(pathlib.Path(sys.argv[1]).resolve().glob('sparsebalance-*.deb')))
    if sorted(field(deb, 'Package') for deb in packages) != sorted(NAMES):
        reason = f'not all packages are in {sys.argv[1]}; ./run package makes them'
    else:
        base, reason = debian_root.base(roots)
    if reason is None:
        prepared = prepare(base, roots)
        try:
            with prepared.booted():
                pass
        except RuntimeError as error:
            reason = f'systemd does not boot in a container here: {str(error).splitlines()[0]}'
    if reason is not None:
        print(f'skipped: {reason}')
        return 77
    try:
        return 0 if unittest.main(argv=sys.argv[:1] + sys.argv[3:], exit=False,
                                  verbosity=2).result.wasSuccessful() else 1
    finally:
        prepared.remove()


if __name__ == '__main__':
    sys.exit(main())
