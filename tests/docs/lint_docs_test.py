#!/usr/bin/env python3
"""Plants each fault that lint_docs.py looks for into a page, and wants it found."""

import os
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import lint_docs as lint  # noqa: E402
import markdown  # noqa: E402
import programs as own_programs  # noqa: E402
import shell_lines  # noqa: E402

REPOSITORY = own_programs.Repository(lint.ROOT)
PROGRAMS = own_programs.Programs(os.environ.get('SPARSEBALANCE_BIN_DIR', lint.ROOT / 'build/release/bin'))
PAGES = lint.all_pages(REPOSITORY)


def faults_of(text, path='docs/security.md'):
    """Of a page that stands in the place of a real one."""
    page = markdown.Page(text)
    context = lint.Context(REPOSITORY, PROGRAMS, {**PAGES, path: page})
    return sorted(set(lint.page_faults(path, page, context)))


class Faults(unittest.TestCase):

    def assertFault(self, text, fault, line=None, path='docs/security.md'):
        faults = faults_of(text, path)
        found = [number for number, words in faults if fault in words]
        self.assertTrue(found, f'"{fault}" is not among {faults}')
        if line is not None:
            self.assertIn(line, found)

    def assertSound(self, text, path='docs/security.md'):
        self.assertEqual(faults_of(text, path), [])


class RealPages(Faults):

    def test_have_no_faults(self):
        context = lint.Context(REPOSITORY, PROGRAMS, PAGES)
        for path, page in PAGES.items():
            with self.subTest(path):
                self.assertEqual(sorted(set(lint.page_faults(path, page, context))), [])
        self.assertEqual(list(lint.unused_declarations(context)), [])

    def test_are_found(self):
        for path in ('README.md', 'docs/security.md', 'docs/integration.md', 'dashboards/README.md'):
            self.assertIn(path, PAGES)

    def test_a_declaration_that_covers_nothing_is_a_fault(self):
        pages = {**PAGES, 'docs/models.md': markdown.Page('# Models\n')}
        context = lint.Context(REPOSITORY, PROGRAMS, pages)
        self.assertTrue(any('docs/models.md' in fault for fault in lint.unused_declarations(context)))


class Links(Faults):

    def test_sound_ones(self):
        self.assertSound('# A title\n\n[up](../README.md), [own](#a-title), [there](coordinator.md#state),\n'
                         '![image](images/status-page.png) and [a folder](../tests)\n')

    def test_no_such_file(self):
        self.assertFault('text\n\nand [a link](gone.md)\n', 'there is no docs/gone.md', line=3)

    def test_no_such_image(self):
        self.assertFault('![x](images/gone.png)\n', 'there is no docs/images/gone.png')
        self.assertFault('<img src="images/gone.png" alt="x">\n', 'there is no docs/images/gone.png')

    def test_no_such_anchor(self):
        self.assertFault('# Here\n\n[x](#there)\n', 'no heading "#there"')
        self.assertFault('[x](coordinator.md#sttae)\n', 'docs/coordinator.md has no heading')

    def test_link_over_two_lines_and_by_reference(self):
        self.assertFault('[a long\nname](gone.md)\n', 'there is no docs/gone.md', line=1)
        self.assertFault('[x][y]\n\n[y]: gone.md\n', 'there is no docs/gone.md', line=3)

    def test_path_from_the_root(self):
        self.assertFault('[x](/README.md)\n', 'not from the root')

    def test_strange_host(self):
        self.assertFault('[x](https://host.invalid/a)\n', 'host.invalid is not among HOSTS')
        self.assertFault('    curl http://host.invalid/\n', 'host.invalid is not among HOSTS')
        self.assertSound('<http://127.0.0.1:7071/> and https://ops.example.org/x\n')

    def test_malformed_address(self):
        self.assertFault('http://127.0.0.1:70999999/\n', 'out of range')

    def test_links_in_code_are_none(self):
        self.assertSound('`[x](gone.md)`\n\n```text\n[x](gone.md)\n```\n')


class Slugs(unittest.TestCase):

    def test_as_github_makes_them(self):
        for heading, slug in (
                ('What it takes', 'what-it-takes'),
                ('Scraping: `honor_labels: true`', 'scraping-honor_labels-true'),
                ('In C++: use the library', 'in-c-use-the-library'),
                ('1. RegisterJob', '1-registerjob'),
                ('How `sparsebalance` searches', 'how-sparsebalance-searches'),
                ('A [link](x.md) in it', 'a-link-in-it'),
                ('A & B', 'a--b')):
            self.assertEqual(markdown.slug_of(heading), slug)

    def test_the_second_of_a_name_is_numbered(self):
        self.assertEqual(markdown.Page('# A\n\n## B\n\n## B\n').anchors, {'a', 'b', 'b-1'})


class Text(Faults):

    def test_no_such_path(self):
        self.assertFault('see `coordinator/gone.h`\n', 'no such file or folder')
        self.assertFault('see `gone_header.h`\n', 'no file of the repository has this name')
        self.assertSound('see `coordinator/service/job.h`, `job.h`, `tests/e2e` and `proto/**/*.proto`\n')

    def test_no_such_flag(self):
        self.assertFault('say\n`--plan-deadlin-ms 3`\n', '--plan-deadlin-ms', line=2)
        self.assertSound('`--plan-deadline-ms 3`, `--benchmark_filter=x`, `--auto-compaction-retention`\n')

    def test_flag_over_the_end_of_a_line(self):
        self.assertFault('`sbctl jobs\n--gone`\n', '--gone')

    def test_no_such_variable(self):
        self.assertFault('set `SPARSEBALANCE_COORDINATR`\n', 'SPARSEBALANCE_COORDINATR')
        self.assertFault('```ini\nSPARSEBALANCE_GONE=1\n```\n', 'SPARSEBALANCE_GONE', line=2)
        self.assertSound('`SPARSEBALANCE_COORDINATOR_` and `SPARSEBALANCE_TLS_CA`\n')

    def test_no_such_test(self):
        self.assertFault('by `sb_gone_test`\n', 'sb_gone_test')
        self.assertSound('by `sb_parity_test`\n')

    def test_command_in_text(self):
        self.assertFault('`sbctl jobz --format json`\n', 'no verb "jobz"')
        self.assertFault('`./run tst`\n', 'no command "tst"')
        self.assertSound('`sbctl plan --explain`, `./run bench --service rpc --seconds 1`\n')


class Commands(Faults):

    def test_unknown_verb_of_run(self):
        self.assertFault('    ./run biuld\n', '`./run` has no command "biuld"')

    def test_unknown_flag_of_run(self):
        self.assertFault('    ./run bench --gone\n', 'no script knows --gone')

    def test_unknown_part_of_verify(self):
        self.assertFault('    ./run verify msan\n', 'not msan')

    def test_unknown_verb(self):
        self.assertFault('    sbctl jobz\n', '`sbctl` has no verb "jobz"')
        self.assertFault('    sparsebalance-worker trian\n', 'no verb "trian"')

    def test_unknown_flag(self):
        self.assertFault('    sparsebalance-coordinator --listne x\n', 'has no --listne')

    def test_flag_of_another_verb(self):
        self.assertFault('    sbctl jobs --explain\n', '`sbctl jobs` has no --explain')
        self.assertSound('    sbctl --coordinator HOST:PORT plan JOB 3 --explain\n')

    def test_flag_in_a_continuation_line(self):
        self.assertFault('    sbctl jobs \\\n        --gone x\n', 'has no --gone', line=1)

    def test_flag_behind_a_pipe_and_a_variable(self):
        self.assertFault('    A=b cat x | sudo -u root sbctl jobs --gone\n', 'has no --gone')

    def test_flag_that_a_comment_names_is_none(self):
        self.assertSound('    sbctl jobs   # --gone\n')

    def test_flag_without_its_value(self):
        self.assertFault('    sbctl jobs --namespace\n', '--namespace wants a value')

    def test_value_that_is_none_of_the_choices(self):
        self.assertFault('    sbctl --format yaml jobs\n', '--format is one of')
        self.assertFault('    sbctl simulate --policies length,papre\n', 'not papre')

    def test_arguments(self):
        self.assertFault('    sbctl job\n', 'wants 1')
        self.assertFault('    sbctl backup a b\n', '2 arguments where it takes 1')
        self.assertFault('    sbctl\n', 'without a verb')
        self.assertSound('    sbctl ...\n')

    def test_optional_parts(self):
        self.assertFault('    sparsebalance-worker eval MODEL [--gone 8|dense]\n', 'has no --gone')
        self.assertSound('    sparsebalance-worker eval MODEL --dataset PREFIX [--budget 8|dense]\n')

    def test_only_prompts_are_commands_among_output(self):
        self.assertFault('    $ sbctl jobz\n    no verb --gone\n', 'no verb "jobz"', line=1)
        self.assertSound('```console\n$ sbctl jobs\nJOB --gone\n```\n')

    def test_script(self):
        self.assertFault('    tests/gone.sh\n', 'nothing covers this block')
        self.assertFault('```sh\ntests/gone.sh\n```\n', 'tests/gone.sh: there is no such script')
        self.assertFault('    tests/demo/demo.sh --gone\n', 'does not know --gone')
        self.assertSound('    ./generate.sh\n', path='dashboards/README.md')

    def test_script_that_is_not_executable(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / 'a.sh').write_text('true\n')
            context = lint.Context(own_programs.Repository(folder), PROGRAMS, {})
            self.assertEqual(list(lint.script_faults('./a.sh', [], '', context)), ['a.sh is not executable'])

    def test_pattern_of_ctest(self):
        self.assertFault('    ctest --test-dir build/release -R dashbords\n', 'no test has such a name')
        self.assertSound('    ctest --test-dir build/release -R dashboards\n')

    def test_program_of_a_build(self):
        self.assertFault('    build/release/bench/gone\n', 'CMake makes no program gone')

    def test_unknown_program(self):
        self.assertFault('```sh\nfrobnicate x\n```\n', 'the program "frobnicate" is not known', line=2)

    def test_function_of_the_page(self):
        self.assertSound('```sh\nissue() {\n  openssl version\n}\nissue a\n```\n')

    def test_file_of_ours_for_another_program(self):
        self.assertFault('    kubectl apply -k tests/gone\n', 'there is no tests/gone')
        self.assertFault('    docker run -v $PWD/tests/gone:/x:ro image\n', 'there is no tests/gone')
        self.assertSound('    kubectl apply -k tests/e2e\n')

    def test_unit_of_systemd(self):
        with tempfile.TemporaryDirectory() as folder:
            for unit in ('sparsebalance-coordinator.service', 'sparsebalance-worker@.service'):
                (pathlib.Path(folder) / unit).write_text('[Unit]\n')
            context = lint.Context(own_programs.Repository(folder), PROGRAMS, {})

            def faults(line):
                return [fault for command in shell_lines.commands([line])
                        for fault in lint.foreign_faults(command, '', context)]
            self.assertEqual(faults('systemctl enable --now sparsebalance-worker@0'), [])
            self.assertEqual(faults('journalctl -u sparsebalance-coordinator'), [])
            self.assertIn('there is no sparsebalance-wroker@.service',
                          faults('sudo systemctl start sparsebalance-wroker@0')[0])

    def test_quotes_that_do_not_close(self):
        self.assertFault('```sh\necho "a\n```\n', 'cannot be read as shell')

    def test_here_document(self):
        self.assertSound('```sh\ncat <<EOF | kubectl apply -f -\nfrobnicate: --gone\nEOF\nsbctl jobs\n```\n')
        self.assertFault('```sh\ncat <<EOF\nx\nEOF\nsbctl jobz\n```\n', 'no verb "jobz"', line=5)

    def test_commands_within_lists(self):
        self.assertFault('1. Do it:\n\n       sbctl jobz\n', 'no verb "jobz"', line=3)
        self.assertFault('- do it:\n\n  ```sh\n  sbctl jobz\n  ```\n', 'no verb "jobz"', line=4)


class Blocks(Faults):

    def test_that_nothing_covers(self):
        self.assertFault('text\n\n    some words of a program\n', 'nothing covers this block', line=3)
        self.assertFault('```\nsome words\n```\n', 'nothing covers this block')
        self.assertFault('```rust\nfn main() {}\n```\n', 'nothing covers this block')
        self.assertSound('```text\nsome words\n```\n')

    def test_command_that_is_fenced_as_output(self):
        self.assertFault('```text\nsbctl jobs\n```\n', 'looks like a command')

    def test_console_without_a_command(self):
        self.assertFault('```console\nsbctl jobs\nJOB\n```\n', 'without a command')

    def test_key_of_a_worker(self):
        self.assertFault('    job = "x"\n    data-paralel = 2\n', 'no flag --data-paralel', line=2)
        self.assertSound('    job = "x"      # a comment\n    data-parallel = 2\n')

    def test_configuration_of_a_coordinator_is_checked_by_it(self):
        self.assertFault('```toml\nlisten = "127.0.0.1:0"\nlease = "30 parsecs"\n```\n', '--check-config says')
        self.assertSound('```toml\nlisten = "127.0.0.1:0"\nlease = "30s"\n```\n')

    @unittest.skipUnless(shutil.which('openssl'), 'no openssl')
    def test_certificates_of_a_configuration_are_put_there(self):
        self.assertSound('```toml\nlisten = "0.0.0.0:7070"\ntls-cert = "/a"\ntls-key = "/b"\n'
                         'tls-client-ca = "/c"\nauthorization = "/d"\n```\n')

    def test_line_that_is_no_setting(self):
        self.assertFault('```toml\nlease = "30s"\nlease 30s\n```\n', 'is not NAME = VALUE', line=3)

    @unittest.skipUnless(shutil.which('openssl'), 'no openssl')
    def test_authorization_is_checked_by_the_coordinator(self):
        rule = '{"san": "dns:ops.example.org", "role": "%s", "namespaces": ["*"]}'
        block = '```json\n{"rules": [\n  // comment\n  ' + rule + '\n]}\n```\n'
        self.assertFault(block % 'oparator', '--check-config says')
        self.assertSound(block % 'operator')

    def test_json(self):
        self.assertFault('```json\n{"a": }\n```\n', 'is no JSON')

    def test_flags_of_manifests(self):
        self.assertFault('```yaml\nargs:\n  - --listne=0.0.0.0:7070\n```\n', 'knows --listne', line=3)
        self.assertSound('```yaml\nargs:\n  - --listen=0.0.0.0:7070\n```\n')
        self.assertFault('```yaml\na:\n\tb: 1\n```\n', 'no tabs')

    def test_quoted_code(self):
        real = 'int main(int argc, char** argv) {'
        quote = '<!-- from examples/trainer/trainer.cc -->\n```cpp\n%s\n```\n'
        self.assertSound(quote % real)
        self.assertFault(quote % 'int main(int argc) {', 'does not say this')
        self.assertFault(f'```cpp\n{real}\n```\n', 'code that quotes nothing')
        self.assertFault(quote.replace('trainer.cc', 'gone.cc') % real, 'which does not exist')

    def test_sketch(self):
        path = 'docs/gpu.md'
        sound = '    #include "kernels/cuda/device/device.h"\n    DevicePtr<float> x;\n'
        self.assertSound(sound, path)
        self.assertFault(sound.replace('DevicePtr', 'DevicePointer'), 'no source has the name DevicePointer',
                         path=path)
        self.assertFault('    #include "kernels/cuda/device/device.h"\n    #include "gone.h"\n',
                         'there is no gone.h', path=path)


class Parsing(unittest.TestCase):

    def commands(self, *lines):
        return [(c.line, c.program, c.arguments) for c in shell_lines.commands(list(lines))]

    def test_simple_commands_of_a_line(self):
        self.assertEqual(self.commands('a b && c "d e" | f > out; g &'),
                         [(1, 'a', ['b']), (1, 'c', ['d e']), (1, 'f', []), (1, 'g', [])])

    def test_quotes_and_comments(self):
        self.assertEqual(self.commands("a 'x # y' b#c # d"), [(1, 'a', ['x # y', 'b#c'])])

    def test_quotes_over_lines(self):
        self.assertEqual(self.commands("a '{", "}' b", 'c'), [(1, 'a', ['{\n}', 'b']), (3, 'c', [])])

    def test_loops(self):
        self.assertEqual(self.commands('for x in a b; do', '  run $x', 'done'), [(2, 'run', ['$x'])])

    def test_help_texts(self):
        text = ('Options:\n  -h,--help   Print\n  --format TEXT:{a,b}=a (Env:X_Y)  What\n'
                '  --on,--off{false}  Or not\nPositionals:\n  job TEXT REQUIRED  x\n  step UINT  y\n'
                'Subcommands:\n  jobs   All\n')
        read = own_programs.parse_help(text)
        self.assertEqual(set(read.flags), {'-h', '--help', '--format', '--on', '--off'})
        self.assertEqual(read.flags['--format'].choices, {'a', 'b'})
        self.assertFalse(read.flags['--on'].takes_value)
        self.assertEqual((read.required, read.positionals, read.verbs, read.variables),
                         (1, 2, ['jobs'], {'X_Y'}))


if __name__ == '__main__':
    unittest.main()
