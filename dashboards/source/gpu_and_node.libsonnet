// The machines of a job: workers' own figures, and those of dcgm-exporter and node_exporter where these
// run. Machines are joined by the label `node`, which the scrape configuration gives to every target.
local c = import 'common.libsonnet';
local g = import 'grafana.libsonnet';

// Series of `metric` from the nodes that the job's workers run on.
local of_job(metric) = '%s and on (node) %s' % [metric, c.worker('step_seconds_count')];
local spread(metric) = [
  g.query('max (%s)' % of_job(metric), 'highest'),
  g.query('quantile (0.5, %s)' % of_job(metric), 'median'),
  g.query('min (%s)' % of_job(metric), 'lowest'),
];
local over_gpus = ' Highest, median and lowest over the GPUs of the job\'s nodes. From dcgm-exporter.';
local over_nodes = ' Highest, median and lowest over the job\'s nodes. From node_exporter.';

local process(expr) = '%s and on (instance) %s' % [expr, c.worker('step_seconds_count')];

c.dashboard(
  'GPU and node',
  'The machines of a job: what its workers take, and how GPUs and nodes are.',
  c.job_variables,
  [
    g.row('Workers', 6, [
      g.timeseries(
        'Model FLOPs utilization', 'percentunit', 'Floating-point operations of the last step, attention by the attended pairs only, over what the devices could do (`--peak-tflops`, or known of the GPU). Absent where that is not known.',
        [g.query('max by (namespace, job) (%s)' % c.worker('mfu_ratio'), 'MFU')]
      ) + g.bounds(0),
      g.timeseries(
        'Attended operations', 'flops', 'Floating-point operations of the model a second over all ranks, attention by the pairs that were attended only.',
        [g.query(c.worker_rate(c.worker('attended_flops_total')), 'FLOP/s')]
      ) + g.per_step + g.bounds(0),
      g.timeseries(
        'Peak memory of the backend', 'bytes', 'Largest over the ranks of a node: highest and lowest over nodes. `--memory-limit-mib` bounds it.',
        [
          g.query('max (%s)' % c.worker('peak_memory_bytes'), 'highest'),
          g.query('min (%s)' % c.worker('peak_memory_bytes'), 'lowest'),
        ]
      ) + g.bounds(0),
      g.timeseries(
        'Workers\' processes', 'bytes', 'Resident memory of the workers\' processes, highest and lowest (left), and the cores that they use, mean (right).',
        [
          g.query('max (%s)' % process('process_resident_memory_bytes'), 'resident, highest'),
          g.query('min (%s)' % process('process_resident_memory_bytes'), 'resident, lowest'),
          g.query('avg (%s)' % process('rate(process_cpu_seconds_total[$__rate_interval])'), 'cores, mean'),
        ]
      ) + g.unit_of('cores, mean', 'suffix: cores') + g.bounds(0),
      g.timeseries(
        'Workers', 'short', 'Workers that Prometheus reaches, by backend and version. Two versions in a job are refused by the workers themselves (exit code 5).',
        [g.query(
          'count by (backend, version) (sparsebalance_worker_build_info and on (instance) %s)' % c.worker('step_seconds_count'),
          '{{backend}}, {{version}}'
        )]
      ) + g.bounds(0) + g.decimals(0),
    ]),
    g.row('GPUs', 7, [
      g.timeseries(
        'Busy', 'percentunit', 'Share of time in which the graphics engine was active (DCGM_FI_PROF_GR_ENGINE_ACTIVE). The lowest GPU is one that waits: the slowest is the highest.' + over_gpus,
        spread('DCGM_FI_PROF_GR_ENGINE_ACTIVE')
      ) + g.bounds(0, 1),
      g.timeseries(
        'Tensor cores busy', 'percentunit', 'Share of cycles in which the tensor pipe was active (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE).' + over_gpus,
        spread('DCGM_FI_PROF_PIPE_TENSOR_ACTIVE')
      ) + g.bounds(0, 1),
      g.timeseries(
        'Memory bus busy', 'percentunit', 'Share of cycles in which device memory was read or written (DCGM_FI_PROF_DRAM_ACTIVE).' + over_gpus,
        spread('DCGM_FI_PROF_DRAM_ACTIVE')
      ) + g.bounds(0, 1),
      g.timeseries(
        'Memory used', 'percentunit', 'Frame buffer in use over what there is (DCGM_FI_DEV_FB_USED and _FREE).' + over_gpus,
        spread('DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)')
      ) + g.bounds(0, 1),
    ]),
    g.row('Why may a GPU be slow?', 7, [
      g.timeseries(
        'SM clock', 'rotmhz', 'Clock of the multiprocessors (DCGM_FI_DEV_SM_CLOCK). A GPU whose clock is below the others\' under the same load is throttled by heat or power, and makes a slow rank.' + over_gpus,
        spread('DCGM_FI_DEV_SM_CLOCK')
      ),
      g.timeseries(
        'Temperature', 'celsius', 'Of the GPU (DCGM_FI_DEV_GPU_TEMP).' + over_gpus,
        spread('DCGM_FI_DEV_GPU_TEMP')
      ),
      g.timeseries(
        'Power', 'watt', 'Drawn by the GPU (DCGM_FI_DEV_POWER_USAGE).' + over_gpus,
        spread('DCGM_FI_DEV_POWER_USAGE')
      ) + g.bounds(0),
      g.table(
        'Lowest SM clocks', 'suffix: MHz', 'The ten GPUs of the job\'s nodes with the lowest clock of their multiprocessors now. From dcgm-exporter.',
        [g.rows('bottomk (10, %s)' % of_job('DCGM_FI_DEV_SM_CLOCK'), 'clock')],
        { node: [0, 'Node'], gpu: [1, 'GPU'], modelName: [2, 'Model'], Value: [3, 'SM clock'], 'Value #A': [3, 'SM clock'] }
      ),
      g.table(
        'GPUs with Xid errors', 'none', 'The last Xid that a GPU reported, where it reported any (DCGM_FI_DEV_XID_ERRORS). From dcgm-exporter.',
        [g.rows('(%s) > 0' % of_job('DCGM_FI_DEV_XID_ERRORS'), 'Xid')],
        { node: [0, 'Node'], gpu: [1, 'GPU'], modelName: [2, 'Model'], Value: [3, 'Xid'], 'Value #A': [3, 'Xid'] }
      ),
    ]),
    g.row('Nodes', 7, [
      g.timeseries(
        'CPU busy', 'percentunit', 'Share of CPU time that was not idle.' + over_nodes,
        [
          g.query('%s (1 - avg by (node) (%s))' % [f[0], of_job('rate(node_cpu_seconds_total{mode="idle"}[$__rate_interval])')], f[1])
          for f in [['max', 'highest'], ['avg', 'mean'], ['min', 'lowest']]
        ]
      ) + g.bounds(0, 1),
      g.timeseries(
        'Memory available', 'percentunit', 'Memory that new work could have, over all of it.' + over_nodes,
        spread('node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes')
      ) + g.bounds(0, 1),
      g.timeseries(
        'Network', 'Bps', 'Bytes a second that nodes receive and send, all interfaces but loopback: the sum over the job\'s nodes. From node_exporter.',
        [
          g.query('sum (%s)' % of_job('rate(node_network_receive_bytes_total{device!="lo"}[$__rate_interval])'), 'received'),
          g.query('sum (%s)' % of_job('rate(node_network_transmit_bytes_total{device!="lo"}[$__rate_interval])'), 'sent'),
        ]
      ) + g.bounds(0),
      g.timeseries(
        'Load', 'short', 'Load of the last minute over CPUs of the node: above 1, ranks compete for cores.' + over_nodes,
        spread('node_load1 / on (node) group_left () count by (node) (node_cpu_seconds_total{mode="idle"})')
      ) + g.bounds(0),
    ]),
  ]
)
