// Names and sizes stand in deploy/kubernetes/settings and nowhere else: with a copy in which each has another
// value, all of the new values are rendered and none of the old ones.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import YAML from 'yaml';
import { render, renderCombination } from './lib/render.mjs';
import { root, version, work } from './lib/setting.mjs';
import { COORDINATOR, OVERLAYS, WORKERS } from './lib/trees.mjs';

const folder = path.join(work, 'settings');
const original = path.join(root, 'deploy/kubernetes/settings');
const copy = path.join(folder, 'settings');
fs.cpSync(original, copy, { recursive: true });

const isNumber = (text) => /^\d+$/.test(text);
let next = 701;
// A new value of the same form, which occurs nowhere else.
function other(key, value) {
  if (isNumber(value)) return String(next++);
  if (/^\d+[GT]i$/.test(value)) return `${next++}Gi`;
  if (key === 'etcd-endpoints') return `etcd${next++}.example.org:2379`;
  if (key === 'machine-network') return `10.9.${next++ % 256}.0/24`;
  return `${key}-${next++}`;
}

const documents = YAML.parseAllDocuments(fs.readFileSync(path.join(original, 'settings.yaml'), 'utf8'));
const changed = [];
for (const document of documents) {
  for (const { key, value } of document.get('data').items) {
    const name = `${document.getIn(['metadata', 'name'])}: ${key.value}`;
    changed.push({ name, before: value.value, after: other(key.value, value.value) });
    value.value = changed.at(-1).after;
  }
}
fs.writeFileSync(
  path.join(copy, 'settings.yaml'),
  documents.map(String).join('---\n').replaceAll('---\n---\n', '---\n'),
);

const trees = (workers) => [
  ['coordinator', COORDINATOR, ['namespace', 'host-network-clients']],
  ['coordinator', COORDINATOR, COORDINATOR.components],
  ...WORKERS.flatMap((tree) =>
    ['recall-data', 'storage'].map((data) => [
      workers,
      tree,
      tree.components.filter((c) => c === data || !['recall-data', 'storage'].includes(c)),
    ]),
  ),
];
const renderedWith = async (name, settings) => {
  const all = [];
  for (const [side, tree, components] of trees('workers')) {
    all.push(
      ...(await renderCombination(path.join(folder, name), root, side, tree, components, settings)).objects,
    );
  }
  return all;
};
const after = await renderedWith('after', path.relative(root, copy));

// Every scalar of objects; parts of a text that stand between separators count, because addresses and names in
// certificates hold namespaces.
function scalars(value) {
  if (value !== null && typeof value === 'object') return Object.values(value).flatMap(scalars);
  return [String(value), ...String(value).split(/[./,:=]/)];
}

test('every new value is rendered', () => {
  const found = new Set(scalars(after));
  assert.deepEqual(
    changed.filter((s) => !found.has(s.after)).map((s) => s.name),
    [],
  );
});

test('numbers stay numbers', () => {
  for (const set of after.filter((o) => o.kind === 'JobSet')) {
    const job = set.spec.replicatedJobs[0].template.spec;
    for (const value of [job.parallelism, job.completions, job.template.spec.terminationGracePeriodSeconds]) {
      assert.equal(typeof value, 'number');
    }
  }
});

test('no object keeps the old namespace, job, claim or Secret', () => {
  const names = [
    'names: coordinator-namespace',
    'names: job',
    'names: data-claim',
    'names: checkpoints-claim',
    'names: etcd-secret',
  ];
  const olds = new Set(changed.filter((s) => names.includes(s.name)).map((s) => s.before));
  const namesIn = (o) => [
    o.metadata.namespace,
    o.metadata.labels?.['app.kubernetes.io/instance'],
    o.kind === 'Namespace' || o.kind === 'JobSet' ? o.metadata.name : '',
    ...(
      JSON.stringify(o.spec ?? {}).match(
        /"(claimName|secretName|app\.kubernetes\.io\/instance|namespace)":"[^"]*"/g,
      ) ?? []
    ).map((m) => m.split('"')[3]),
    ...(JSON.stringify(o.spec ?? {}).match(/[\w*-]+\.[\w-]+\.svc/g) ?? []).map((m) => m.split('.')[1]),
    ...(JSON.stringify(o.spec ?? {}).match(/\/ns\/[\w-]+\//g) ?? []).map((m) => m.split('/')[2]),
  ];
  const left = after.flatMap((o) =>
    namesIn(o)
      .filter((name) => olds.has(name))
      .map((name) => `${o.kind}/${o.metadata.name}: ${name}`),
  );
  assert.deepEqual(left, []);
});

test('placeholders of the bases are gone', () => {
  const text = JSON.stringify(after);
  for (const name of [
    '"trainer-namespace"',
    '"monitoring-namespace"',
    '"etcd-endpoints"',
    'etcd-client-secret',
    '"dataset"',
    '"kueue.x-k8s.io/queue-name":"queue"',
    '"interface"',
    '0.0.0.0/32',
  ]) {
    assert.ok(!text.includes(name), `${name} is still there`);
  }
});

test('images come from settings, with the version of CMake', async () => {
  const { images } = YAML.parse(fs.readFileSync(path.join(original, 'kustomization.yaml'), 'utf8'));
  for (const image of images) assert.equal(image.newTag, version, image.name);
  const file = path.join(copy, 'kustomization.yaml');
  fs.writeFileSync(
    file,
    fs
      .readFileSync(file, 'utf8')
      .replace(/newName: /g, 'newName: registry.example.org/team/')
      .replaceAll(version, '7.8.9'),
  );
  const moved = await renderedWith('moved', path.relative(root, copy));
  const found = JSON.stringify(moved).match(/"image":"[^"]*"/g);
  assert.ok(found.length > 5);
  for (const image of found)
    assert.match(image, /"registry\.example\.org\/team\/sparsebalance-[a-z-]+:7\.8\.9"/);
});

test('settings come last in every overlay, and nothing of them is applied', async () => {
  for (const { path: overlay } of OVERLAYS) {
    const { components } = YAML.parse(
      fs.readFileSync(path.join(root, overlay, 'kustomization.yaml'), 'utf8'),
    );
    assert.match(components.at(-1), /\/settings$/, overlay);
    const objects = await render(path.join(root, overlay));
    assert.deepEqual(
      objects.filter((o) => o.metadata.annotations?.['config.kubernetes.io/local-config']),
      [],
      overlay,
    );
  }
});
