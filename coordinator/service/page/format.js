// Numbers and names in words. 64-bit integers come as strings.

const NOT_KNOWN = '–';

export const count = (value) => BigInt(value ?? 0).toLocaleString('en-US');
export const fixed = (value, digits) => Number(value).toFixed(digits);
// Zero stands for "not known" in these figures.
export const figure = (value, digits) => (Number(value) === 0 ? NOT_KNOWN : fixed(value, digits));

export function milliseconds(value) {
  const ms = Number(value);
  if (ms === 0) return NOT_KNOWN;
  if (ms >= 10000) return `${fixed(ms / 1000, ms >= 100000 ? 0 : 1)} s`;
  if (ms >= 100) return `${Math.round(ms).toLocaleString('en-US')} ms`;
  return `${fixed(ms, ms >= 10 ? 1 : 2)} ms`;
}

export function bytes(value) {
  let number = Number(value);
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (number < 1024 || unit === 'GiB') return `${fixed(number, unit === 'B' ? 0 : 1)} ${unit}`;
    number /= 1024;
  }
}

export const tokens = (value) => {
  const number = Number(value);
  return number >= 1024 && number % 512 === 0 ? `${number / 1024}K` : String(number);
};

export const plural = (number, one, many = `${one}s`) =>
  `${count(number)} ${Number(number) === 1 ? one : many}`;

const STATES = {
  JOB_STATE_REGISTERED: 'registered', JOB_STATE_JOINING: 'joining',
  JOB_STATE_TRAINING: 'training', JOB_STATE_FINISHED: 'finished',
};
export const stateName = (state) => STATES[state] ?? 'unknown';

const NO_PLAN = {
  NO_PLAN_REASON_COORDINATOR_AWAY: 'the coordinator could not be reached',
  NO_PLAN_REASON_LATE: 'the plan had not come by the deadline',
  NO_PLAN_REASON_UNFIT: 'the plan that came did not fit the rank or its batch',
  NO_PLAN_REASON_RANKS_DIFFER: 'the ranks did not all have the same plan',
};
export const noPlanReason = (reason) => NO_PLAN[reason] ?? 'the ranks did not report why';

const FALLBACKS = {
  FALLBACK_REASON_FLOOR_UNREACHABLE: 'the coverage floor could not be reached, base budgets were used',
  FALLBACK_REASON_LENGTH_BETTER: 'balancing by length is faster by the same model',
  FALLBACK_REASON_NO_PLAN: 'a worker had no plan and used its own',
  FALLBACK_REASON_ANCHOR_UNREACHABLE: 'a micro-batch stays above its anchor latency',
};
export const planFallback = (reason) => FALLBACKS[reason] ?? reason;

export const jobLink = (key) =>
  `#/job/${encodeURIComponent(key.namespace || 'default')}/${encodeURIComponent(key.name)}`;

export const jobName = (key) => `${key.namespace || 'default'}/${key.name}`;

// Names of runs of ascending numbers: "3", "4-7".
export const rankRun = (first, size) => (size === 1 ? `rank ${first}` : `ranks ${first}-${first + size - 1}`);
