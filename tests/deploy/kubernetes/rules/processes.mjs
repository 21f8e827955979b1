// What containers are started with: references to variables, names that programs know, and what the programs
// themselves say about it.
import { containersOf, podsOf, processOf } from '../lib/objects.mjs';
import { describe } from '../lib/programs.mjs';

const ours = (container) =>
  /(^|\/)sparsebalance-(coordinator|worker)(-cuda)?:/.test(container.image) && !container.command;

export function processes({ objects, programs }) {
  const faults = [];
  for (const pod of podsOf(objects)) {
    for (const container of containersOf(pod)) {
      const who = describe(pod, container);
      processOf(pod, container).faults.forEach((fault) => faults.push(`${who}: ${fault}`));
      if (!ours(container)) continue;
      const prepared = programs.prepare(pod, container, objects);
      const known = programs.variablesOf(prepared.program);
      // A program passes over a variable that it does not know, so a misspelt one would have no effect.
      for (const name of Object.keys(prepared.env).filter(
        (n) => n.startsWith('SPARSEBALANCE_') && !known.has(n),
      )) {
        faults.push(`${who}: ${name} is no variable of the program`);
      }
      // Verbs have no --check-config; what they do is tried in verbs_test.mjs.
      if (!prepared.args[0]?.startsWith('--')) continue;
      const complaint = programs.complaint(prepared);
      if (complaint) faults.push(`${who}: ${complaint}`);
    }
  }
  return faults;
}
