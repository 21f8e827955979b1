import { addresses, certificates } from './certificates.mjs';
import { containers } from './containers.mjs';
import { coordinator } from './coordinator.mjs';
import { jobs } from './jobs.mjs';
import { namespaces } from './namespaces.mjs';
import { processes } from './processes.mjs';
import { references } from './references.mjs';
import { selectors } from './selectors.mjs';

// Each takes { objects, peers, provided, version, programs } and gives texts.
export const RULES = [
  addresses,
  certificates,
  containers,
  coordinator,
  jobs,
  namespaces,
  processes,
  references,
  selectors,
];
