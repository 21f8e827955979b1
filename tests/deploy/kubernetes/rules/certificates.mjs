// Certificates and the authorization file agree, and the coordinator's has every name by which it is called.
import { grants, namesOf, parseRules } from '../lib/authorization.mjs';
import { byKind, coordinatorAddresses, nameOf } from '../lib/objects.mjs';

// What each Certificate of ours is for. One that is not here has not been thought about.
const EXPECTED = {
  'sparsebalance-coordinator': () => [],
  'sparsebalance-operator': () => ['operator in *'],
  'sparsebalance-prometheus': () => ['reader in *'],
  'sparsebalance-trainer': (namespace) => [`node in ${namespace}`],
};

const covers = (pattern, host) =>
  pattern === host ||
  (pattern.startsWith('*.') && host.slice(host.indexOf('.')) === pattern.slice(1) && host.indexOf('.') > 0);

function usageFaults(certificate) {
  const wanted = certificate.spec.dnsNames ? 'server auth' : 'client auth';
  return certificate.spec.usages?.includes(wanted) ? [] : [`is not for ${wanted}`];
}

export function certificates({ objects, peers }) {
  const faults = [];
  const all = [...objects, ...peers];
  const file = byKind(all, 'ConfigMap').find((c) => c.data?.['authorization.json']);
  const leaves = byKind(objects, 'Certificate').filter((c) => !c.spec.isCA);
  if (leaves.length > 0 && !file) return ['there are Certificates and no authorization file'];
  for (const certificate of leaves) {
    const { name, namespace } = certificate.metadata;
    const expected = EXPECTED[name]?.(namespace);
    const granted = grants(parseRules(file.data['authorization.json']), namesOf(certificate));
    if (!expected) faults.push(`${nameOf(certificate)}: nobody has said what it is for`);
    else if (String(granted) !== String(expected))
      faults.push(`${nameOf(certificate)}: is granted [${granted}], not [${expected}]`);
    usageFaults(certificate).forEach((fault) => faults.push(`${nameOf(certificate)}: ${fault}`));
  }
  const server = byKind(all, 'Certificate').find((c) => c.metadata.name === 'sparsebalance-coordinator');
  const called = coordinatorAddresses(all);
  for (const monitor of byKind(all, 'ServiceMonitor')) {
    for (const { tlsConfig } of monitor.spec.endpoints)
      if (tlsConfig) called.push({ by: nameOf(monitor), address: `${tlsConfig.serverName}:7071` });
  }
  for (const { by, address } of server ? called : []) {
    const host = address.slice(0, address.lastIndexOf(':'));
    if (!server.spec.dnsNames.some((pattern) => covers(pattern, host)))
      faults.push(`${by}: calls ${host}, which is no name of the coordinator's certificate`);
  }
  return faults;
}

// Addresses lead to Services, and those of single replicas to replicas that there are.
export function addresses({ objects, peers }) {
  const faults = [];
  const all = [...objects, ...peers];
  for (const { by, address } of coordinatorAddresses(all)) {
    const [host, port] = address.split(':');
    const labels = host.split('.');
    const [service, namespace, svc] = labels.slice(-3);
    const found = byKind(all, 'Service').find(
      (s) => s.metadata.name === service && s.metadata.namespace === namespace,
    );
    const set = byKind(all, 'StatefulSet').find((s) => s.spec.serviceName === service);
    const pods = Array.from({ length: set?.spec.replicas ?? 0 }, (_, i) => `${set.metadata.name}-${i}`);
    if (svc !== 'svc' || !found) faults.push(`${by}: calls ${host}, which is no Service`);
    else if (!found.spec.ports.some((p) => p.port === Number(port)))
      faults.push(`${by}: calls port ${port} of ${service}, which it does not have`);
    if (labels.length === 4 && !pods.includes(labels[0]))
      faults.push(`${by}: calls ${labels[0]}, which is no pod`);
  }
  return faults;
}
