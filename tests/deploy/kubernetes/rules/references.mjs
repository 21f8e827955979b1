// What a pod mounts exists: made by this tree, by cert-manager, or on the list of what the user provides.
import { byKind, containersOf, nameOf, podsOf } from '../lib/objects.mjs';

function wantedBy(volume) {
  if (volume.configMap) return `ConfigMap/${volume.configMap.name}`;
  if (volume.secret) return `Secret/${volume.secret.secretName}`;
  if (volume.persistentVolumeClaim) return `PersistentVolumeClaim/${volume.persistentVolumeClaim.claimName}`;
  return null;
}

function secretsOfMonitors(objects) {
  return byKind(objects, 'ServiceMonitor').flatMap((monitor) =>
    monitor.spec.endpoints.flatMap(({ tlsConfig }) =>
      [tlsConfig?.ca?.secret, tlsConfig?.cert?.secret, tlsConfig?.keySecret]
        .filter(Boolean)
        .map((secret) => ({ owner: monitor, wanted: `Secret/${secret.name}` })),
    ),
  );
}

export function references({ objects, peers, provided }) {
  const faults = [];
  const there = new Set();
  const add = (kind, name, namespace) => there.add(`${namespace} ${kind}/${name}`);
  for (const o of objects) add(o.kind, o.metadata.name, o.metadata.namespace);
  // Trainers' certificates are signed by the issuer of the coordinator's side.
  for (const o of byKind(peers, 'Issuer')) add(o.kind, o.metadata.name, o.metadata.namespace);
  for (const c of byKind(objects, 'Certificate')) add('Secret', c.spec.secretName, c.metadata.namespace);
  const uses = secretsOfMonitors(objects);

  for (const pod of podsOf(objects)) {
    const owner = nameOf(pod.owner);
    const claims = (pod.owner.spec.volumeClaimTemplates ?? []).map((claim) => claim.metadata.name);
    const volumes = new Map([
      ...claims.map((name) => [name, {}]),
      ...(pod.spec.volumes ?? []).map((v) => [v.name, v]),
    ]);
    for (const volume of volumes.values()) {
      const wanted = wantedBy(volume);
      if (wanted) uses.push({ owner: pod.owner, wanted });
    }
    if (pod.spec.serviceAccountName)
      uses.push({ owner: pod.owner, wanted: `ServiceAccount/${pod.spec.serviceAccountName}` });
    const mounted = new Set();
    for (const container of containersOf(pod)) {
      const paths = new Set();
      for (const mount of container.volumeMounts ?? []) {
        mounted.add(mount.name);
        if (!volumes.has(mount.name))
          faults.push(`${owner}: ${container.name} mounts ${mount.name}, which is no volume`);
        if (paths.has(mount.mountPath))
          faults.push(`${owner}: ${container.name} mounts two volumes at ${mount.mountPath}`);
        paths.add(mount.mountPath);
        // A subPath never changes, so renewed certificates and rules would not be seen.
        if (mount.subPath) faults.push(`${owner}: ${container.name} mounts a subPath of ${mount.name}`);
      }
    }
    for (const name of volumes.keys())
      if (!mounted.has(name)) faults.push(`${owner}: nothing mounts the volume ${name}`);
  }
  for (const certificate of byKind(objects, 'Certificate')) {
    uses.push({ owner: certificate, wanted: `Issuer/${certificate.spec.issuerRef.name}` });
  }
  for (const { owner, wanted } of uses) {
    if (!there.has(`${owner.metadata.namespace} ${wanted}`) && !provided.has(wanted)) {
      faults.push(`${nameOf(owner)}: ${wanted} is neither here nor on the list of what the user provides`);
    }
  }
  return faults;
}
