// Renders every overlay and combination of components and holds the result against schemas and rules.
import { counterpart, renderAll } from './lib/render.mjs';
import { Schemas } from './lib/schemas.mjs';
import { definitions, makePrograms, provided, root, version, work } from './lib/setting.mjs';
import { forgottenComponents } from './lib/trees.mjs';
import { RULES } from './rules/all.mjs';

const renderings = await renderAll(`${work}/rendered`, root);
const schemas = new Schemas(definitions);
const programs = makePrograms('validate');
const faults = new Map();
const note = (fault, where) => faults.set(fault, [...(faults.get(fault) ?? []), where]);

for (const name of forgottenComponents(root)) note('is in no combination', name);
let count = 0;
for (const rendering of renderings) {
  const { name, objects } = rendering;
  const context = { objects, peers: counterpart(rendering, renderings), provided, version, programs };
  if (rendering.mounts) context.provided = new Set([...provided, rendering.mounts]);
  count += objects.length;
  for (const fault of [...schemas.faults(objects), ...RULES.flatMap((rule) => rule(context))])
    note(fault, name);
}
// One fault is usually in many combinations: it is said once, with the first of them.
for (const [fault, where] of faults) {
  console.error(`${fault}\n    in ${where[0]}${where.length > 1 ? ` and ${where.length - 1} more` : ''}`);
}
for (const kind of schemas.unchecked)
  console.log(`${kind}: no definition found (SPARSEBALANCE_CRDS), so no schema was checked`);
console.log(
  `${renderings.length} renderings, ${count} objects, ${programs.tried.size} configurations tried: ${faults.size} faults`,
);
process.exit(faults.size === 0 ? 0 : 1);
