// A real coordinator with the rendered configuration, and certificates that have the names of the rendered
// Certificates: who may do what.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import https from 'node:https';
import path from 'node:path';
import test from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { byKind, podsOf } from './lib/objects.mjs';
import { renderCombination } from './lib/render.mjs';
import { makePrograms, root, work } from './lib/setting.mjs';
import { COORDINATOR, WORKERS } from './lib/trees.mjs';

const folder = path.join(work, 'live');
const { objects } = await renderCombination(folder, root, 'coordinator', COORDINATOR, [
  'mtls',
  'monitoring',
  'mtls-monitoring',
]);
const jobs = (await renderCombination(folder, root, 'workers', WORKERS[0], ['recall-data', 'mtls'])).objects;
const programs = makePrograms('live-programs');
const certificate = (name) =>
  byKind([...objects, ...jobs], 'Certificate').find((c) => c.metadata.name === name).spec;

// Files of a certificate, as a Secret that is mounted would have them.
function files(spec) {
  const content = programs.authority.issue(spec);
  const place = fs.mkdtempSync(path.join(folder, 'client-'));
  for (const [name, text] of Object.entries(content))
    fs.writeFileSync(path.join(place, name), text, { mode: 0o600 });
  return place;
}
const clients = {
  operator: files(certificate('sparsebalance-operator')),
  prometheus: files(certificate('sparsebalance-prometheus')),
  trainer: files(certificate('sparsebalance-trainer')),
  stranger: files({ uris: ['spiffe://sparsebalance/stranger'], usages: ['client auth'] }),
};

const pod = podsOf(objects)[0];
const { program, args, env } = programs.prepare(pod, pod.spec.containers[0], objects);
const portFile = path.join(folder, 'ports');
const server = spawn(
  program,
  [
    ...args,
    '--listen=127.0.0.1:0',
    '--metrics-listen=127.0.0.1:0',
    '--health-listen=127.0.0.1:0',
    `--port-file=${portFile}`,
  ],
  {
    env: { ...env, SPARSEBALANCE_COORDINATOR_STORE: path.join(folder, 'coordinator.db') },
    stdio: ['ignore', 'ignore', 'pipe'],
  },
);
let log = '';
server.stderr.on('data', (data) => {
  log += data;
});
for (let i = 0; i < 300 && !fs.existsSync(portFile) && server.exitCode === null; ++i) await pause(100);
if (!fs.existsSync(portFile)) throw new Error(`the coordinator did not start: ${log}`);
const ports = Object.fromEntries(
  fs
    .readFileSync(portFile, 'utf8')
    .trim()
    .split('\n')
    .map((line) => line.split('=')),
);
test.after(async () => {
  server.kill('SIGTERM');
  if (server.exitCode === null) await once(server, 'exit');
});

// The names by which things in the cluster call it; here they all lead to one process.
const NAMES = [
  'sparsebalance-coordinator.sparsebalance.svc',
  'sparsebalance-coordinator-0.sparsebalance-coordinator-peers.sparsebalance.svc',
  'localhost',
];

function sbctl(client, name, ...verb) {
  return spawnSync(
    path.join(programs.binaries, 'sbctl'),
    [
      '--coordinator',
      `127.0.0.1:${ports.grpc}`,
      '--tls-server-name',
      name,
      '--tls-ca',
      `${clients[client]}/ca.crt`,
      '--tls-cert',
      `${clients[client]}/tls.crt`,
      '--tls-key',
      `${clients[client]}/tls.key`,
      ...verb,
    ],
    { encoding: 'utf8', timeout: 60000, env: {} },
  );
}

function metrics(client) {
  const { serverName } = byKind(objects, 'ServiceMonitor')[0].spec.endpoints[0].tlsConfig;
  const read = (name) => fs.readFileSync(path.join(clients[client], name));
  return new Promise((resolve, reject) => {
    https
      .get(
        {
          host: '127.0.0.1',
          port: ports.metrics,
          path: '/metrics',
          servername: serverName,
          ca: read('ca.crt'),
          cert: read('tls.crt'),
          key: read('tls.key'),
        },
        (response) => {
          let text = '';
          response.on('data', (data) => {
            text += data;
          });
          response.on('end', () => resolve({ status: response.statusCode, text }));
        },
      )
      .on('error', reject);
  });
}

test('an operator is answered, by every name of the coordinator', () => {
  for (const name of NAMES) {
    const { status, stderr } = sbctl('operator', name, 'jobs');
    assert.equal(status, 0, `${name}: ${stderr}`);
  }
});

test('a name that the certificate has not is not trusted', () => {
  assert.notEqual(sbctl('operator', 'coordinator.example.org', 'jobs').status, 0);
});

test('a stranger with a certificate of the CA is refused', () => {
  const { status, stderr } = sbctl('stranger', NAMES[0], 'jobs');
  assert.notEqual(status, 0);
  assert.match(stderr, /spiffe:\/\/sparsebalance\/stranger/);
});

test('a trainer may ask about its own namespace only', () => {
  // There is no such job, and that is what is said to those who may know.
  assert.match(
    sbctl('trainer', NAMES[0], 'job', 'sparsebalance/training').stderr,
    /no job|not found|unknown|NOT_FOUND/i,
  );
  const { stderr } = sbctl('trainer', NAMES[0], 'job', 'other/training');
  assert.match(stderr, /may not|PERMISSION_DENIED|denied/i);
  assert.match(stderr, /other/);
});

test('Prometheus reads metrics and shuts nothing down', async () => {
  const { status, text } = await metrics('prometheus');
  assert.equal(status, 200);
  assert.match(text, /sparsebalance_coordinator_build_info\{/);
  assert.notEqual(sbctl('prometheus', NAMES[0], 'drain').status, 0);
  assert.equal(sbctl('operator', NAMES[0], 'jobs').status, 0);
});

test('a trainer sees no metrics', async () => {
  assert.equal((await metrics('trainer')).status, 403);
});
