// Every object says where it belongs, so that none lands in whatever namespace kubectl happens to use, and
// nothing is there twice.
import { nameOf } from '../lib/objects.mjs';

export function namespaces({ objects }) {
  const faults = [];
  const seen = new Set();
  for (const object of objects) {
    const { namespace, name, labels } = object.metadata;
    if ((object.kind === 'Namespace') !== (namespace === undefined))
      faults.push(`${nameOf(object)}: namespace is ${namespace}`);
    const key = `${namespace} ${nameOf(object)}`;
    if (seen.has(key)) faults.push(`${nameOf(object)}: is there twice`);
    seen.add(key);
    // The PrometheusRule is made elsewhere, with labels of its own.
    if (object.kind !== 'PrometheusRule' && labels?.['app.kubernetes.io/part-of'] !== 'sparsebalance')
      faults.push(`${nameOf(object)}: is not labelled as ours`);
    if (!/^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/.test(name)) faults.push(`${nameOf(object)}: is no name`);
    // kubectl keeps what it applied in an annotation, and annotations have 256 KiB.
    if (JSON.stringify(object).length > 250_000)
      faults.push(`${nameOf(object)}: is too large for kubectl apply`);
  }
  return faults;
}
