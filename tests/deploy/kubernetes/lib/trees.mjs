// What there is to render: the overlays, and every combination of components that makes sense.
import fs from 'node:fs';
import path from 'node:path';

// A component that cannot stand alone names what it needs. Prometheus cannot scrape HTTPS without a
// certificate, so monitoring of mutual TLS always comes with mtls-monitoring.
export const COORDINATOR = {
  base: 'deploy/kubernetes/base',
  folder: 'deploy/kubernetes/components',
  components: [
    'namespace',
    'ha',
    'etcd-tls',
    'mtls',
    'monitoring',
    'mtls-monitoring',
    'host-network-clients',
  ],
  makesSense: (has) =>
    (!has('etcd-tls') || has('ha')) && has('mtls-monitoring') === (has('mtls') && has('monitoring')),
};

// A job has one source of data.
export const WORKERS = ['cpu', 'gpu'].map((device) => ({
  base: `deploy/kubernetes/workers/${device}`,
  folder: 'deploy/kubernetes/workers/components',
  components: ['recall-data', 'storage', 'replicas', 'mtls', 'rdma', 'kueue', 'topology'],
  makesSense: (has) => has('recall-data') !== has('storage'),
}));

export const OVERLAYS = [
  { side: 'coordinator', path: 'deploy/kubernetes/overlays/quickstart', components: [] },
  {
    side: 'coordinator',
    path: 'deploy/kubernetes/overlays/production',
    components: ['ha', 'etcd-tls', 'mtls', 'monitoring'],
  },
  { side: 'workers', path: 'deploy/kubernetes/workers/overlays/quickstart', components: [] },
  {
    side: 'workers',
    path: 'deploy/kubernetes/workers/overlays/production',
    components: ['replicas', 'mtls'],
  },
  // Pods that people put beside an installation: what they mount is made by a component of it.
  {
    side: 'tool',
    path: 'deploy/kubernetes/sbctl',
    components: ['ha', 'mtls'],
    mounts: 'Secret/sparsebalance-operator-tls',
  },
  { side: 'tool', path: 'deploy/kubernetes/workers/loader', components: ['ha', 'mtls'] },
];

export function combinations(tree) {
  const found = [];
  for (let bits = 0; bits < 1 << tree.components.length; ++bits) {
    const chosen = tree.components.filter((_, i) => bits & (1 << i));
    if (tree.makesSense((name) => chosen.includes(name))) found.push(chosen);
  }
  return found;
}

// Every folder of components is one of those above, or it would never be tried.
export function forgottenComponents(root) {
  const known = new Set(
    [COORDINATOR, ...WORKERS].flatMap((t) => t.components.map((c) => `${t.folder}/${c}`)),
  );
  return [COORDINATOR.folder, WORKERS[0].folder]
    .flatMap((folder) => fs.readdirSync(path.join(root, folder)).map((name) => `${folder}/${name}`))
    .filter((name) => !known.has(name));
}

// A kustomization in `folder` that puts the pieces together, settings last.
export function writeKustomization(folder, root, base, components, settings) {
  fs.mkdirSync(folder, { recursive: true });
  const relative = (name) =>
    path.relative(fs.realpathSync(folder), path.resolve(fs.realpathSync(root), name));
  const lines = [
    'apiVersion: kustomize.config.k8s.io/v1beta1',
    'kind: Kustomization',
    'resources:',
    `  - ${relative(base)}`,
    'components:',
    ...[...components, settings].map((name) => `  - ${relative(name)}`),
  ];
  fs.writeFileSync(path.join(folder, 'kustomization.yaml'), lines.join('\n') + '\n');
}
