// The real programs, with the arguments, environment and files that a container of theirs would have.
import { execFileSync, spawnSync } from 'node:child_process';
import crypto from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { byKind, nameOf, processOf } from './objects.mjs';

const digest = (value) =>
  crypto.createHash('sha256').update(JSON.stringify(value)).digest('hex').slice(0, 16);

// A CA of the test and certificates that bear the names of rendered Certificates.
export class Authority {
  constructor(folder) {
    this.folder = folder;
    fs.mkdirSync(folder, { recursive: true });
    this.openssl(
      'req',
      '-x509',
      '-newkey',
      'ec',
      '-pkeyopt',
      'ec_paramgen_curve:P-256',
      '-nodes',
      '-days',
      '2',
      '-subj',
      '/CN=test CA',
      '-keyout',
      'ca.key',
      '-out',
      'ca.crt',
    );
  }

  openssl(...args) {
    execFileSync('openssl', args, { cwd: this.folder, stdio: ['ignore', 'ignore', 'pipe'] });
  }

  // The content of the Secret that cert-manager would make.
  issue({ dnsNames = [], uris = [], usages = [] }) {
    const names = [...dnsNames.map((n) => `DNS:${n}`), ...uris.map((n) => `URI:${n}`)].join(',');
    const purposes = usages
      .filter((u) => u.endsWith(' auth'))
      .map((u) => u.replace(' auth', 'Auth'))
      .join(',');
    const name = digest([names, purposes]);
    const read = (file) => fs.readFileSync(path.join(this.folder, file), 'utf8');
    if (!fs.existsSync(path.join(this.folder, `${name}.crt`))) {
      const lines = ['basicConstraints=CA:FALSE', `extendedKeyUsage=${purposes}`, `subjectAltName=${names}`];
      fs.writeFileSync(path.join(this.folder, `${name}.ext`), lines.join('\n') + '\n');
      this.openssl(
        'req',
        '-newkey',
        'ec',
        '-pkeyopt',
        'ec_paramgen_curve:P-256',
        '-nodes',
        '-subj',
        '/',
        '-keyout',
        `${name}.key`,
        '-out',
        `${name}.csr`,
      );
      this.openssl(
        'x509',
        '-req',
        '-in',
        `${name}.csr`,
        '-CA',
        'ca.crt',
        '-CAkey',
        'ca.key',
        '-CAcreateserial',
        '-days',
        '1',
        '-extfile',
        `${name}.ext`,
        '-out',
        `${name}.crt`,
      );
    }
    return { 'ca.crt': read('ca.crt'), 'tls.crt': read(`${name}.crt`), 'tls.key': read(`${name}.key`) };
  }
}

// Files and programs for containers. `folder` gets what they mount.
export class Programs {
  constructor(binaries, folder, authority) {
    this.binaries = binaries;
    this.folder = folder;
    this.authority = authority;
    this.tried = new Map();
    this.variables = new Map();
  }

  programOf(image) {
    const name = /([^/]+):[^:]+$/.exec(image)[1].replace(/-cuda$/, '');
    return path.join(this.binaries, name);
  }

  // The environment variables that a program reads, as its help says.
  variablesOf(program) {
    if (!this.variables.has(program)) {
      const help = execFileSync(program, ['--help'], { encoding: 'utf8', env: {} });
      this.variables.set(program, new Set([...help.matchAll(/\(Env:(\w+)\)/g)].map((m) => m[1])));
    }
    return this.variables.get(program);
  }

  contentOf(volume, objects) {
    if (volume?.configMap)
      return byKind(objects, 'ConfigMap').find((c) => c.metadata.name === volume.configMap.name)?.data;
    if (!volume?.secret) return undefined;
    const certificate = byKind(objects, 'Certificate').find(
      (c) => c.spec.secretName === volume.secret.secretName,
    );
    return this.authority.issue(
      certificate?.spec ?? { dnsNames: ['provided.example.org'], usages: ['client auth'] },
    );
  }

  // { program, args, env } of a container, with paths of its mounts in `folder`.
  prepare(pod, container, objects) {
    const { args, env } = processOf(pod, container);
    const moved = [];
    for (const { name, mountPath } of container.volumeMounts ?? []) {
      const content = this.contentOf(
        (pod.spec.volumes ?? []).find((v) => v.name === name),
        objects,
      );
      if (!content) continue;
      const place = path.join(this.folder, digest(content));
      fs.mkdirSync(place, { recursive: true });
      for (const [file, text] of Object.entries(content))
        fs.writeFileSync(path.join(place, file), text, { mode: 0o600 });
      moved.push([`${mountPath}/`, `${place}/`]);
    }
    const move = (text) => moved.reduce((t, [from, to]) => t.replaceAll(from, to), text);
    return {
      program: this.programOf(container.image),
      args: args.map(move),
      env: Object.fromEntries(Object.entries(env).map(([k, v]) => [k, move(v ?? '')])),
    };
  }

  // What a program says about a configuration that it cannot use, else nothing.
  complaint({ program, args, env }) {
    const key = digest([program, args, env]);
    if (!this.tried.has(key)) {
      const result = spawnSync(program, [...args, '--check-config'], {
        env,
        encoding: 'utf8',
        timeout: 60000,
      });
      this.tried.set(
        key,
        result.status === 0
          ? null
          : `${result.error ?? ''}${result.stderr}`.trim() || `exit code ${result.status}`,
      );
    }
    return this.tried.get(key);
  }
}

export const describe = (pod, container) => `${nameOf(pod.owner)}: ${container.name}`;
