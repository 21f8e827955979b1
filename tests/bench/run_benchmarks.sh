#!/usr/bin/env bash
# Runs every benchmark of a build, one after the other, so that they do not disturb each other.
#   run_benchmarks.sh BUILD [--requests DIR] [arguments of Google Benchmark, as --benchmark_filter=Plan]
#   run_benchmarks.sh BUILD --training-step [arguments of training_step_report, as --long]
#   run_benchmarks.sh BUILD --service [rpc|large|fairness|memory|scrape|wait|soak [arguments of service_load]]
#   run_benchmarks.sh BUILD --accuracy [arguments of bench/accuracy, as --seeds 5]
# --requests: batches of the plan benchmark from DIR/SETTING.{baseline,paper}.jsonl instead of made.
# --training-step: only what docs/worker.md says of a training step, beside PyTorch where that is
# installed (Debian's python3-torch and libopenblas0).
# --service: only what docs/coordinator.md says a coordinator takes; without a name all but the soak,
# which takes an hour.
# --accuracy: only what a model learns under fixed and dynamic budgets, which takes minutes.
set -euo pipefail
BUILD="$1"
shift
mkdir -p build/bench

# The command that runs a step in PyTorch with the OpenBLAS kernels that are fastest here; nothing
# where PyTorch is not installed.
torch_command() {
  local script=tests/bench/torch_training_step.py best=0 chosen="" rate core
  /usr/bin/python3 -c 'import torch' 2>/dev/null || return 0
  for core in SkylakeX Cooperlake Zen Haswell; do
    rate=$(OPENBLAS_CORETYPE=$core /usr/bin/python3 "$script" --sgemm)
    if awk "BEGIN { exit !($rate > $best) }"; then
      best=$rate
      chosen=$core
    fi
  done
  printf 'OPENBLAS_CORETYPE=%s /usr/bin/python3 %s --tokens 8192' "$chosen" "$script"
}

training_step() {
  local torch=()
  local command
  command="$(torch_command)"
  [ -z "$command" ] || torch=(--torch "$command")
  printf '\n== training_step_report %s\n' "$command"
  "$BUILD/bench/training_step_report" "${torch[@]}" "$@" | tee build/bench/training_step_report.txt
}

if [ "${1:-}" = --training-step ]; then
  shift
  training_step "$@"
  exit
fi
service() {
  export SPARSEBALANCE_BIN_DIR="$PWD/$BUILD/bin"
  printf '\n== service_load %s\n' "$*"
  "$BUILD/bench/service_load" "$@" | tee "build/bench/service_load_$1.txt"
}

if [ "${1:-}" = --service ]; then
  shift
  if [ $# -gt 0 ]; then
    service "$@"
  else
    service rpc
    service large
    service fairness
    service fairness --huge
    service memory
    service scrape
    service wait
  fi
  exit
fi
if [ "${1:-}" = --accuracy ]; then
  shift
  # Ranks share the cores: a thread that waits must not spin.
  export OMP_WAIT_POLICY=passive
  exec "$BUILD/bench/accuracy" "$@"
fi
requests=()
if [ "${1:-}" = --requests ]; then
  [ -d "${2:-}" ] || { echo "bench: --requests needs a folder, got \"${2:-}\"" >&2; exit 2; }
  requests=("$2")
  shift 2
fi
if [ $# -eq 0 ]; then
  printf '== plan_quality\n'
  "$BUILD/bench/plan_quality" "${requests[@]}" | tee build/bench/plan_quality.txt
  training_step
fi
found=0
for benchmark in "$BUILD"/bench/sb_*; do
  [ -x "$benchmark" ] && [ -f "$benchmark" ] || continue
  found=1
  name="$(basename "$benchmark")"
  printf '\n== %s\n' "$name"
  "$benchmark" --benchmark_out="build/bench/$name.json" --benchmark_out_format=json "$@"
done
[ "$found" = 1 ] || { echo "bench: no benchmark in $BUILD/bench" >&2; exit 1; }
printf '\nbench: full numbers in build/bench/\n'
