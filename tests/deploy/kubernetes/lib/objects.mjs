// Looking into rendered objects.

export const nameOf = (object) => `${object.kind}/${object.metadata.name}`;
export const byKind = (objects, kind) => objects.filter((o) => o.kind === kind);

// Every pod that an object makes: { owner, metadata, spec }. The namespace is the owner's.
export function podsOf(objects) {
  const pods = [];
  for (const owner of objects) {
    if (owner.kind === 'Pod') pods.push({ owner, metadata: owner.metadata, spec: owner.spec });
    if (owner.kind === 'StatefulSet') pods.push({ owner, ...owner.spec.template });
    if (owner.kind === 'JobSet') {
      for (const job of owner.spec.replicatedJobs) pods.push({ owner, ...job.template.spec.template });
    }
  }
  return pods;
}

export const containersOf = (pod) => [...(pod.spec.initContainers ?? []), ...pod.spec.containers];

export function matches(selector, labels = {}) {
  const fits = (e) => {
    const value = labels[e.key];
    if (e.operator === 'In') return e.values.includes(value);
    if (e.operator === 'Exists') return value !== undefined;
    throw new Error(`operator ${e.operator} of a selector is not known here`);
  };
  return (
    Object.entries(selector.matchLabels ?? {}).every(([k, v]) => labels[k] === v) &&
    (selector.matchExpressions ?? []).every(fits)
  );
}

// What a field reference gives in a pod of ours; for programs that are tried with rendered arguments.
function fieldValue(pod, fieldPath) {
  const label = /^metadata\.labels\['(.+)'\]$/.exec(fieldPath);
  if (label) return label[1] === 'jobset.sigs.k8s.io/restart-attempt' ? '0' : pod.metadata.labels?.[label[1]];
  return {
    'metadata.name': `${pod.owner.metadata.name}-0`,
    'metadata.namespace': pod.owner.metadata.namespace,
    'status.podIP': '127.0.0.1',
  }[fieldPath];
}

// Replaces $(NAME) as the kubelet does: by what is defined, and else not at all.
const expand = (text, known) => text.replace(/\$\((\w+)\)/g, (all, name) => known[name] ?? all);

// The environment of a container and its arguments, as its process sees them. `faults` says which
// references lead nowhere.
export function processOf(pod, container) {
  const env = {};
  const faults = [];
  const resolved = (text, where) => {
    const value = expand(text, env);
    const rest = /\$\((\w+)\)/.exec(value);
    if (rest) faults.push(`${where}: ${rest[0]} is not defined before it`);
    return value;
  };
  for (const { name, value, valueFrom } of container.env ?? []) {
    if (name in env) faults.push(`environment: ${name} is there twice`);
    env[name] = valueFrom
      ? fieldValue(pod, valueFrom.fieldRef?.fieldPath)
      : resolved(value ?? '', `environment ${name}`);
    if (env[name] === undefined)
      faults.push(`environment ${name}: ${JSON.stringify(valueFrom)} gives nothing`);
  }
  // Added by Kubernetes, behind all others.
  if (pod.owner.kind === 'JobSet') env.JOB_COMPLETION_INDEX = '0';
  const args = (container.args ?? []).map((arg) => resolved(arg, `argument ${arg}`));
  return { env, args, faults };
}

// host:port,... that this container calls or gives out as a coordinator's address.
export function coordinatorAddresses(objects) {
  const found = [];
  for (const pod of podsOf(objects)) {
    for (const container of pod.spec.containers) {
      const { env } = processOf(pod, container);
      const text = env.SPARSEBALANCE_COORDINATOR_ADVERTISE ?? env.SPARSEBALANCE_COORDINATOR;
      for (const address of (text ?? '').split(',').filter(Boolean))
        found.push({ by: nameOf(pod.owner), address });
    }
  }
  return found;
}
