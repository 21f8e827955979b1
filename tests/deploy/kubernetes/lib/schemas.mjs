// Holds objects against their schemas: models from npm for what they know, and CustomResourceDefinitions from
// a folder. A field that no schema knows is a fault, as for `kubectl apply`.
import { createRequire } from 'node:module';
import fs from 'node:fs';
import path from 'node:path';
import Ajv from 'ajv';
import YAML from 'yaml';
import { nameOf } from './objects.mjs';

const require = createRequire(import.meta.url);
const PACKAGES = [
  [/^v1$/, 'kubernetes-models'],
  [/^(apps|policy|networking\.k8s\.io)\/v1$/, 'kubernetes-models'],
  [/^(cert-manager\.io\/v1|policy\.cert-manager\.io\/v1alpha1)$/, '@kubernetes-models/cert-manager'],
  [/^monitoring\.coreos\.com\/v1$/, '@kubernetes-models/prometheus-operator'],
];

function modelOf({ apiVersion, kind }) {
  const found = PACKAGES.find(([pattern]) => pattern.test(apiVersion));
  return found && require(`${found[1]}/${apiVersion}`)[kind];
}

// The models' validators are compiled and let unknown fields pass. They look at every field that they know, so
// a field that was never looked at is one that they do not know.
function watched(value, place, seen) {
  if (value === null || typeof value !== 'object') return value;
  const isArray = Array.isArray(value);
  return new Proxy(value, {
    get(target, key) {
      if (typeof key === 'string' && !isArray) seen.add(`${place}.${key}`);
      const field = target[key];
      return typeof field === 'function' ? field : watched(field, `${place}.${String(key)}`, seen);
    },
    ownKeys(target) {
      if (!isArray) for (const key of Object.keys(target)) seen.add(`${place}.${key}`);
      return Reflect.ownKeys(target);
    },
  });
}

function unseen(value, place, seen) {
  if (value === null || typeof value !== 'object') return [];
  return Object.entries(value).flatMap(([key, field]) => {
    const here = `${place}.${key}`;
    return Array.isArray(value) || seen.has(here) ? unseen(field, here, seen) : [here];
  });
}

function modelFaults(object, Model) {
  const seen = new Set();
  try {
    Model.prototype.validate.call(watched(object, '', seen));
  } catch (error) {
    return [error.message];
  }
  return unseen(object, '', seen).map((place) => `${place} is not known`);
}

// OpenAPI of a CustomResourceDefinition as a JSON schema that knows its fields and no others.
function strict(schema, top = true) {
  if (schema === null || typeof schema !== 'object') return schema;
  if (schema['x-kubernetes-int-or-string']) return { type: ['integer', 'string'] };
  const { properties, items, additionalProperties, type, required, enum: values } = schema;
  const { pattern, minimum, maximum, minLength, maxLength, minItems, maxItems } = schema;
  const made = {
    type,
    required,
    enum: values,
    pattern,
    minimum,
    maximum,
    minLength,
    maxLength,
    minItems,
    maxItems,
  };
  if (properties) {
    made.properties = Object.fromEntries(Object.entries(properties).map(([k, s]) => [k, strict(s, false)]));
    if (top) made.properties = { ...made.properties, metadata: {}, apiVersion: {}, kind: {} };
    made.additionalProperties = schema['x-kubernetes-preserve-unknown-fields'] === true;
  } else if (additionalProperties) {
    made.additionalProperties = strict(additionalProperties, false);
  }
  if (items) made.items = strict(items, false);
  return Object.fromEntries(Object.entries(made).filter(([, value]) => value !== undefined));
}

// Patterns are RE2's, which writes "whatever the case" as (?i).
const regExp = (pattern, flags) =>
  pattern.includes('(?i)')
    ? new RegExp(pattern.replace('(?i)', ''), `${flags}i`)
    : new RegExp(pattern, flags);
regExp.code = 'new RegExp';

function loadDefinitions(folder) {
  const validators = new Map();
  if (!folder || !fs.existsSync(folder)) return validators;
  const ajv = new Ajv({ strict: false, allErrors: true, validateFormats: false, code: { regExp } });
  for (const file of fs.readdirSync(folder)) {
    const { spec } = YAML.parse(fs.readFileSync(path.join(folder, file), 'utf8'));
    for (const version of spec.versions) {
      const key = `${spec.group}/${version.name} ${spec.names.kind}`;
      validators.set(key, ajv.compile(strict(version.schema.openAPIV3Schema)));
    }
  }
  return validators;
}

// schemas.faults(objects) -> texts; schemas.unchecked: kinds for which there was no schema.
export class Schemas {
  constructor(definitionsFolder) {
    this.definitions = loadDefinitions(definitionsFolder);
    this.unchecked = new Set();
  }

  faults(objects) {
    return objects.flatMap((object) => {
      const found = [];
      const Model = modelOf(object);
      const validator = this.definitions.get(`${object.apiVersion} ${object.kind}`);
      if (Model) found.push(...modelFaults(object, Model));
      if (validator && !validator(object)) {
        found.push(
          ...validator.errors.map(
            (e) =>
              `${e.instancePath} ${e.message}${e.params.additionalProperty ? ` (${e.params.additionalProperty})` : ''}`,
          ),
        );
      }
      if (!Model && !validator) {
        // A JobSet without its definition is told of; any other kind is one that nobody thought of.
        if (object.kind === 'JobSet') this.unchecked.add(object.kind);
        else found.push('has no schema here');
      }
      return found.map((fault) => `${nameOf(object)}: ${fault}`);
    });
  }
}
