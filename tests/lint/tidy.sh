#!/usr/bin/env bash
# clang-tidy over all sources: tidy.sh BUILD JOBS
#
# Most of clang-tidy's time goes into the headers of gRPC, Abseil and GoogleTest, so neighbouring
# sources are checked together as one file. A group that does not parse (two of its sources use the
# same local name, say) is halved until it does. Needs the generated protocol headers in BUILD.
set -euo pipefail

readonly BUILD="$1" JOBS="$2" TOGETHER=10
export FOLDER="$PWD/build/lint"
export FLAGS="-std=c++20 -fopenmp -I$PWD -isystem $PWD/$BUILD/proto/generated
  -DSPARSEBALANCE_VERSION=\"0\" -DSPARSEBALANCE_DATA_PROGRAM=\"\" -DSPARSEBALANCE_FUZZ_TARGET=\"\" -DCPPHTTPLIB_OPENSSL_SUPPORT -DCPPHTTPLIB_ZLIB_SUPPORT
  -DCPPHTTPLIB_BROTLI_SUPPORT"

# CUDA's headers, where BUILD has found them; without them the few sources that need them are left
# out.
cuda="$(sed -n 's/^NCCL_INCLUDE_DIR:[A-Z]*=//p' "$BUILD/CMakeCache.txt")"
if [ -f "$cuda/cuda_runtime_api.h" ] && [ -f "$cuda/nccl.h" ]; then
  FLAGS+=" -isystem $cuda"
  needs_cuda='^$'
else
  needs_cuda='^#include <(cuda|cublas|nccl)'
fi

check() { # NAME SOURCE...
  local name="$1" out
  shift
  printf '#include "%s"\n' "$@" >"$FOLDER/$name.cc"
  # What is found in a source of the group counts as found in a header.
  # shellcheck disable=SC2086
  out=$(clang-tidy --quiet --header-filter="$PWD/(coordinator|worker|kernels|tests)/" \
    --checks=-bugprone-suspicious-include "$FOLDER/$name.cc" -- $FLAGS 2>&1) && return 0
  if [ $# -gt 1 ] && grep -q 'clang-diagnostic-error' <<<"$out"; then
    local half=$(($# / 2)) failed=0
    check "$name.a" "${@:1:half}" || failed=1
    check "$name.b" "${@:half+1}" || failed=1
    return "$failed"
  fi
  grep -v 'warnings generated' <<<"$out"
  return 1
}
export -f check

rm -rf "$FOLDER"
mkdir -p "$FOLDER"
declare -A sources
while read -r source; do
  kind=source
  [[ "$source" == *_test.cc ]] && kind=test
  sources["$(dirname "$source" | tr / _)_$kind"]+="$source "
done < <(git ls-files '*.cc' | while read -r source; do
  grep -qE "$needs_cuda" "$source" && [ "$needs_cuda" != '^$' ] || echo "$source"
done)

for key in "${!sources[@]}"; do
  read -ra all <<<"${sources[$key]}"
  for ((i = 0; i < ${#all[@]}; i += TOGETHER)); do
    echo "$key.$i ${all[*]:i:TOGETHER}"
  done
done | xargs -P "$JOBS" -L 1 bash -c 'check "$@" || exit 1' check
