// What the pages show of Kubernetes is right: objects fit their schemas, patches their targets, folders exist.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import YAML from 'yaml';
import { Schemas } from './lib/schemas.mjs';
import { definitions, provided, root, work } from './lib/setting.mjs';

const PAGES = ['docs/kubernetes.md', 'deploy/kubernetes/README.md'];
const OVERLAYS = ['deploy/kubernetes/overlays/production', 'deploy/kubernetes/workers/overlays/production'];
const texts = PAGES.map((page) => fs.readFileSync(path.join(root, page), 'utf8'));
const blocks = texts.flatMap((text) => [...text.matchAll(/^```yaml\n([\s\S]*?)^```/gm)].map((m) => m[1]));
const documents = blocks.flatMap((block) => YAML.parseAllDocuments(block).map((d) => d.toJS()));

test('objects fit their schemas', () => {
  const objects = documents.filter((d) => d.kind && d.kind !== 'Kustomization');
  assert.ok(objects.length >= 2);
  assert.deepEqual(new Schemas(definitions).faults(objects), []);
});

// An overlay of the reader's that has one of ours below it. A single-sided patch finds its target there and
// changes something.
test('patches change the overlays that they are for', () => {
  const plain = [...OVERLAYS, 'deploy/kubernetes/overlays/quickstart'].map((overlay) => [
    overlay,
    renderWith(overlay, []),
  ]);
  const patches = documents.filter((d) => d.patches && !d.kind).flatMap((d) => d.patches);
  assert.ok(patches.length >= 4);
  for (const patch of patches) {
    const changed = plain.filter(([overlay, before]) => {
      const found = YAML.parseAllDocuments(before)
        .map((d) => d.toJS())
        .some(
          (o) =>
            o.kind === patch.target.kind && (!patch.target.name || o.metadata.name === patch.target.name),
        );
      // Replicas on etcd have no volume to patch.
      if (
        !found ||
        (patch.patch.includes('volumeClaimTemplates') && !before.includes('volumeClaimTemplates'))
      )
        return false;
      return renderWith(overlay, [patch]) !== before;
    });
    assert.ok(changed.length > 0, JSON.stringify(patch));
  }
});

function renderWith(overlay, patches) {
  const folder = path.join(work, 'docs');
  fs.mkdirSync(folder, { recursive: true });
  const resources = [path.relative(fs.realpathSync(folder), path.join(fs.realpathSync(root), overlay))];
  fs.writeFileSync(path.join(folder, 'kustomization.yaml'), YAML.stringify({ resources, patches }));
  return execFileSync('kubectl', ['kustomize', folder], { encoding: 'utf8', maxBuffer: 64 << 20 });
}

test('folders that are applied exist', () => {
  const folders = texts.flatMap((text) =>
    [...text.matchAll(/apply -k (\S+)/g)].map((m) => m[1]).filter((f) => f.includes('/')),
  );
  assert.ok(folders.length >= 5);
  for (const folder of folders)
    assert.ok(fs.existsSync(path.join(root, folder, 'kustomization.yaml')), folder);
});

test('every folder of the tree is in its README', () => {
  const readme = texts[1];
  for (const folder of ['components', 'workers/components']) {
    for (const name of fs.readdirSync(path.join(root, 'deploy/kubernetes', folder))) {
      assert.ok(readme.includes(`/${name}\``), `${folder}/${name}`);
    }
  }
});

test('the list of what the user provides is read', () => {
  assert.deepEqual([...provided], ['Secret/sparsebalance-etcd-client']);
});
