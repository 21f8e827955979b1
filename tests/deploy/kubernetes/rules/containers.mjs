// Images, sizes and privileges of every container.
import { byKind, containersOf, nameOf, podsOf } from '../lib/objects.mjs';

// What a host network or RDMA needs is asked for by a component; nothing else may ask for it.
const CAPABILITIES = ['IPC_LOCK'];

function imageFaults(image, version) {
  const tag = /:([^/:]+)$/.exec(image ?? '')?.[1];
  if (tag === undefined) return [`image ${image} has no tag`];
  if (tag === 'latest') return [`image ${image} is the latest, whatever that is`];
  const ours = /(^|\/)sparsebalance-[^/:]+:/.test(image);
  return ours && tag !== version ? [`image ${image} is not of this version (${version})`] : [];
}

function resourceFaults({ requests = {}, limits = {} } = {}) {
  const faults = [];
  for (const name of ['cpu', 'memory']) if (requests[name] === undefined) faults.push(`requests no ${name}`);
  if (limits.memory === undefined) faults.push('has no limit of memory');
  // The API server refuses other than equal numbers of what is counted in devices.
  for (const name of Object.keys({ ...requests, ...limits }).filter((n) => n.includes('/'))) {
    if (requests[name] !== limits[name]) faults.push(`${name}: request and limit differ`);
  }
  return faults;
}

function privilegeFaults(container, podContext) {
  const context = { ...podContext, ...container.securityContext };
  const faults = [];
  if (context.runAsNonRoot !== true || !(context.runAsUser > 0)) faults.push('may run as root');
  if (context.allowPrivilegeEscalation !== false) faults.push('may gain privileges');
  if (context.readOnlyRootFilesystem !== true) faults.push('may write to its root file system');
  if (context.privileged) faults.push('is privileged');
  if (!context.capabilities?.drop?.includes('ALL')) faults.push('keeps capabilities');
  const added = (context.capabilities?.add ?? []).filter((name) => !CAPABILITIES.includes(name));
  if (added.length > 0) faults.push(`adds the capabilities ${added}`);
  if (context.seccompProfile?.type !== 'RuntimeDefault') faults.push('has no seccomp profile');
  return faults;
}

export function containers({ objects, version }) {
  const faults = [];
  for (const pod of podsOf(objects)) {
    const owner = nameOf(pod.owner);
    if (pod.spec.automountServiceAccountToken !== false)
      faults.push(`${owner}: pods get a token of the API server`);
    // SPARSEBALANCE_COORDINATOR_PORT of a Service has the form of our programs' flags.
    if (pod.spec.enableServiceLinks !== false)
      faults.push(`${owner}: pods get variables named after Services`);
    for (const container of containersOf(pod)) {
      const found = [
        ...imageFaults(container.image, version),
        ...resourceFaults(container.resources),
        ...privilegeFaults(container, pod.spec.securityContext),
      ];
      faults.push(...found.map((fault) => `${owner}: ${container.name} ${fault}`));
    }
  }
  for (const account of byKind(objects, 'ServiceAccount')) {
    if (account.automountServiceAccountToken !== false)
      faults.push(`${nameOf(account)}: gives a token to pods`);
  }
  return faults;
}
