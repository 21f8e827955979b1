// Of the coordinator alone: probes, its shutdown, how many there may be, and where it listens.
import YAML from 'yaml';
import { byKind, nameOf, podsOf } from '../lib/objects.mjs';

// name = value of a TOML file that has no tables, which is what our programs read.
export function tomlValues(text) {
  const values = {};
  for (const line of text.split('\n')) {
    const found = /^\s*([\w-]+)\s*=\s*("[^"]*"|[^#]+)/.exec(line);
    if (found) values[found[1]] = YAML.parse(found[2].trim());
  }
  return values;
}

const secondsOf = (text) => {
  const found = /^(\d+)(ms|s|m|h)$/.exec(text ?? '');
  return found ? Number(found[1]) * { ms: 0.001, s: 1, m: 60, h: 3600 }[found[2]] : NaN;
};

function probeFaults(container, healthPort) {
  const faults = [];
  const wanted = {
    startupProbe: undefined,
    readinessProbe: 'sparsebalance.v1.Coordinator',
    livenessProbe: undefined,
  };
  for (const [probe, service] of Object.entries(wanted)) {
    const grpc = container[probe]?.grpc;
    if (!grpc) faults.push(`has no ${probe} by gRPC`);
    else if (grpc.port !== healthPort)
      faults.push(`${probe} asks port ${grpc.port}, health is on ${healthPort}`);
    else if ((grpc.service || undefined) !== service)
      faults.push(`${probe} asks for the service ${grpc.service}`);
  }
  const { periodSeconds = 10, failureThreshold = 3 } = container.startupProbe ?? {};
  if (periodSeconds * failureThreshold < 300)
    faults.push('a large database has less than five minutes to be checked');
  return faults;
}

export function coordinator({ objects }) {
  const faults = [];
  for (const pod of podsOf(objects).filter((p) => p.owner.kind === 'StatefulSet')) {
    const owner = nameOf(pod.owner);
    const say = (fault) => faults.push(`${owner}: ${fault}`);
    const config = pod.spec.volumes
      .map((v) => byKind(objects, 'ConfigMap').find((c) => c.metadata.name === v.configMap?.name))
      .find((c) => c?.data['coordinator.toml']);
    if (!config) {
      say('has no coordinator.toml');
      continue;
    }
    const values = tomlValues(config.data['coordinator.toml']);
    const container = pod.spec.containers[0];
    const healthPort = Number(values['health-listen']?.split(':').pop());
    probeFaults(container, healthPort).forEach(say);
    for (const [flag, name] of [
      ['listen', 'grpc'],
      ['metrics-listen', 'status'],
      ['health-listen', 'health'],
    ]) {
      const declared = container.ports.find((p) => p.name === name)?.containerPort;
      if (Number(values[flag]?.split(':').pop()) !== declared)
        say(`${flag} is ${values[flag]}, and the port ${name} is ${declared}`);
    }
    if (!(pod.spec.terminationGracePeriodSeconds >= secondsOf(values['drain-timeout']) + 10)) {
      say(
        `is killed after ${pod.spec.terminationGracePeriodSeconds} s, with a drain-timeout of ${values['drain-timeout']}`,
      );
    }
    const env = Object.fromEntries(container.env.map((e) => [e.name, e.value]));
    const onEtcd = env.SPARSEBALANCE_COORDINATOR_STORE?.startsWith('etcd://');
    if (!onEtcd && pod.owner.spec.replicas !== 1) say('several replicas, and each has a file of its own');
    if (!onEtcd && !pod.owner.spec.volumeClaimTemplates?.length) say('its file is on no volume');
    if (onEtcd && pod.owner.spec.volumeClaimTemplates) say('claims a volume that it does not use');
    if (onEtcd && !pod.spec.affinity?.podAntiAffinity) say('replicas may share a machine');
    const budget = byKind(objects, 'PodDisruptionBudget')[0];
    if (budget?.spec.maxUnavailable !== 1) say('the budget is not one pod at a time');
    const egress =
      byKind(objects, 'NetworkPolicy').find((n) => n.spec.policyTypes.includes('Egress'))?.spec.egress ?? [];
    const open = egress.flatMap((r) => r.ports ?? []).map((p) => p.port);
    const ports = onEtcd ? env.ETCD_ENDPOINTS.split(',').map((e) => Number(e.split(':').pop())) : [];
    if (ports.some((port) => !open.includes(port)))
      say(`etcd is on port ${ports}, and the policy lets out to ${open}`);
    const mtls = env.SPARSEBALANCE_COORDINATOR_TLS_CERT !== undefined;
    for (const monitor of byKind(objects, 'ServiceMonitor')) {
      if (monitor.spec.endpoints.some((e) => e.scheme !== (mtls ? 'https' : 'http')))
        say('is scraped by the wrong scheme');
    }
  }
  return faults;
}
