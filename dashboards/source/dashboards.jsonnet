// The dashboards by file name.
{
  'training-balance.json': import 'training_balance.libsonnet',
  'job-detail.json': import 'job_detail.libsonnet',
  'coordinator.json': import 'coordinator.libsonnet',
  'gpu-and-node.json': import 'gpu_and_node.libsonnet',
}
