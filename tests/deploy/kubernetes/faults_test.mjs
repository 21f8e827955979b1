// Plants each fault that the rules look for into real renderings, and wants it found.
import assert from 'node:assert/strict';
import path from 'node:path';
import test from 'node:test';
import { renderCombination } from './lib/render.mjs';
import { Schemas } from './lib/schemas.mjs';
import { definitions, makePrograms, provided, root, version, work } from './lib/setting.mjs';
import { COORDINATOR, WORKERS } from './lib/trees.mjs';
import { RULES } from './rules/all.mjs';

const folder = path.join(work, 'faults');
const coordinator = async (...components) => (await renderCombination(folder, root, 'coordinator', COORDINATOR, components)).objects;
const workers = async (device, ...components) =>
  (await renderCombination(folder, root, 'workers', WORKERS.find((t) => t.base.endsWith(device)), components)).objects;

const PLAIN = await coordinator();
const SECURE = await coordinator('namespace', 'ha', 'etcd-tls', 'mtls', 'monitoring', 'mtls-monitoring');
const CPU = await workers('cpu', 'recall-data');
const GPU = await workers('gpu', 'storage', 'replicas', 'mtls', 'topology');
const programs = makePrograms('faults-programs');
const schemas = new Schemas(definitions);
const hasDefinitions = schemas.definitions.size > 0;

const faultsOf = (objects, peers) => [
  ...schemas.faults(objects),
  ...RULES.flatMap((rule) => rule({ objects, peers, provided, version, programs })),
];

function plant(name, objects, peers, change, wanted, options = {}) {
  test(name, options, () => {
    const changed = structuredClone(objects);
    const others = structuredClone(peers);
    const get = (kind, called) => [...changed, ...others].find((o) => o.kind === kind && (!called || o.metadata.name.startsWith(called)));
    change(get, changed);
    const faults = faultsOf(changed, others);
    assert.ok(faults.some((fault) => fault.includes(wanted)), `"${wanted}" is not among ${JSON.stringify(faults, null, 1)}`);
  });
}

const set = (get) => get('StatefulSet').spec;
const pod = (get) => get('StatefulSet').spec.template.spec;
const box = (get) => pod(get).containers[0];
const job = (get) => get('JobSet').spec.replicatedJobs[0].template.spec;
const jobPod = (get) => job(get).template.spec;
const worker = (get) => jobPod(get).containers[0];
const variable = (container, name) => container.env.find((e) => e.name === name);
const remove = (list, item) => list.splice(list.indexOf(item), 1);

for (const [name, objects, peers] of [['plain', PLAIN, CPU], ['secure', SECURE, GPU], ['CPU', CPU, PLAIN], ['GPU', GPU, SECURE]]) {
  test(`the real ${name} one has none`, () => assert.deepEqual(faultsOf(objects, peers), []));
}

// Each line: what is wrong, and what is to be said about it.
const ofPlain = (name, change, wanted) => plant(name, PLAIN, CPU, change, wanted);
const ofSecure = (name, change, wanted) => plant(name, SECURE, GPU, change, wanted);
const ofCpu = (name, change, wanted) => plant(name, CPU, PLAIN, change, wanted);
const ofGpu = (name, change, wanted, options) => plant(name, GPU, SECURE, change, wanted, options);
const needsDefinitions = { skip: hasDefinitions ? false : 'no CustomResourceDefinitions (SPARSEBALANCE_CRDS)' };

// Schemas.
ofPlain('misspelt field', (g) => { box(g).readinessProb = {}; }, 'readinessProb is not known');
ofPlain('value of another type', (g) => { set(g).replicas = 'three'; }, 'must be integer');
ofPlain('missing field', (g) => { delete set(g).selector; }, 'must have required property selector');
ofSecure('misspelt field of cert-manager', (g) => { g('Certificate').spec.dnsName = ['x']; }, 'dnsName is not known');
ofSecure('wrong key algorithm', (g) => { g('Certificate').spec.privateKey.algorithm = 'DSA'; }, 'must be equal to one of');
ofSecure('misspelt field of a ServiceMonitor', (g) => { g('ServiceMonitor').spec.endpoints[0].honourLabels = true; }, 'honourLabels is not known');
ofGpu('misspelt field of a JobSet', (g) => { g('JobSet').spec.network.enableDNSHostname = true; }, 'must NOT have additional properties (enableDNSHostname)', needsDefinitions);
ofGpu('misspelt field of a JobSet\'s pod', (g) => { worker(g).resource = {}; }, 'must NOT have additional properties (resource)', needsDefinitions);
ofGpu('unknown action', (g) => { g('JobSet').spec.failurePolicy.rules[0].action = 'Fail'; }, 'must be equal to one of', needsDefinitions);
plant('rule of a PrometheusRule', SECURE, GPU, (g) => { g('PrometheusRule').spec.groups[0].rules[0].exp = 'x'; }, 'additional properties (exp)', needsDefinitions);
plant('kind without a schema', PLAIN, CPU, (g, all) => {
  all.push({ apiVersion: 'example.org/v1', kind: 'Thing', metadata: { name: 'x', namespace: 'y' } });
}, 'has no schema here');

// containers
ofPlain('latest image', (g) => { box(g).image = 'sparsebalance-coordinator:latest'; }, 'is the latest');
ofPlain('no tag', (g) => { box(g).image = 'registry:5000/sparsebalance-coordinator'; }, 'has no tag');
ofPlain('image of another version', (g) => { box(g).image = 'sparsebalance-coordinator:9.9.9'; }, 'is not of this version');
ofPlain('no memory requested', (g) => { delete box(g).resources.requests.memory; }, 'requests no memory');
ofPlain('no CPU requested', (g) => { delete box(g).resources.requests.cpu; }, 'requests no cpu');
ofPlain('no limit', (g) => { delete box(g).resources.limits; }, 'has no limit of memory');
ofCpu('init container without resources', (g) => { delete jobPod(g).initContainers[0].resources; }, 'recall-data requests no cpu');
ofGpu('more GPUs than requested', (g) => { worker(g).resources.limits['nvidia.com/gpu'] = '9'; }, 'request and limit differ');
ofPlain('root', (g) => { pod(g).securityContext.runAsUser = 0; }, 'may run as root');
ofPlain('root, perhaps', (g) => { delete pod(g).securityContext.runAsNonRoot; }, 'may run as root');
ofPlain('privileges', (g) => { delete box(g).securityContext.allowPrivilegeEscalation; }, 'may gain privileges');
ofPlain('privileged', (g) => { box(g).securityContext.privileged = true; }, 'is privileged');
ofPlain('writable root', (g) => { box(g).securityContext.readOnlyRootFilesystem = false; }, 'may write to its root');
ofPlain('capabilities', (g) => { delete box(g).securityContext.capabilities; }, 'keeps capabilities');
ofGpu('capability too many', (g) => { worker(g).securityContext.capabilities.add = ['SYS_ADMIN']; }, 'adds the capabilities SYS_ADMIN');
ofPlain('no seccomp', (g) => { delete pod(g).securityContext.seccompProfile; }, 'has no seccomp profile');
ofPlain('token', (g) => { pod(g).automountServiceAccountToken = true; }, 'pods get a token');
ofPlain('token of the account', (g) => { delete g('ServiceAccount').automountServiceAccountToken; }, 'gives a token');
ofPlain('variables of Services', (g) => { delete pod(g).enableServiceLinks; }, 'variables named after Services');

// coordinator
ofPlain('no readiness probe', (g) => { delete box(g).readinessProbe; }, 'has no readinessProbe by gRPC');
ofPlain('probe by HTTP', (g) => { box(g).livenessProbe = { httpGet: { port: 7071 } }; }, 'has no livenessProbe by gRPC');
ofPlain('probe on the service port', (g) => { box(g).readinessProbe.grpc.port = 7070; }, 'readinessProbe asks port 7070');
ofPlain('liveness of the service', (g) => { box(g).livenessProbe.grpc.service = 'sparsebalance.v1.Coordinator'; }, 'livenessProbe asks for the service');
ofPlain('readiness of the process', (g) => { delete box(g).readinessProbe.grpc.service; }, 'readinessProbe asks for the service undefined');
ofPlain('impatient startup', (g) => { box(g).startupProbe.failureThreshold = 3; }, 'less than five minutes');
ofPlain('killed while it drains', (g) => { pod(g).terminationGracePeriodSeconds = 20; }, 'is killed after 20 s');
ofPlain('other port in the file', (g) => {
  const config = g('ConfigMap', 'sparsebalance-coordinator');
  config.data['coordinator.toml'] = config.data['coordinator.toml'].replace('0.0.0.0:7070', '0.0.0.0:7979');
}, 'listen is 0.0.0.0:7979');
ofPlain('no file', (g) => { delete g('ConfigMap', 'sparsebalance-coordinator').data['coordinator.toml']; }, 'has no coordinator.toml');
ofPlain('replicas with files', (g) => { set(g).replicas = 3; }, 'each has a file of its own');
ofPlain('file on no volume', (g) => { set(g).volumeClaimTemplates = []; }, 'its file is on no volume');
ofSecure('volume of no use', (g) => { set(g).volumeClaimTemplates = [{ metadata: { name: 'state' }, spec: {} }]; }, 'claims a volume');
ofSecure('replicas on one machine', (g) => { delete pod(g).affinity; }, 'may share a machine');
ofPlain('a node that cannot be drained', (g) => { g('PodDisruptionBudget').spec.maxUnavailable = 0; }, 'not one pod at a time');
ofSecure('etcd on another port', (g) => { variable(box(g), 'ETCD_ENDPOINTS').value = 'etcd:4001'; }, 'lets out to');
ofSecure('scrape in plaintext', (g) => { g('ServiceMonitor').spec.endpoints[0].scheme = 'http'; }, 'by the wrong scheme');

// jobs
ofCpu('ranks that do not add up', (g) => { variable(worker(g), 'SPARSEBALANCE_DATA_PARALLEL').value = '3'; }, 'are not 3');
ofCpu('nodes that wait for each other', (g) => { job(g).parallelism = 1; }, 'of which 1 run at a time');
ofCpu('no index', (g) => { job(g).completionMode = 'NonIndexed'; }, 'is not the rank of its node');
ofCpu('no rank', (g) => { remove(worker(g).args, '--node-rank=$(JOB_COMPLETION_INDEX)'); }, 'is not the rank of its node');
ofCpu('from the beginning', (g) => { remove(worker(g).args, '--resume'); }, 'starts from the beginning');
ofCpu('restart in place', (g) => { jobPod(g).restartPolicy = 'OnFailure'; }, 'restarted in place');
ofCpu('no time for a checkpoint', (g) => { jobPod(g).terminationGracePeriodSeconds = 30; }, 'less than a minute');
ofCpu('restarts that look alike', (g) => { variable(worker(g), 'SPARSEBALANCE_RESTART_ATTEMPT').valueFrom.fieldRef.fieldPath = 'metadata.name'; }, 'is not told to the worker');
ofCpu('other name at the coordinator', (g) => { variable(worker(g), 'SPARSEBALANCE_JOB').value = 'other'; }, 'is called other');
ofCpu('lost peer is hopeless', (g) => { job(g).podFailurePolicy.rules[0].onExitCodes.values.push(4); }, 'fails at once by the exit codes');
ofCpu('stop is a failure', (g) => { job(g).podFailurePolicy.rules.splice(1, 1); }, 'are ignored, not 75');
ofCpu('eviction is a failure', (g) => { job(g).podFailurePolicy.rules.pop(); }, 'evicted pods count');
ofCpu('exit codes of nobody', (g) => { job(g).podFailurePolicy.rules[0].onExitCodes.containerName = 'trainer'; }, 'names a container that is not there');
ofCpu('two at a time', (g) => { job(g).podReplacementPolicy = 'TerminatingOrFailed'; }, 'beside its successor');
ofCpu('hopeless again and again', (g) => { g('JobSet').spec.failurePolicy.rules = []; }, 'starts all over');
ofCpu('no names', (g) => { g('JobSet').spec.network.enableDNSHostnames = false; }, 'pods have no names');
ofGpu('GPUs for other ranks', (g) => {
  for (const kind of ['limits', 'requests']) worker(g).resources[kind]['nvidia.com/gpu'] = '4';
}, '4 GPUs for 8 ranks');
ofGpu('shared memory on disk', (g) => { delete jobPod(g).volumes.find((v) => v.name === 'shm').emptyDir.medium; }, '/dev/shm is not in memory');
ofGpu('host network without names', (g) => { jobPod(g).hostNetwork = true; }, 'from the host network');

// references
ofPlain('ConfigMap that is not there', (g) => { pod(g).volumes[0].configMap.name = 'other'; }, 'ConfigMap/other is neither here');
ofSecure('Secret that is not there', (g) => { pod(g).volumes.find((v) => v.secret).secret.secretName = 'other'; }, 'Secret/other is neither here');
ofSecure('Secret of nobody for Prometheus', (g) => { g('ServiceMonitor').spec.endpoints[0].tlsConfig.keySecret.name = 'other'; }, 'Secret/other is neither here');
ofGpu('claim that is not there', (g) => { jobPod(g).volumes.find((v) => v.name === 'data').persistentVolumeClaim.claimName = 'other'; }, 'PersistentVolumeClaim/other is neither');
ofPlain('account that is not there', (g) => { pod(g).serviceAccountName = 'other'; }, 'ServiceAccount/other is neither');
ofGpu('issuer that is not there', (g) => { g('Certificate', 'sparsebalance-trainer').spec.issuerRef.name = 'other'; }, 'Issuer/other is neither');
ofPlain('mount of no volume', (g) => { box(g).volumeMounts[0].name = 'other'; }, 'mounts other, which is no volume');
ofPlain('two at one place', (g) => { box(g).volumeMounts[1].mountPath = box(g).volumeMounts[0].mountPath; }, 'mounts two volumes at');
ofPlain('volume of nobody', (g) => { box(g).volumeMounts.pop(); }, 'nothing mounts the volume tmp');
ofSecure('subPath', (g) => { box(g).volumeMounts[0].subPath = 'x'; }, 'mounts a subPath');

// selectors
ofPlain('Service of other pods', (g) => { g('Service').spec.selector = { app: 'x' }; }, 'selects 0 kinds of pods');
ofPlain('port that no pod has', (g) => { g('Service').spec.ports[0].targetPort = 'web'; }, 'port web is none of');
ofPlain('port that leads elsewhere', (g) => { g('Service').spec.ports[0].port = 80; }, 'port 80 leads to 7070');
ofPlain('StatefulSet of other pods', (g) => { set(g).selector.matchLabels = { app: 'x' }; }, 'does not fit its own pods');
ofPlain('no headless Service', (g) => { set(g).serviceName = 'sparsebalance-coordinator'; }, 'is no headless Service');
ofSecure('affinity to others', (g) => { pod(g).affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector.matchLabels.x = 'y'; }, 'does not mean its own pods');
ofGpu('spread of others', (g) => { jobPod(g).topologySpreadConstraints[0].labelSelector.matchLabels.x = 'y'; }, 'does not mean its own pods');
ofPlain('probe of no port', (g) => { box(g).ports.pop(); }, 'on port 7072, which it does not have');
ofPlain('budget of nobody', (g) => { g('PodDisruptionBudget').spec.selector.matchLabels = { app: 'x' }; }, 'selects no pods');
ofPlain('policy for a port of nobody', (g) => { g('NetworkPolicy', 'sparsebalance').spec.ingress[0].ports[0].port = 9; }, 'port 9, which no pod has');
ofPlain('policy that shuts workers out', (g) => { g('NetworkPolicy', 'sparsebalance').spec.ingress[0].from[0].namespaceSelector.matchExpressions[0].values = ['x']; }, 'admits pods that do not exist');
ofCpu('policy that shuts peers out', (g) => { g('NetworkPolicy', 'training').spec.ingress[0].from[0].podSelector.matchLabels['app.kubernetes.io/instance'] = 'x'; }, 'admits pods that do not exist');
plant('no policy', PLAIN, CPU, (g, all) => { remove(all, g('NetworkPolicy')); }, 'no NetworkPolicy for its pods');
ofSecure('labels of Prometheus', (g) => { g('ServiceMonitor').spec.endpoints[0].honorLabels = false; }, 'honorLabels is not true');
ofSecure('no node', (g) => { delete g('PodMonitor').spec.podMetricsEndpoints[0].relabelings; }, 'gives no label node');
ofSecure('two Services scraped', (g) => { delete g('ServiceMonitor').spec.selector.matchLabels['app.kubernetes.io/component']; }, 'selects 2 Services');
ofSecure('scrape of no port', (g) => { g('ServiceMonitor').spec.endpoints[0].port = 'web'; }, 'port web is none of the Service');
ofSecure('workers of another namespace', (g) => { g('PodMonitor').spec.namespaceSelector.matchNames = ['x']; }, 'selects no pods');
ofSecure('workers\' port', (g) => { g('PodMonitor').spec.podMetricsEndpoints[0].port = 'web'; }, 'port web is none of the pods');

// namespaces
ofPlain('no namespace', (g) => { delete g('Service').metadata.namespace; }, 'namespace is undefined');
ofPlain('twice', (g, all) => { all.push(structuredClone(g('Service'))); }, 'is there twice');
ofPlain('whose?', (g) => { g('Service').metadata.labels = {}; }, 'is not labelled as ours');
ofPlain('name that is none', (g) => { g('Service').metadata.name = 'Coordinator_1'; }, 'is no name');
ofPlain('too large', (g) => { g('ConfigMap').data.more = 'x'.repeat(260_000); }, 'too large for kubectl apply');

// certificates and addresses
const rules = (g) => g('ConfigMap', 'sparsebalance-authorization').data;
ofGpu('trainer of another namespace', (g) => { g('Certificate', 'sparsebalance-trainer').spec.uris = ['spiffe://sparsebalance/ns/other/sa/trainer']; }, 'is granted [node in other]');
ofGpu('trainer that is nobody', (g) => { g('Certificate', 'sparsebalance-trainer').spec.uris = ['spiffe://sparsebalance/sa/trainer']; }, 'is granted []');
ofSecure('trainers everywhere', (g) => { rules(g)['authorization.json'] = rules(g)['authorization.json'].replace('"role": "node"', '"role": "node", "namespaces": ["*"]'); g('Certificate', 'sparsebalance-operator').spec.uris.push('spiffe://sparsebalance/ns/a/sa/trainer'); }, 'is granted [node in *,operator in *]');
ofSecure('reader who may do all', (g) => { rules(g)['authorization.json'] = rules(g)['authorization.json'].replaceAll('"reader"', '"operator"'); }, 'sparsebalance-prometheus: is granted [operator in *]');
ofSecure('certificate for nothing', (g) => { g('Certificate', 'sparsebalance-operator').metadata.name = 'other'; }, 'nobody has said what it is for');
ofSecure('server as a client', (g) => { g('Certificate', 'sparsebalance-coordinator').spec.usages = ['client auth']; }, 'is not for server auth');
plant('no rules', SECURE, GPU, (g, all) => { remove(all, g('ConfigMap', 'sparsebalance-authorization')); }, 'no authorization file');
ofSecure('name that the certificate has not', (g) => { g('Certificate', 'sparsebalance-coordinator').spec.dnsNames.splice(1, 1); }, 'which is no name of the coordinator\'s certificate');
ofSecure('name that Prometheus expects', (g) => { g('ServiceMonitor').spec.endpoints[0].tlsConfig.serverName = 'coordinator'; }, 'calls coordinator, which is no name');
ofCpu('coordinator of another namespace', (g) => { variable(worker(g), 'COORDINATOR_NAMESPACE').value = 'x'; }, 'which is no Service');
ofCpu('port of another service', (g) => { const e = variable(worker(g), 'SPARSEBALANCE_COORDINATOR'); e.value = e.value.replace('7070', '7072'); }, 'calls port 7072');
ofGpu('replica too many', (g) => { const e = variable(worker(g), 'SPARSEBALANCE_COORDINATOR'); e.value = e.value.replace('coordinator-2', 'coordinator-3'); }, 'coordinator-3, which is no pod');

// processes: what the programs themselves say
ofPlain('variable before it is there', (g) => { box(g).env.unshift({ name: 'X', value: '$(POD_NAME)' }); }, '$(POD_NAME) is not defined before it');
ofPlain('variable twice', (g) => { box(g).env.push(structuredClone(box(g).env[0])); }, 'is there twice');
ofPlain('field that gives nothing', (g) => { variable(box(g), 'POD_NAME').valueFrom.fieldRef.fieldPath = 'metadata.nam'; }, 'gives nothing');
ofPlain('variable that no program has', (g) => { box(g).env.push({ name: 'SPARSEBALANCE_COORDINATOR_PORT', value: '1' }); }, 'is no variable of the program');
ofPlain('flag that the coordinator has not', (g) => { box(g).args.push('--liste=1'); }, '--liste');
ofPlain('name in the coordinator\'s file', (g) => { g('ConfigMap', 'sparsebalance-coordinator').data['coordinator.toml'] += '\nlistn = "x:1"\n'; }, 'listn');
ofPlain('plaintext by mistake', (g) => { variable(box(g), 'SPARSEBALANCE_COORDINATOR_INSECURE').value = 'false'; }, 'would offer plaintext');
ofSecure('plaintext and certificates', (g) => { variable(box(g), 'SPARSEBALANCE_COORDINATOR_INSECURE').value = 'true'; }, '--insecure asks for plaintext');
ofSecure('role that does not exist', (g) => { rules(g)['authorization.json'] = rules(g)['authorization.json'].replace('"role": "node"', '"role": "nodes"'); }, 'nodes');
ofSecure('key that is not mounted', (g) => { variable(box(g), 'SPARSEBALANCE_COORDINATOR_TLS_KEY').value = '/etc/other/tls.key'; }, '/etc/other/tls.key');
ofCpu('flag that the worker has not', (g) => { worker(g).args.push('--rank=1'); }, '--rank');
ofCpu('name in the job\'s file', (g) => { g('ConfigMap', 'sparsebalance-job').data['job.toml'] += '\nstep = 1\n'; }, 'step');
ofCpu('policy that does not exist', (g) => { const d = g('ConfigMap', 'sparsebalance-job').data; d['job.toml'] = d['job.toml'].replace('policy = "sparsebalance"', 'policy = "sparse"'); }, 'sparse');
ofGpu('worker in plaintext', (g) => {
  const env = worker(g).env;
  for (const name of ['CA', 'CERT', 'KEY']) remove(env, variable(worker(g), `SPARSEBALANCE_TLS_${name}`));
}, 'in plaintext');
