#!/usr/bin/env bash
# Runs every benchmark of a build, one after the other, so that they do not disturb each other.
#   run_benchmarks.sh BUILD [--requests DIR] [arguments of Google Benchmark, as --benchmark_filter=Plan]
# --requests: batches of the plan benchmark from DIR/SETTING.{baseline,paper}.jsonl instead of made.
#   run_benchmarks.sh BUILD --accuracy [arguments of bench/accuracy, as --seeds 5]
# --accuracy: only what a model learns under fixed and dynamic budgets, which takes minutes.
set -euo pipefail
BUILD="$1"
shift
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
mkdir -p build/bench
if [ $# -eq 0 ]; then
  printf '== plan_quality\n'
  "$BUILD/bench/plan_quality" "${requests[@]}" | tee build/bench/plan_quality.txt
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
