#!/usr/bin/env bash
# Renders and checks deploy/kubernetes; see validate.mjs and the *_test.mjs beside it.
#   kubernetes_test.sh FOLDER    FOLDER gets the npm packages and whatever is written
# Programs are those of SPARSEBALANCE_BIN_DIR. Exit code 77, with the reason, where something is missing that
# setup does not install.
set -euo pipefail
folder="${1:?usage: kubernetes_test.sh FOLDER}"
source="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$source/../../.." && pwd)"

skip() { echo "skipped: $*"; exit 77; }

# kubectl prints v1.32.4 or, where a distribution adds to it, v1.32.4-SOMETHING.
command -v kubectl >/dev/null || skip "kubectl is not installed; 1.27 or later is needed"
kubectl_version="$(kubectl version --client 2>/dev/null | sed -n 's/^Client Version: v\([0-9]*\.[0-9]*\).*/\1/p')"
[[ "$kubectl_version" =~ ^[0-9]+\.[0-9]+$ ]] || skip "kubectl does not say its version; 1.27 or later is needed"
((${kubectl_version%.*} > 1 || ${kubectl_version#*.} >= 27)) || skip "kubectl is $kubectl_version; 1.27 or later is needed"
command -v node >/dev/null || skip "node is not installed; 18 or later is needed"
node_version="$(node --version | sed 's/^v\([0-9]*\).*/\1/')"
((node_version >= 18)) || skip "node is $node_version; 18 or later is needed"
command -v npm >/dev/null || skip "npm is not installed"

# Modules are found beside the files that import them, and the source tree is to stay clean: so both are
# copied.
mkdir -p "$folder"
rm -rf "${folder:?}/lib" "${folder:?}/rules" "$folder"/*.mjs
cp -r "$source"/lib "$source"/rules "$source"/*.mjs "$source"/package.json "$folder"
if ! cmp -s "$source/package-lock.json" "$folder/installed.json"; then
  cp "$source/package-lock.json" "$folder"
  if ! (cd "$folder" && npm ci --no-audit --no-fund --ignore-scripts >npm.log 2>&1); then
    # The lock file holds digests, so what comes can only be right or nothing. Say which of both it was.
    grep -qE 'ENOTFOUND|ECONNREFUSED|ETIMEDOUT|EAI_AGAIN|ECONNRESET|E40[1347]|E50[0-9]' "$folder/npm.log" &&
      skip "npm's registry does not answer or has not the packages; see $folder/npm.log"
    cat "$folder/npm.log" >&2
    exit 1
  fi
  cp "$source/package-lock.json" "$folder/installed.json"
fi

export SPARSEBALANCE_ROOT="$root" SPARSEBALANCE_WORK="$folder/work"
export SPARSEBALANCE_CRDS="${SPARSEBALANCE_CRDS:-$root/../shared/data/crds}"
: "${SPARSEBALANCE_BIN_DIR:?names the folder of the programs}"
rm -rf "$SPARSEBALANCE_WORK"
mkdir -p "$SPARSEBALANCE_WORK"
cd "$folder"
status=0
node validate.mjs || status=1
node --test ./*_test.mjs || status=1
exit "$status"
