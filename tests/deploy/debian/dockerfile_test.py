"""The reader of Dockerfiles refuses what it would misread, and carries out what it knows."""

import pathlib
import sys
import tempfile
import unittest

import dockerfile


class FakeRoot:
    """Notes what would be run inside."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.ran = []

    def copy(self, path):
        copy = FakeRoot(path)
        copy.ran = list(self.ran)
        return copy

    def run(self, arguments, cwd=None, binds=(), environment=()):
        self.ran.append((arguments[-1], cwd, list(binds), dict(environment)))


class ParseTest(unittest.TestCase):

    def test_stages_have_their_instructions_with_continuations_joined(self):
        stages = dockerfile.parse('ARG D=debian:bookworm-slim\n'
                                  '# a comment\n'
                                  'FROM ${D} AS one\n'
                                  'RUN a \\\n'
                                  '    # why b\n'
                                  ' && b\n'
                                  'FROM one AS two\n')
        self.assertEqual(list(stages), ['one', 'two'])
        self.assertEqual(stages['one'].base, 'debian:bookworm-slim')
        self.assertEqual([(i, t.split()) for _, i, t in stages['one'].instructions],
                         [('RUN', ['a', '&&', 'b'])])

    def test_an_instruction_that_is_not_known_is_an_error_with_its_line(self):
        with self.assertRaisesRegex(dockerfile.DockerfileError, 'line 2: HEALTHCHECK'):
            dockerfile.parse('FROM a AS b\nHEALTHCHECK CMD x\n')

    def test_a_stage_needs_a_name(self):
        with self.assertRaisesRegex(dockerfile.DockerfileError, 'has no name'):
            dockerfile.parse('FROM debian:bookworm\n')


class BuildTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.roots = pathlib.Path(folder.name)
        (self.roots / 'file').write_text('text')

    def build(self, text, name):
        builder = dockerfile.Builder(dockerfile.parse(text), FakeRoot(self.roots / 'base'),
                                     lambda source: [(self.roots / source, source)], self.roots)
        return builder.build(name)

    def test_a_stage_goes_on_from_the_one_it_names(self):
        image = self.build('FROM debian:bookworm-slim AS one\n'
                           'ENV A=1 B="2 3"\n'
                           'WORKDIR /work\n'
                           'RUN first\n'
                           'FROM one AS two\n'
                           'USER 10001:10001\n'
                           'RUN second ${A}\n'
                           'ENTRYPOINT ["/bin/x", "y"]\n', 'two')
        self.assertEqual([run[0] for run in image.root.ran], ['first', 'second 1'])
        self.assertEqual(image.root.ran[1][1], '/work')
        self.assertEqual(image.root.ran[1][3], {'A': '1', 'B': '2 3'})
        self.assertEqual((image.user, image.entrypoint), ('10001:10001', ['/bin/x', 'y']))

    def test_files_of_the_context_are_copied_to_the_folder(self):
        image = self.build('FROM debian:bookworm-slim AS one\nWORKDIR /s\nCOPY file ./\n', 'one')
        self.assertEqual((image.root.path / 's/file').read_text(), 'text')

    def test_a_bind_shows_a_folder_of_another_stage(self):
        image = self.build('FROM debian:bookworm-slim AS one\n'
                           'FROM debian:bookworm-slim AS two\n'
                           'RUN --mount=type=bind,from=one,source=/out,target=/in use /in\n', 'two')
        self.assertEqual(image.root.ran[0][0], 'use /in')
        self.assertEqual(image.root.ran[0][2], [(self.roots / 'one/out', '/in', False)])

    def test_what_only_an_engine_can_do_is_an_error(self):
        for text in ('ADD https://example.org/x /x', 'COPY --from=a b c',
                     'RUN --mount=type=secret,id=x y'):
            with self.assertRaises(dockerfile.DockerfileError):
                self.build(f'FROM debian:bookworm-slim AS one\n{text}\n', 'one')

    def test_another_distribution_is_an_error(self):
        with self.assertRaisesRegex(dockerfile.DockerfileError, 'no Debian 12'):
            self.build('FROM alpine:3 AS one\n', 'one')


if __name__ == '__main__':
    sys.exit(unittest.main())
