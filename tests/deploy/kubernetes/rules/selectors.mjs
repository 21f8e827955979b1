// Selectors find what they are meant for, and ports that are named exist.
import { byKind, matches, nameOf, podsOf } from '../lib/objects.mjs';

const portsOf = (pod) => pod.spec.containers.flatMap((c) => c.ports ?? []);
const inNamespace = (pods, namespace) => pods.filter((p) => p.owner.metadata.namespace === namespace);

function serviceFaults(objects, pods) {
  const faults = [];
  for (const service of byKind(objects, 'Service')) {
    const found = inNamespace(pods, service.metadata.namespace).filter((pod) =>
      matches({ matchLabels: service.spec.selector }, pod.metadata.labels),
    );
    if (found.length !== 1) faults.push(`${nameOf(service)}: selects ${found.length} kinds of pods, not one`);
    for (const port of service.spec.ports) {
      const target = port.targetPort ?? port.port;
      for (const pod of found) {
        const there = portsOf(pod).find((p) => p.name === target || p.containerPort === target);
        if (!there) faults.push(`${nameOf(service)}: port ${target} is none of ${nameOf(pod.owner)}`);
        else if (there.containerPort !== port.port)
          faults.push(`${nameOf(service)}: port ${port.port} leads to ${there.containerPort}`);
      }
    }
  }
  return faults;
}

function ownSelectorFaults(objects, pods) {
  const faults = [];
  for (const pod of pods) {
    const owner = nameOf(pod.owner);
    const { spec } = pod.owner;
    if (spec.selector && !matches(spec.selector, pod.metadata.labels))
      faults.push(`${owner}: selector does not fit its own pods`);
    if (
      spec.serviceName &&
      !byKind(objects, 'Service').some(
        (s) => s.metadata.name === spec.serviceName && s.spec.clusterIP === 'None',
      )
    ) {
      faults.push(`${owner}: ${spec.serviceName} is no headless Service here`);
    }
    const affinity = pod.spec.affinity ?? {};
    const terms = [affinity.podAffinity, affinity.podAntiAffinity]
      .filter(Boolean)
      .flatMap((a) => [
        ...(a.requiredDuringSchedulingIgnoredDuringExecution ?? []),
        ...(a.preferredDuringSchedulingIgnoredDuringExecution ?? []).map((t) => t.podAffinityTerm),
      ]);
    for (const { labelSelector } of [...terms, ...(pod.spec.topologySpreadConstraints ?? [])]) {
      if (!matches(labelSelector, pod.metadata.labels))
        faults.push(`${owner}: affinity or spread does not mean its own pods`);
    }
    for (const container of pod.spec.containers) {
      for (const probe of [container.startupProbe, container.readinessProbe, container.livenessProbe].filter(
        Boolean,
      )) {
        const port = probe.grpc?.port ?? probe.httpGet?.port ?? probe.tcpSocket?.port;
        if (!(container.ports ?? []).some((p) => p.name === port || p.containerPort === port)) {
          faults.push(`${owner}: probe of ${container.name} on port ${port}, which it does not have`);
        }
      }
    }
  }
  return faults;
}

// Policies and budgets of pods; a policy's ports are the pods', its peers exist on the other side.
function policyFaults(objects, pods, allPods) {
  const faults = [];
  for (const object of [...byKind(objects, 'NetworkPolicy'), ...byKind(objects, 'PodDisruptionBudget')]) {
    const selector = object.spec.podSelector ?? object.spec.selector;
    const found = inNamespace(allPods, object.metadata.namespace).filter((pod) =>
      matches(selector, pod.metadata.labels),
    );
    if (found.length === 0) faults.push(`${nameOf(object)}: selects no pods`);
    for (const rule of object.spec.ingress ?? []) {
      for (const { port } of rule.ports ?? []) {
        if (!found.some((pod) => portsOf(pod).some((p) => p.containerPort === port)))
          faults.push(`${nameOf(object)}: admits to port ${port}, which no pod has`);
      }
      for (const peer of rule.from ?? []) {
        const name = peer.podSelector?.matchLabels?.['app.kubernetes.io/name'];
        if (!name?.startsWith('sparsebalance-')) continue;
        const namespaces = peer.namespaceSelector?.matchExpressions?.find(
          (e) => e.key === 'kubernetes.io/metadata.name',
        )?.values ?? [object.metadata.namespace];
        const there = allPods.filter(
          (p) =>
            namespaces.includes(p.owner.metadata.namespace) && matches(peer.podSelector, p.metadata.labels),
        );
        if (there.length === 0)
          faults.push(`${nameOf(object)}: admits pods that do not exist (${name} in ${namespaces})`);
      }
    }
  }
  // Nobody is left without a policy.
  for (const pod of pods.filter((p) => p.owner.kind !== 'Pod')) {
    if (!byKind(objects, 'NetworkPolicy').some((n) => matches(n.spec.podSelector, pod.metadata.labels)))
      faults.push(`${nameOf(pod.owner)}: no NetworkPolicy for its pods`);
  }
  return faults;
}

function monitorFaults(objects, allPods) {
  const faults = [];
  const check = (monitor, endpoints) => {
    for (const endpoint of endpoints) {
      if (endpoint.honorLabels !== true) faults.push(`${nameOf(monitor)}: honorLabels is not true`);
      const node = (endpoint.relabelings ?? []).find((r) => r.targetLabel === 'node');
      if (node?.sourceLabels?.[0] !== '__meta_kubernetes_pod_node_name')
        faults.push(`${nameOf(monitor)}: gives no label node`);
    }
  };
  for (const monitor of byKind(objects, 'ServiceMonitor')) {
    check(monitor, monitor.spec.endpoints);
    const services = byKind(objects, 'Service').filter((s) =>
      matches(monitor.spec.selector, s.metadata.labels),
    );
    if (services.length !== 1)
      faults.push(`${nameOf(monitor)}: selects ${services.length} Services, not one`);
    for (const { port } of monitor.spec.endpoints) {
      if (!services.every((s) => s.spec.ports.some((p) => p.name === port)))
        faults.push(`${nameOf(monitor)}: port ${port} is none of the Service`);
    }
  }
  for (const monitor of byKind(objects, 'PodMonitor')) {
    check(monitor, monitor.spec.podMetricsEndpoints);
    const found = allPods.filter(
      (p) =>
        p.owner.kind === 'JobSet' &&
        matches(monitor.spec.selector, p.metadata.labels) &&
        monitor.spec.namespaceSelector.matchNames.includes(p.owner.metadata.namespace),
    );
    if (found.length === 0) faults.push(`${nameOf(monitor)}: selects no pods`);
    for (const { port } of monitor.spec.podMetricsEndpoints) {
      if (!found.every((pod) => portsOf(pod).some((p) => p.name === port)))
        faults.push(`${nameOf(monitor)}: port ${port} is none of the pods`);
    }
  }
  return faults;
}

export function selectors({ objects, peers }) {
  const pods = podsOf(objects);
  const allPods = [...pods, ...podsOf(peers)];
  return [
    ...serviceFaults(objects, pods),
    ...ownSelectorFaults(objects, pods),
    ...policyFaults(objects, pods, allPods),
    ...monitorFaults(objects, allPods),
  ];
}
