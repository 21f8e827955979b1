// kubectl's kustomize, and what it gives as plain objects.
import { execFile } from 'node:child_process';
import path from 'node:path';
import { promisify } from 'node:util';
import YAML from 'yaml';
import { COORDINATOR, OVERLAYS, WORKERS, combinations, writeKustomization } from './trees.mjs';

const run = promisify(execFile);
const SETTINGS = 'deploy/kubernetes/settings';

export async function render(folder) {
  const { stdout } = await run('kubectl', ['kustomize', folder], { maxBuffer: 64 << 20 });
  return YAML.parseAllDocuments(stdout).map((document) => document.toJS());
}

export async function renderCombination(work, root, side, tree, components, settings = SETTINGS) {
  const name = [path.basename(tree.base), ...components].join('+');
  const folder = path.join(work, side, name);
  writeKustomization(
    folder,
    root,
    tree.base,
    components.map((c) => `${tree.folder}/${c}`),
    settings,
  );
  return { name: `${side}: ${name}`, side, components, objects: await render(folder) };
}

// All of them, a few at a time.
export async function renderAll(work, root) {
  const wanted = OVERLAYS.map((o) => async () => ({
    ...o,
    name: o.path,
    objects: await render(path.join(root, o.path)),
  }));
  for (const [side, trees] of [
    ['coordinator', [COORDINATOR]],
    ['workers', WORKERS],
  ]) {
    for (const tree of trees) {
      for (const chosen of combinations(tree)) {
        wanted.push(() => renderCombination(work, root, side, tree, chosen));
      }
    }
  }
  const done = new Array(wanted.length);
  let next = 0;
  await Promise.all(
    [0, 1].map(async () => {
      while (next < wanted.length) {
        const mine = next++;
        done[mine] = await wanted[mine]();
      }
    }),
  );
  return done;
}

// The other side of an installation: it has mutual TLS and replicas where this one has.
export function counterpart(rendering, all) {
  const other = { coordinator: 'workers', workers: 'coordinator', tool: 'coordinator' }[rendering.side];
  const mtls = rendering.components.includes('mtls');
  const replicas = rendering.components.some((c) => c === 'ha' || c === 'replicas');
  const found = all.find(
    (r) =>
      r.side === other &&
      r.components.includes('mtls') === mtls &&
      r.components.some((c) => c === 'ha' || c === 'replicas') === replicas,
  );
  return found?.objects ?? [];
}
