#!/usr/bin/env python3
"""Walks through the pages as a reader would: runs the commands that they show, in the pages' own words.

Commands and files are taken from the pages, so that they cannot drift apart. What must differ from a
reader's machine (ports, the number of steps, placeholders) is replaced by `edited`, which fails where the
page does not say any more what is to be replaced. Every test has a folder of its own.
"""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import lint_docs  # noqa: E402
import markdown  # noqa: E402
import shell_lines  # noqa: E402

ROOT = lint_docs.ROOT
BIN = pathlib.Path(os.environ.get('SPARSEBALANCE_BIN_DIR', ROOT / 'build/release/bin')).absolute()
TIMEOUT = 300  # seconds: ends what hangs
STEPS = 4


def read(page):
    return markdown.Page((ROOT / page).read_text(encoding='utf-8'))


def blocks_under(page, heading):
    """The blocks between this heading of the page and the next."""
    own = read(page)
    lines = [line for line, text in own.headings if text == heading]
    assert lines, f'{page} has no heading "{heading}": the walk-through reads what stands below it'
    end = min([line for line, _ in own.headings if line > lines[0]], default=10**9)
    return [block for block in own.blocks if lines[0] < block.line < end]


def block_with(page, heading, text):
    """The one that has this text."""
    found = [block for block in blocks_under(page, heading) if text in block.text]
    assert len(found) == 1, f'{page}, "{heading}": {len(found)} blocks have "{text}", not one'
    return found[0]


def lines_of(block):
    return [text for _, text in shell_lines.logical_lines(block.lines, 1)]


def edited(text, *replacements):
    for old, new in replacements:
        assert old in text, f'"{old}" is to be replaced, but the page says: {text}'
        text = text.replace(old, new)
    return text


class WalkThrough(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='sb_docs_'))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith('SPARSEBALANCE_') and name != 'XDG_STATE_HOME'}
        self.environment['PATH'] = f'{BIN}:{self.environment["PATH"]}'

    def run_line(self, line, cwd=None, expect=0):
        """Runs it in bash, as a reader would."""
        run = subprocess.run(['bash', '-c', line], cwd=cwd or self.folder, env=self.environment,
                             capture_output=True, text=True, timeout=TIMEOUT, check=False)
        self.assertEqual(run.returncode, expect, f'{line}\n{run.stdout}{run.stderr}')
        return run.stdout + run.stderr

    def start(self, line, name):
        """Runs it beside the test until that ends."""
        log = open(self.folder / f'{name}.log', 'w', encoding='utf-8')
        self.addCleanup(log.close)
        process = subprocess.Popen(['bash', '-c', f'exec {line}'], cwd=self.folder, env=self.environment,
                                   stdout=log, stderr=subprocess.STDOUT)

        def end():
            if process.poll() is None:
                process.kill()
            process.wait()
        self.addCleanup(end)
        return process

    def log(self, name):
        return (self.folder / f'{name}.log').read_text(encoding='utf-8')

    def start_coordinator(self, line, name='coordinator'):
        """Returns the process and the ports of its service and its status page."""
        ports = self.folder / f'{name}.ports'
        process = self.start(f'{line} --listen 127.0.0.1:0 --metrics-listen 127.0.0.1:0 --port-file {ports}',
                             name)
        deadline = time.monotonic() + TIMEOUT
        while not (ports.exists() and 'metrics=' in ports.read_text()):
            self.assertIsNone(process.poll(), self.log(name))
            self.assertLess(time.monotonic(), deadline, self.log(name))
            time.sleep(0.05)
        numbers = dict(line.split('=') for line in ports.read_text().split())
        return process, numbers['grpc'], numbers['metrics']

    def wait(self, process, name, expect=0):
        try:
            code = process.wait(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            self.fail(f'{name} did not end: {self.log(name)}')
        self.assertEqual(code, expect, self.log(name))


class ReadmeJob(WalkThrough):
    """README: pack, coordinator, two workers; then what other pages do with a job and its checkpoints."""

    def write_corpus(self):
        (self.folder / 'corpus').mkdir()
        draw = random.Random(1)
        words = 'the rank waits for its plan and trains what it is given while others wait'.split()
        for number in range(80):
            text = ' '.join(draw.choice(words) for _ in range(draw.randint(10, 300)))
            (self.folder / 'corpus' / f'{number}.txt').write_text(text)

    def test_a_job_from_packing_to_a_backup(self):
        self.write_corpus()
        pack, coordinator, *workers = lines_of(block_with('README.md', 'Run a job', 'sparsebalance-data pack'))
        self.assertIn('packed 80 documents', self.run_line(pack))
        process, port, page = self.start_coordinator(coordinator)
        job = edited(block_with('README.md', 'Run a job', 'data-parallel = 2').text,
                     ('127.0.0.1:7070', f'127.0.0.1:{port}'), ('steps = 1000', f'steps = {STEPS}'))
        (self.folder / 'job.toml').write_text(job + '\n')
        self.assertEqual(len(workers), 2)
        if '--check-config' in self.run_line('sparsebalance-worker --help'):
            for worker in workers:
                self.run_line(f'{worker} --check-config')
        nodes = [(self.start(f'{worker} --start-timeout-s {TIMEOUT}', f'worker-{n}'), f'worker-{n}')
                 for n, worker in enumerate(workers)]
        for node, name in nodes:
            self.wait(node, name)

        self.environment['SPARSEBALANCE_COORDINATOR'] = f'127.0.0.1:{port}'
        looks = block_with('README.md', 'Run a job', 'sbctl watch')
        for line in lines_of(looks):
            if ' plan ' in line:
                output = self.run_line(edited(line, ('my-model 120', f'my-model {STEPS - 1}')))
                self.assertIn('sequence', output)
            elif ' watch ' in line:
                self.assertIn('my-model', self.run_line(f'{line} --updates 1'))
            elif line.startswith('curl'):
                self.assertIn('sparsebalance_coordinator_plans_total{',
                              self.run_line(edited(line, ('127.0.0.1:7071', f'127.0.0.1:{page}'))))
            else:
                self.assertIn('my-model', self.run_line(line))

        self.convert_and_evaluate()
        self.back_up_and_restore()
        verb = next(i.text for i in read('docs/coordinator.md').inline if i.text.startswith('completion '))
        for shell in verb.split(' ')[1].replace('\\', '').split('|'):
            self.assertIn('sbctl', self.run_line(f'sbctl completion {shell}'))
        self.run_line('sbctl completion bash | bash -n')
        self.run_line('sbctl drain')
        self.wait(process, 'coordinator')

    def convert_and_evaluate(self):
        """docs/models.md and docs/accuracy.md, on the checkpoint that there is now."""
        block = next(b for b in read('docs/models.md').blocks if 'worker convert' in b.text)
        convert, inspect = lines_of(block)
        self.assertIn('wrote bf16', self.run_line(edited(convert, ('step-00000004', f'step-{STEPS:08}'))))
        self.assertIn('Qwen2ForCausalLM', self.run_line(inspect))
        block = block_with('docs/accuracy.md', 'Evaluating a checkpoint', '--dataset PREFIX')
        by_length = edited(lines_of(block)[0], ('MODEL', 'checkpoints'), ('PREFIX', 'data/corpus'),
                           ('[--budget 8|dense]', '--budget 8'))
        self.assertIn('perplexity', self.run_line(f'{by_length} --max-sequences 8').lower())

    def back_up_and_restore(self):
        backup, restore = lines_of(block_with('docs/coordinator.md', 'Backups', 'sbctl backup'))
        self.run_line(backup)
        _, port, _ = self.start_coordinator('sparsebalance-coordinator --store memory', 'second')
        self.run_line(f'SPARSEBALANCE_COORDINATOR=127.0.0.1:{port} {restore}')
        self.assertIn('my-model', self.run_line(f'SPARSEBALANCE_COORDINATOR=127.0.0.1:{port} sbctl jobs'))


class WithoutACluster(WalkThrough):

    def write_inputs(self):
        rows = ['step,dp_rank,stage,micro_batch,forward_start_ms,forward_ms,backward_start_ms,backward_ms']
        for step in range(3):
            for rank in range(2):
                factor = 1.5 if rank == 1 else 1.0
                at = 0.0
                for micro_batch in range(4):
                    forward = factor * (10 + micro_batch)
                    rows.append(f'{step},{rank},0,{micro_batch},{at},{forward},{at + forward},{2 * forward}')
                    at += 3 * forward
        (self.folder / 'run.csv').write_text('\n'.join(rows) + '\n')
        draw = random.Random(2)
        with open(self.folder / 'batches.jsonl', 'w', encoding='utf-8') as out:
            for step in range(2):
                json.dump({'job': {'data_parallel_size': 2, 'block_tokens': 64, 'base_budget_blocks': 8,
                                   'max_tokens_per_micro_batch': 8192},
                           'step': step,
                           'sequences': [{'id': step * 8 + n, 'tokens': draw.randint(64, 8192)}
                                         for n in range(8)]}, out)
                out.write('\n')

    def walk(self, page, heading):
        simulate, replay, plan = lines_of(block_with(page, heading, 'sbctl simulate'))
        self.assertIn('sparsebalance', self.run_line(simulate))
        self.assertIn('<html', (self.folder / 'report.html').read_text(encoding='utf-8'))
        self.assertIn('rank 1', self.run_line(replay))
        self.assertIn('rank', self.run_line(plan))

    def test_readme(self):
        self.write_inputs()
        self.walk('README.md', 'Run a job')

    def test_planner(self):
        self.write_inputs()
        self.walk('docs/planner.md', 'Without a cluster')


@unittest.skipUnless(shutil.which('openssl'), 'openssl is not installed')
class Security(WalkThrough):

    def test_certificates_and_rules_of_the_page(self):
        self.run_line(block_with('docs/security.md', 'Certificates', 'openssl req').text)
        (self.folder / 'authorization.json').write_text(
            block_with('docs/security.md', 'Authorization', '"rules"').text)
        _, port, page = self.start_coordinator(
            'sparsebalance-coordinator --store memory --tls-cert coordinator.crt --tls-key coordinator.key '
            '--tls-client-ca ca.crt --authorization authorization.json')

        def sbctl(name):
            return (f'sbctl --coordinator localhost:{port} --tls-ca ca.crt '
                    f'--tls-cert {name}.crt --tls-key {name}.key')
        self.run_line(f'{sbctl("ops")} jobs')
        self.run_line(f'{sbctl("trainer")} jobs --namespace ml')
        # What the page says of roles, and of peers without a certificate.
        denied = subprocess.run(['bash', '-c', f'{sbctl("trainer")} drain'], cwd=self.folder,
                                env=self.environment, capture_output=True, text=True, timeout=TIMEOUT,
                                check=False)
        self.assertNotEqual(denied.returncode, 0)
        self.assertIn('may not call Drain', denied.stderr)
        nobody = subprocess.run(['bash', '-c', f'sbctl --coordinator localhost:{port} --tls-ca ca.crt '
                                 '--timeout 3 jobs'], cwd=self.folder, env=self.environment,
                                capture_output=True, text=True, timeout=TIMEOUT, check=False)
        self.assertNotEqual(nobody.returncode, 0)
        if shutil.which('curl'):
            self.run_line(f'curl -fsS --cacert ca.crt --cert ops.crt --key ops.key '
                          f'https://localhost:{page}/metrics')


class CoordinatorCommands(WalkThrough):

    def test_each_command_line_of_a_coordinator_is_one_that_it_takes(self):
        """Those that name no files and hold no placeholders."""
        checked = 0
        for path in sorted(str(p.relative_to(ROOT)) for p in ROOT.glob('docs/**/*.md')) + ['README.md']:
            for block in read(path).blocks:
                if block.language not in ('', 'sh', 'bash', 'console'):
                    continue
                try:
                    commands = shell_lines.commands(block.lines, block.line)
                except shell_lines.ShellError:
                    continue  # lint_docs.py says so
                for command in commands:
                    if command.program != 'sparsebalance-coordinator' or any(
                            a in ('...', 'FILE') or '-cert' in a or '-key' in a or '-ca' in a
                            or a.startswith('--authorization') for a in command.arguments):
                        continue
                    checked += 1
                    with self.subTest(f'{path}:{command.line}'):
                        fault = lint_docs.check_config(command.arguments, self.folder, Context)
                        self.assertEqual(fault, '')
        self.assertGreaterEqual(checked, 3)

    def test_check_config_of_a_file(self):
        line = next(text for block in read('docs/coordinator.md').blocks for text in lines_of(block)
                    if '--check-config --config FILE' in text)
        (self.folder / 'sound.toml').write_text('lease = "10s"\n')
        (self.folder / 'wrong.toml').write_text('leese = "10s"\n')
        self.run_line(edited(line, ('FILE', 'sound.toml')))
        self.assertIn('leese', self.run_line(edited(line, ('FILE', 'wrong.toml')), expect=2))


class Context:
    """As much of lint_docs.Context as check_config wants."""

    class programs:  # noqa: N801

        @staticmethod
        def path(program):
            return str(BIN / program)


class Integration(WalkThrough):

    @unittest.skipUnless(shutil.which('protoc') and pathlib.Path('/usr/bin/grpc_python_plugin').exists(),
                         'protobuf-compiler-grpc is not installed')
    def test_stubs(self):
        shutil.copytree(ROOT / 'proto', self.folder / 'proto')
        for line in lines_of(block_with('docs/integration.md', 'Stubs', 'protoc')):
            self.run_line(line)
        made = {path.name for path in (self.folder / 'stubs/sparsebalance/v1').iterdir()}
        self.assertIn('coordinator_pb2.py', made)
        self.assertIn('coordinator_pb2_grpc.py', made)

    @unittest.skipUnless((BIN / 'example-trainer').exists(), 'examples/trainer is not built')
    def test_example(self):
        coordinator, first_plan, *ranks = lines_of(
            block_with('docs/integration.md', 'Stubs', 'example-trainer'))
        _, port, _ = self.start_coordinator(edited(coordinator, (' &', '')))
        here = ('127.0.0.1:7070', f'127.0.0.1:{port}')
        first = self.start(edited(first_plan, here), 'first-plan')
        self.wait(first, 'first-plan')
        self.assertIn('step 2 sequence ', self.log('first-plan'))
        trainers = [(self.start(edited(rank.removesuffix(' &'), here), f'rank-{n}'), f'rank-{n}')
                    for n, rank in enumerate(ranks)]
        for trainer, name in trainers:
            self.wait(trainer, name)
            self.assertIn('step 9 plan ', self.log(name))


class Helpers(WalkThrough):
    """That the walk-through would notice."""

    def test_a_replacement_that_does_not_apply_fails(self):
        with self.assertRaisesRegex(AssertionError, 'is to be replaced'):
            edited('steps = 2000', ('steps = 1000', 'steps = 4'))

    def test_a_heading_that_is_gone_fails(self):
        with self.assertRaisesRegex(AssertionError, 'has no heading'):
            blocks_under('README.md', 'Run no job')

    def test_a_block_that_is_gone_fails(self):
        with self.assertRaisesRegex(AssertionError, '0 blocks have'):
            block_with('README.md', 'Run a job', 'no such words')

    def test_a_command_that_fails_fails(self):
        with self.assertRaises(AssertionError):
            self.run_line('sbctl jobz')


if __name__ == '__main__':
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ctest's time-out: cleanups run
    unittest.main()
