"""Programs of two versions together: what an upgrade and its undoing look like to a job.

    skew_test.py --current build/release/bin --previous FOLDER    # programs of both
    skew_test.py --current build/release/bin --build build/skew   # builds the last tagged version

Skipped (77) where no version is tagged.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[3]
STEPS = 12

JOB = '''
job = "skew"
dataset = "{folder}/data"
data-parallel = 2
policy = "sparsebalance"
steps = {steps}
global-batch-size = 8
max-tokens-per-micro-batch = 512
block-tokens = 16
base-budget = 4
hidden-size = 64
layers = 2
heads = 2
kv-heads = 2
intermediate-size = 128
# Long enough for a coordinator that starts again: no step has to fall back then.
plan-deadline-ms = 20000
'''

current = previous = None


class SkewTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.running = []
        self.addCleanup(self.end_all)
        subprocess.run([current / 'sparsebalance-worker', 'recall-data', '--output',
                        self.folder / 'data', '--sequences', '400'], check=True,
                       stdout=subprocess.DEVNULL)

    def end_all(self):
        for process in self.running:
            if process.poll() is None:
                process.terminate()
            process.wait()

    def start(self, program, name, *arguments):
        log = self.folder / f'{name}.log'
        with open(log, 'ab') as out:
            process = subprocess.Popen([program, *map(str, arguments)], stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=subprocess.STDOUT, cwd=self.folder)
        self.running.append(process)
        return process

    def log(self, name):
        return (self.folder / f'{name}.log').read_text()[-4000:]

    def coordinator(self, programs, port=0):
        """Starts one on the job's store; returns it with its port."""
        ports = self.folder / 'ports'
        ports.unlink(missing_ok=True)
        process = self.start(programs / 'sparsebalance-coordinator', 'coordinator',
                             '--listen', f'127.0.0.1:{port}', '--metrics-listen', 'off',
                             '--store', self.folder / 'state.db', '--port-file', ports)
        deadline = time.monotonic() + 60
        while not ports.exists() or 'grpc=' not in ports.read_text():
            self.assertIsNone(process.poll(), self.log('coordinator'))
            self.assertLess(time.monotonic(), deadline, self.log('coordinator'))
            time.sleep(0.05)
        return process, int(re.search(r'grpc=\S*?(\d+)$', ports.read_text(), re.MULTILINE)[1])

    def workers(self, programs, port, steps=STEPS):
        (self.folder / 'job.toml').write_text(JOB.format(folder=self.folder, steps=steps))
        return [self.start(programs / 'sparsebalance-worker', f'worker-{rank}', '--config', 'job.toml',
                           '--coordinator', f'127.0.0.1:{port}', '--node-id', f'node-{rank}',
                           '--ranks', rank, '--output', f'output-{rank}')
                for rank in range(2)]

    def finish(self, workers):
        for rank, worker in enumerate(workers):
            self.assertEqual(worker.wait(), 0, self.log(f'worker-{rank}'))
        return [json.loads(line)
                for line in (self.folder / 'output-0/steps.jsonl').read_text().splitlines()]

    def check_steps(self, steps, count=STEPS):
        self.assertEqual([step['step'] for step in steps], list(range(count)))
        self.assertEqual([step['step'] for step in steps if step['used_fallback']], [])

    def await_step(self, step):
        path = self.folder / 'output-0/steps.jsonl'
        deadline = time.monotonic() + 60
        while not path.exists() or len(path.read_text().splitlines()) <= step:
            self.assertLess(time.monotonic(), deadline, self.log('worker-0'))
            time.sleep(0.05)

    def test_workers_of_the_version_before_train_by_the_plans_of_this_coordinator(self):
        _, port = self.coordinator(current)
        self.check_steps(self.finish(self.workers(previous, port)))

    def test_workers_of_this_version_train_by_the_plans_of_the_coordinator_before(self):
        _, port = self.coordinator(previous)
        self.check_steps(self.finish(self.workers(current, port)))

    def test_a_coordinator_is_upgraded_under_a_job_that_trains(self):
        old, port = self.coordinator(previous)
        workers = self.workers(previous, port, steps=200)
        self.await_step(5)
        old.send_signal(signal.SIGTERM)
        self.assertEqual(old.wait(), 0, self.log('coordinator'))
        self.coordinator(current, port)
        steps = self.finish(workers)
        # Not one is lost or trained twice; how many had to do without a plan is the machine's affair.
        self.assertEqual([step['step'] for step in steps], list(range(200)))
        self.assertFalse(steps[-1]['used_fallback'])

    def test_sbctl_of_either_version_shows_a_job_of_the_other(self):
        for ours, theirs in ((current, previous), (previous, current)):
            coordinator, port = self.coordinator(theirs)
            self.finish(self.workers(theirs, port))
            job = subprocess.run([ours / 'sbctl', '--coordinator', f'127.0.0.1:{port}', 'job', 'skew'],
                                 check=True, stdout=subprocess.PIPE, text=True).stdout
            self.assertIn('finished', job)
            coordinator.terminate()
            coordinator.wait()
            (self.folder / 'state.db').unlink()
            for name in os.listdir(self.folder):
                if name.startswith('state.db'):
                    (self.folder / name).unlink()


def build_last_tag(folder):
    """Programs of the last tagged version, or None."""
    tag = subprocess.run(['git', '-C', str(SOURCE), 'describe', '--tags', '--abbrev=0', '--match=v*'],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    if tag.returncode != 0:
        return None
    source = folder / tag.stdout.strip()
    if not (source / 'run').exists():
        source.mkdir(parents=True)
        archive = subprocess.Popen(['git', '-C', str(SOURCE), 'archive', tag.stdout.strip()],
                                   stdout=subprocess.PIPE)
        subprocess.run(['tar', '-x', '-C', str(source)], stdin=archive.stdout, check=True)
        if archive.wait() != 0:
            raise RuntimeError(f'git archive {tag.stdout.strip()} failed')
    build = source / 'build/skew'
    subprocess.run(['cmake', '-S', str(source), '-B', str(build), '-G', 'Ninja',
                    '-DSPARSEBALANCE_TESTS=OFF', '-DSPARSEBALANCE_BENCHMARKS=OFF',
                    '-DSPARSEBALANCE_CUDA=OFF'], check=True)
    subprocess.run(['cmake', '--build', str(build)], check=True)
    return build / 'bin'


def main():
    global current, previous
    parser = argparse.ArgumentParser()
    parser.add_argument('--current', type=pathlib.Path, required=True)
    parser.add_argument('--previous', type=pathlib.Path)
    parser.add_argument('--build', type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    current = arguments.current.resolve()
    previous = (arguments.previous or build_last_tag(arguments.build.resolve()))
    if previous is None:
        print('skipped: no version is tagged yet, so there is none to be mixed with')
        return 77
    previous = previous.resolve()
    return 0 if unittest.main(argv=sys.argv[:1] + rest, exit=False,
                              verbosity=2).result.wasSuccessful() else 1


if __name__ == '__main__':
    sys.exit(main())
