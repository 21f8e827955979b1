// Where this test finds things; kubernetes_test.sh sets the environment.
import fs from 'node:fs';
import path from 'node:path';
import { Authority, Programs } from './programs.mjs';

export const root = process.env.SPARSEBALANCE_ROOT;
export const work = process.env.SPARSEBALANCE_WORK;
export const definitions = process.env.SPARSEBALANCE_CRDS;

const read = (name) => fs.readFileSync(path.join(root, name), 'utf8');

// The project's version, as CMake has it.
export const version = /project\([^)]*\bVERSION\s+([\d.]+)/.exec(read('CMakeLists.txt'))[1];

// The rows of "What you provide" in docs/kubernetes.md: `Kind/name` in the first column.
export const provided = new Set(
  [
    ...read('docs/kubernetes.md').matchAll(/^\| `((?:Secret|ConfigMap|PersistentVolumeClaim)\/[\w-]+)`/gm),
  ].map((m) => m[1]),
);

export const makePrograms = (name) => {
  const folder = path.join(work, name);
  fs.rmSync(folder, { recursive: true, force: true });
  return new Programs(process.env.SPARSEBALANCE_BIN_DIR, folder, new Authority(path.join(folder, 'pki')));
};
