"""What the pages may show that is not ours to check, each with its reason."""

# Programs of others. "Checked" here means by us: paths and files of ours that they are given are looked
# up whatever the program.
FOREIGN = {
    'apt': "Debian's; installs packages, which a test must not",
    'apt-get': "Debian's; installs packages, which a test must not",
    'dpkg': "Debian's; installs packages, which a test must not",
    'cmake': "CMake's; its presets are run by every build",
    'curl': 'asks a server that the reader runs; the walk-through calls it where the address is known',
    'df': 'of the system',
    'docker': 'needs a container engine, which a test machine need not have',
    'etcdctl': 'asks an etcd that the reader runs',
    'git': 'works on the clone of the reader',
    'grafana': 'is no package of Debian',
    'journalctl': 'needs systemd',
    'kind': 'makes a cluster out of containers',
    'kubectl': 'needs a cluster; the files that it is given are looked up here',
    'openssl': "of the system; docs/security.md's commands are run by the walk-through",
    'prometheus': 'stays in the foreground; promtool checks its files in tests/dashboards',
    'promtool': 'run by tests/dashboards',
    'protoc': 'run by the walk-through where it is installed',
    'python3': 'runs what it is given; scripts of ours are looked up here',
    'systemctl': 'needs systemd',
}

SHELL = {'cat', 'cd', 'chmod', 'chown', 'cp', 'echo', 'export', 'grep', 'head', 'install', 'kill', 'ls',
         'mkdir', 'mv', 'nproc', 'printf', 'rm', 'set', 'sleep', 'tail', 'tee', 'test', 'true', 'umask',
         'unset', 'wait', 'watch'}

# Flags of others that pages name in their text.
FOREIGN_FLAGS = {
    '--auto-compaction-retention': 'etcd',
    '--no-install-recommends': 'apt-get',
    '--quota-backend-bytes': 'etcd',
}
FOREIGN_FLAG_PREFIXES = {'--benchmark_': 'Google Benchmark', '--gtest_': 'GoogleTest'}

# Pages may send readers to these.
HOSTS = {'127.0.0.1', 'localhost', 'arxiv.org', 'jobset.sigs.k8s.io', 'keepachangelog.com',
         'kind.sigs.k8s.io', 'kubernetes.io', 'prometheus.io', 'semver.org', 'www.debian.org'}

# Blocks that are indented, show no commands and are no TOML: (page, how the first line begins). A new
# one is better fenced as ```text.
OUTPUTS = {
    ('README.md', 'packed 1113 documents'): "output of `./run demo`, as it was measured",
    ('docs/accuracy.md', 'Accuracy at equal steps'): "output of `./run bench --accuracy`, as measured",
    ('docs/fine-tuning.md', 'training 54080 parameters'): 'a line of a log',
    ('docs/models.md', 'sparsebalance-worker: --hidden-size'): 'a message',
}

# Code that is a sketch and quotes no file: its includes must exist, and its names occur in sources.
SKETCHES = {
    ('docs/gpu.md', '#include "kernels/cuda/device/device.h"'): 'a kernel as one would write it',
    ('docs/gpu.md', 'for (const Order order'): 'a test as one would write it',
}
# Names in sketches that are made up.
SKETCH_NAMES = {'Scale'}
