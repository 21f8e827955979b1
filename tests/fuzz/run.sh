#!/usr/bin/env bash
# Searches for inputs that break what parses: tests/fuzz/run.sh [SECONDS a target, default 300]
# [TARGET...]. Needs clang. What is found lies in build/fuzz/found and belongs, once mended, into
# tests/fuzz/regressions/TARGET.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seconds="${1:-300}"
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(requests configuration state)
cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DSPARSEBALANCE_FUZZ=ON -DSPARSEBALANCE_CUDA=OFF -DSPARSEBALANCE_BENCHMARKS=OFF \
  "-DSPARSEBALANCE_SANITIZE=fuzzer-no-link,address,undefined" >/dev/null
cmake --build build/fuzz -j "${JOBS:-$(nproc)}" --target "${targets[@]/#/fuzz_}"
for target in "${targets[@]}"; do
  corpus="build/fuzz/corpus/$target"
  found="build/fuzz/found/$target"
  mkdir -p "$corpus" "$found"
  echo "fuzzing $target for $seconds s"
  build/fuzz/bin/"fuzz_$target" -max_total_time="$seconds" -max_len=65536 -timeout=20 \
    -rss_limit_mb=4096 -artifact_prefix="$found/" -print_final_stats=1 "$corpus" \
    $( [ -d "tests/fuzz/regressions/$target" ] && echo "tests/fuzz/regressions/$target" ) \
    2>"$found.log" || { tail -n 40 "$found.log" >&2; exit 1; }
  grep -E '^(stat::number_of_executed_units|stat::new_units_added|Done)' "$found.log" || true
done
