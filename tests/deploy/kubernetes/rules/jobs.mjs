// Of JobSets alone: ranks add up, exit codes are told apart, a checkpoint has time.
import { byKind, nameOf, processOf } from '../lib/objects.mjs';

// README.md, "What a worker's end means".
const HOPELESS = [2, 3, 5, 6];
const STOPPED = [75];

function policyFaults(job, containers) {
  const faults = [];
  const rules = job.podFailurePolicy?.rules ?? [];
  const codes = (action) =>
    rules
      .filter((r) => r.action === action && r.onExitCodes?.operator === 'In')
      .flatMap((r) => r.onExitCodes.values);
  if (String(codes('FailJob')) !== String(HOPELESS))
    faults.push(`the job fails at once by the exit codes ${codes('FailJob')}, not ${HOPELESS}`);
  if (String(codes('Ignore')) !== String(STOPPED))
    faults.push(`the exit codes ${codes('Ignore')} are ignored, not ${STOPPED}`);
  if (
    !rules.some((r) => r.action === 'Ignore' && r.onPodConditions?.some((c) => c.type === 'DisruptionTarget'))
  )
    faults.push('evicted pods count as failures');
  for (const rule of rules) {
    if (rule.onExitCodes && !containers.some((c) => c.name === rule.onExitCodes.containerName))
      faults.push('podFailurePolicy names a container that is not there');
  }
  if (job.podReplacementPolicy !== 'Failed') faults.push('a pod may run beside its successor');
  return faults;
}

function deviceFaults(pod, container, ranks) {
  const faults = [];
  const gpus = container.resources.limits['nvidia.com/gpu'];
  if (gpus === undefined) return faults;
  if (Number(gpus) !== ranks) faults.push(`${gpus} GPUs for ${ranks} ranks`);
  const mount = container.volumeMounts.find((m) => m.mountPath === '/dev/shm');
  if (pod.volumes.find((v) => v.name === mount?.name)?.emptyDir?.medium !== 'Memory')
    faults.push('/dev/shm is not in memory');
  return faults;
}

export function jobs({ objects }) {
  const faults = [];
  for (const set of byKind(objects, 'JobSet')) {
    const say = (fault) => faults.push(`${nameOf(set)}: ${fault}`);
    if (!set.spec.network?.enableDNSHostnames) say('pods have no names');
    if (
      !set.spec.failurePolicy?.rules?.some(
        (r) => r.action === 'FailJobSet' && r.onJobFailureReasons?.includes('PodFailurePolicy'),
      )
    ) {
      say('starts all over where that is hopeless');
    }
    for (const { template } of set.spec.replicatedJobs) {
      const job = template.spec;
      const pod = job.template.spec;
      const worker = pod.containers.find((c) => c.name === 'worker');
      const { env, args } = processOf({ owner: set, ...job.template }, worker);
      if (job.completionMode !== 'Indexed' || !worker.args.includes('--node-rank=$(JOB_COMPLETION_INDEX)'))
        say('the index of a pod is not the rank of its node');
      if (job.completions !== job.parallelism)
        say(`${job.completions} nodes, of which ${job.parallelism} run at a time`);
      const ranks = Number(env.SPARSEBALANCE_RANKS_PER_NODE);
      if (job.parallelism * ranks !== Number(env.SPARSEBALANCE_DATA_PARALLEL)) {
        say(`${job.parallelism} nodes of ${ranks} ranks are not ${env.SPARSEBALANCE_DATA_PARALLEL}`);
      }
      if (pod.restartPolicy !== 'Never')
        say('containers are restarted in place, which podFailurePolicy does not see');
      if (!(pod.terminationGracePeriodSeconds >= 60)) say('a checkpoint has less than a minute');
      const attempt = worker.env.find((e) => e.name === 'SPARSEBALANCE_RESTART_ATTEMPT')?.valueFrom?.fieldRef
        ?.fieldPath;
      if (attempt !== "metadata.labels['jobset.sigs.k8s.io/restart-attempt']")
        say('the restart of the set is not told to the worker');
      if (!args.includes('--resume')) say('a new pod starts from the beginning');
      if (env.SPARSEBALANCE_JOB !== set.metadata.name)
        say(`is called ${env.SPARSEBALANCE_JOB} at the coordinator`);
      if (pod.hostNetwork && pod.dnsPolicy !== 'ClusterFirstWithHostNet')
        say('does not find Services from the host network');
      policyFaults(job, pod.containers).forEach(say);
      deviceFaults(pod, worker, ranks).forEach(say);
    }
  }
  return faults;
}
