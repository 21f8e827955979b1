"""The images of deploy/docker: made as the Dockerfile says, then run as compose.yaml says, without a
container engine: in Debian roots, by systemd-nspawn.

    images_test.py --packages build/package/packages build/roots   # the stage that compiles is not repeated
    images_test.py --whole build/roots                             # it is: takes as long as a build
"""

import argparse
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
import unittest

import yaml

import debian_root
import dockerfile

SOURCE = pathlib.Path(__file__).resolve().parents[3]
DOCKER = SOURCE / 'deploy/docker'
STEPS = 6

images = {}   # by stage
folder = None


def context(path):
    """What the build context holds of `path`: (file, path in the context)."""
    ignored = [line.strip().strip('/') for line in (SOURCE / '.dockerignore').read_text().splitlines()
               if line.strip() and not line.startswith('#')]
    start = SOURCE / path.rstrip('/').removeprefix('./')
    if start.is_file():
        return [(start, start.name)]
    found = []
    for top, folders, files in os.walk(start):
        inside = pathlib.Path(top).relative_to(SOURCE)
        folders[:] = [name for name in folders if str(inside / name) not in ignored]
        found += [(pathlib.Path(top) / name, inside / name) for name in files]
    return found


def project_version():
    return re.search(r'project\(SparseBalance VERSION (\S+)',
                     (SOURCE / 'CMakeLists.txt').read_text())[1]


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


class ImagesTest(unittest.TestCase):

    def test_every_image_runs_its_program_of_this_version_without_rights(self):
        for stage, program in (('coordinator', 'sparsebalance-coordinator'),
                               ('worker', 'sparsebalance-worker')):
            image = images[stage]
            self.assertEqual(image.user, '10001:10001')
            output = image.root.run([*image.entrypoint, '--version'], user='sparsebalance',
                                    read_only=True)
            self.assertEqual(output.strip(), f'{program} {project_version()}')
            self.assertEqual(image.root.run(['id', '-u'], user='sparsebalance',
                                            read_only=True).strip(), '10001')

    def test_images_hold_no_compiler_and_no_package_lists(self):
        for image in images.values():
            found = image.root.files()
            for program in ('gcc', 'g++', 'cc', 'cmake', 'make', 'protoc', 'dpkg-shlibdeps'):
                self.assertNotIn(f'/usr/bin/{program}', found)
            lists = [path for path in found if path.startswith('/var/lib/apt/lists/')]
            self.assertEqual(lists, [])

    def test_what_an_image_adds_to_debian_is_small(self):
        """In MB, loosely: a compiler or another toolkit would be ten times as much."""
        base = self.megabytes(folder / 'base')
        for stage, bound in (('coordinator', 150), ('worker', 250)):
            added = self.megabytes(images[stage].root.path) - base
            print(f'{stage}: {added:.0f} MB more than debian:bookworm-slim ({base:.0f} MB)')
            self.assertLess(added, bound)

    @staticmethod
    def megabytes(path):
        return int(subprocess.run(['du', '-sm', str(path)], check=True, text=True,
                                  stdout=subprocess.PIPE).stdout.split()[0])


class ComposeTest(unittest.TestCase):
    """Services of compose.yaml as processes with read-only roots that share this machine's loopback."""

    def setUp(self):
        self.compose = yaml.safe_load((DOCKER / 'compose.yaml').read_text())
        self.volumes = folder / 'volumes'
        shutil.rmtree(self.volumes, ignore_errors=True)
        self.volumes.mkdir(parents=True)
        self.addCleanup(shutil.rmtree, self.volumes, True)
        # Instead of the containers' network: addresses and ports of this machine.
        self.ports = {port: free_port() for port in (7070, 7071, 7072)}
        self.running = []
        self.addCleanup(self.stop)

    def stop(self):
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait()

    def translate(self, argument):
        argument = re.sub(r'=(0\.0\.0\.0|coordinator):(\d+)$',
                          lambda m: f'=127.0.0.1:{self.ports[int(m[2])]}', argument)
        return {'--interface=eth0': '--interface=lo'}.get(argument, argument)

    def service(self, name, extra=()):
        """The command line of a service, as nspawn runs it."""
        service = self.compose['services'][name]
        self.assertTrue(service['read_only'])
        stage = service['build']['target']
        self.assertEqual(service['image'], f'sparsebalance-{stage}:{project_version()}')
        binds = []
        for volume in service['volumes']:
            outside, inside = volume.split(':')[:2]
            if outside.startswith('.'):
                outside = (DOCKER / outside).resolve()
                self.assertTrue(volume.endswith(':ro'))
                binds.append((outside, inside, False))
            else:
                self.assertIn(outside, self.compose['volumes'])
                # An empty volume takes the owner of the image's folder, where that is there.
                owner = (images[stage].root.path / inside.lstrip('/')).stat()
                path = self.volumes / outside
                if not path.exists():
                    path.mkdir(parents=True)
                    os.chown(path, owner.st_uid, owner.st_gid)
                binds.append((path, inside, True))
        image = images[stage]
        arguments = image.entrypoint + [self.translate(a) for a in service['command']] + list(extra)
        return image.root.command(arguments, user='sparsebalance', read_only=True, binds=binds,
                                  cwd=image.folder)

    def start(self, name, extra=()):
        log = self.volumes / f'{name}.log'
        with open(log, 'wb') as out:
            process = subprocess.Popen(self.service(name, extra), stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=subprocess.STDOUT)
        self.running.append(process)
        return process, log

    def finish(self, name, extra=()):
        process, log = self.start(name, extra)
        self.assertEqual(process.wait(), 0, f'{name}:\n{log.read_text()[-3000:]}')
        return log.read_text()

    def test_two_workers_train_by_the_plans_of_the_coordinator(self):
        _, log = self.start('coordinator')
        self.finish('data')
        check = self.compose['services']['coordinator']['healthcheck']['test']
        self.assertEqual(check[0], 'CMD')
        address = f'127.0.0.1:{self.ports[7070]}'
        sbctl = images['coordinator'].root.command(
            [*check[1:], '--coordinator', address], user='sparsebalance', read_only=True)
        deadline = time.monotonic() + 60
        while subprocess.run(sbctl, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.assertLess(time.monotonic(), deadline, log.read_text())
            time.sleep(0.2)
        extra = [f'--steps={STEPS}', f'--coordinator={address}', '--metrics-listen=127.0.0.1:0']
        first, first_log = self.start('worker-0', extra)
        second, second_log = self.start('worker-1', extra)
        self.assertEqual(first.wait(), 0, first_log.read_text()[-3000:])
        self.assertEqual(second.wait(), 0, second_log.read_text()[-3000:])
        job = subprocess.run(
            images['coordinator'].root.command(
                ['/usr/bin/sbctl', '--coordinator', address, 'job', 'recall'], user='sparsebalance',
                read_only=True),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertIn('finished', job)

    def test_dashboards_and_rules_that_are_mounted_exist(self):
        for name in ('prometheus', 'grafana'):
            service = self.compose['services'][name]
            self.assertRegex(service['image'], r':v?\d+\.\d+\.\d+$')
            for volume in service['volumes']:
                if volume.startswith('.'):
                    self.assertTrue((DOCKER / volume.split(':')[0]).resolve().exists(), volume)

    def test_only_this_machine_reaches_the_ports(self):
        for name, service in self.compose['services'].items():
            for port in service.get('ports', ()):
                self.assertRegex(port, r'^127\.0\.0\.1:', name)

    def test_prometheus_reads_its_configuration(self):
        promtool = shutil.which('promtool')
        if promtool is None:
            self.skipTest('promtool is not installed')
        shutil.copytree(DOCKER / 'compose', self.volumes / 'compose')
        shutil.copy(SOURCE / 'dashboards/prometheus/rules.yaml', self.volumes / 'compose')
        done = subprocess.run([promtool, 'check', 'config', '--lint=all', '--lint-fatal',
                               self.volumes / 'compose/prometheus.yaml'],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)


def main():
    global folder
    parser = argparse.ArgumentParser()
    parser.add_argument('--packages', type=pathlib.Path)
    parser.add_argument('--whole', action='store_true')
    parser.add_argument('roots', type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    given = {}
    folder = arguments.roots.resolve()
    base, reason = debian_root.base(folder)
    if not arguments.whole:
        made = sorted(arguments.packages.resolve().glob('*.deb'))
        if reason is None and not made:
            reason = f'no package is in {arguments.packages}; ./run package makes them'
        # As if the stage that compiles had run: its packages, and nothing else of it.
        if reason is None:
            shutil.rmtree(folder / 'given', ignore_errors=True)
            into = folder / 'given/source/build/package/packages'
            into.mkdir(parents=True)
            for deb in made:
                shutil.copy(deb, into)
            given['build'] = dockerfile.Image(debian_root.Root(folder / 'given'))
    if reason is not None:
        print(f'skipped: {reason}')
        return 77
    builder = dockerfile.Builder(dockerfile.parse((DOCKER / 'Dockerfile').read_text()),
                                 base, context, folder / 'stages', given)
    for stage in ('coordinator', 'worker'):
        images[stage] = builder.build(stage)
    try:
        return 0 if unittest.main(argv=sys.argv[:1] + rest, exit=False,
                                  verbosity=2).result.wasSuccessful() else 1
    finally:
        shutil.rmtree(folder / 'stages', ignore_errors=True)
        shutil.rmtree(folder / 'given', ignore_errors=True)


if __name__ == '__main__':
    sys.exit(main())
