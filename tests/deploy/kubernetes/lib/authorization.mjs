// The authorization file as docs/security.md says it: which names may do what in which namespaces.

// Comments stand on lines of their own in our file; a // within a name is none.
export const parseRules = (text) => JSON.parse(text.replace(/^\s*\/\/.*$/gm, '')).rules;

const partsOf = (name) => name.split(/(?<=[/.])/);

function partFits(pattern, part) {
  if (!pattern.includes('*')) return pattern === part;
  const escaped = pattern.split('*').map((text) => text.replace(/[.+?^${}()|[\]\\/]/g, '\\$&'));
  return new RegExp(`^${escaped.join('.+')}$`).test(part);
}

// The namespace that a name gives under a pattern, '' where it gives none, null where it does not fit.
export function namespaceBy(pattern, name) {
  const isUri = !pattern.startsWith('dns:');
  const wanted = partsOf(pattern);
  const given = partsOf(name);
  let namespace = '';
  for (let i = 0; i < wanted.length; ++i) {
    if (isUri && i === wanted.length - 1 && wanted[i] === '*') return i < given.length ? namespace : null;
    if (given[i] === undefined) return null;
    if (wanted[i].startsWith('{namespace}')) {
      const end = wanted[i].slice('{namespace}'.length);
      if (!given[i].endsWith(end) || (end === '' && /[/.]$/.test(given[i]))) return null;
      namespace = given[i].slice(0, given[i].length - end.length);
      if (namespace === '') return null;
    } else if (!partFits(wanted[i], given[i])) {
      return null;
    }
  }
  return given.length === wanted.length ? namespace : null;
}

// ["node in ml", "reader in *"]: everything that a certificate's names are granted.
export function grants(rules, names) {
  return rules.flatMap(({ san, role, namespaces = ['{namespace}'] }) =>
    names.flatMap((name) => {
      const namespace = namespaceBy(san, name);
      return namespace === null
        ? []
        : namespaces.map((n) => `${role} in ${n === '{namespace}' ? namespace : n}`);
    }),
  );
}

// The names of a Certificate of cert-manager, as the file writes them.
export const namesOf = ({ spec }) => [
  ...(spec.uris ?? []),
  ...(spec.dnsNames ?? []).map((n) => `dns:${n.toLowerCase()}`),
];
