#!/usr/bin/env bash
# All that can only be known on a GPU, in one run: builds, compares every kernel with the CPU
# backend, looks for bad accesses and races on small shapes, measures, trains 20 steps, and writes a
# latency profile. Meant to take less than 8 minutes on one H200 with 16 cores; not tried yet.
#
#   tests/gpu/run_on_gpu.sh OUTDIR [BUILD]
#
# OUTDIR gets a log of every part, measurements.json, profile.json and table.md. BUILD: a build
# folder that has the programs already; without one they are built in OUTDIR/build.
set -uo pipefail

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
  echo "usage: tests/gpu/run_on_gpu.sh OUTDIR [BUILD]" >&2
  exit 2
fi
SOURCE="$(cd "$(dirname "$0")/../.." && pwd)"
mkdir -p "$1"
OUT="$(cd "$1" && pwd)"
BUILD="${2:-$OUT/build}"
export SPARSEBALANCE_SOURCE_DIR="$SOURCE" SPARSEBALANCE_BIN_DIR="$BUILD/bin"
failed=()
begin=$SECONDS

# part NAME SECONDS COMMAND...: runs it, at most so long; its output goes to OUT/NAME.log.
part() {
  local name="$1" limit="$2" since=$SECONDS code=0
  shift 2
  timeout "$limit" "$@" >"$OUT/$name.log" 2>&1 || code=$?
  if [ "$code" = 0 ]; then
    printf '%-22s ok      %4d s\n' "$name" $((SECONDS - since))
  else
    printf '%-22s FAILED  %4d s  exit code %d, see %s\n' "$name" $((SECONDS - since)) "$code" \
      "$OUT/$name.log"
    tail -n 15 "$OUT/$name.log" | sed 's/^/    /'
    failed+=("$name")
  fi
  return "$code"
}

if ! nvidia-smi -L; then
  echo "run_on_gpu.sh: no GPU can be used here (nvidia-smi -L fails)" >&2
  exit 1
fi

if [ $# -lt 2 ]; then
  part configure 60 cmake -S "$SOURCE" -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DSPARSEBALANCE_CUDA=ON -DSPARSEBALANCE_CUDA_ARCHITECTURES=native \
    -DSPARSEBALANCE_BENCHMARKS=OFF || exit 1
  part build 330 cmake --build "$BUILD" -j "$(nproc)" --target sb_gpu_backend_test \
    sb_gpu_model_test gpu_benchmark sparsebalance-worker sparsebalance-data || exit 1
fi

part parity-ops 60 "$BUILD/gpu/sb_gpu_backend_test"
part parity-training 60 "$BUILD/gpu/sb_gpu_model_test"
if command -v compute-sanitizer >/dev/null; then
  # A slowdown of some hundred times: the small cases only.
  small='*AttentionParityTest.ShortSequences*:*DenseOpsTest.R*:*DenseOpsTest.SwiGlu*'
  for tool in memcheck racecheck; do
    part "$tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$BUILD/gpu/sb_gpu_backend_test" --gtest_filter="$small"
  done
else
  echo "compute-sanitizer      not found, left out"
fi

part measure 150 "$BUILD/gpu/gpu_benchmark" "$OUT/measurements.json" &&
  cp "$OUT/measure.log" "$OUT/table.md"

# The sources themselves are text enough for 20 steps.
part pack 30 "$BUILD/bin/sparsebalance-data" pack --input "$SOURCE/worker" --output "$OUT/data" \
  --max-tokens 32768
MODEL=(--layers 4 --hidden-size 1024 --heads 8 --kv-heads 4 --head-dim 128
  --intermediate-size 2816 --block-tokens 128)
part train 60 "$BUILD/bin/sparsebalance-worker" --coordinator "" --policy length --backend cuda \
  --dataset "$OUT/data" --steps 20 --global-batch-size 8 --max-tokens-per-micro-batch 65536 \
  "${MODEL[@]}" --output "$OUT/train"
part profile 60 "$BUILD/bin/sparsebalance-worker" profile --backend cuda --coordinator "" \
  --dataset "$OUT/data" --max-tokens-per-micro-batch 65536 "${MODEL[@]}" --seconds 20 \
  --profile-output "$OUT/profile.json"

echo
[ -f "$OUT/table.md" ] && cat "$OUT/table.md"
[ -f "$OUT/train.log" ] && tail -n 12 "$OUT/train.log"
printf '\n%d s in all; everything is in %s\n' $((SECONDS - begin)) "$OUT"
if [ ${#failed[@]} -gt 0 ]; then
  echo "FAILED: ${failed[*]}"
  exit 1
fi
