// What init containers do is done by the real program.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { podsOf, processOf } from './lib/objects.mjs';
import { renderCombination } from './lib/render.mjs';
import { makePrograms, root, work } from './lib/setting.mjs';
import { WORKERS } from './lib/trees.mjs';

const folder = path.join(work, 'verbs');

test('the recall data set is where the worker looks for it, and fits its volume', async () => {
  const { objects } = await renderCombination(folder, root, 'workers', WORKERS[0], ['recall-data']);
  const pod = podsOf(objects)[0];
  const programs = makePrograms('verbs-programs');
  const data = path.join(folder, 'data');
  fs.mkdirSync(data);
  const [init] = pod.spec.initContainers;
  const args = processOf(pod, init).args.map((arg) => arg.replace('/data/', `${data}/`));
  const result = spawnSync(programs.programOf(init.image), args, { encoding: 'utf8', env: {} });
  assert.equal(result.status, 0, result.stderr);
  const { env } = processOf(pod, pod.spec.containers[0]);
  const prefix = env.SPARSEBALANCE_DATASET.replace('/data/', `${data}/`);
  for (const end of ['.bin', '.idx']) assert.ok(fs.existsSync(prefix + end), prefix + end);
  const size = fs.readdirSync(data).reduce((sum, name) => sum + fs.statSync(path.join(data, name)).size, 0);
  assert.ok(size < 512 << 20, `${size} bytes`);
});
