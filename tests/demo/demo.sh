#!/usr/bin/env bash
# Trains a small model on the manual pages of Debian, under several policies side by side: one
# coordinator and two workers on this machine. Called by `./run demo` with the build folder.
set -euo pipefail

BUILD="$1"
shift
# The programs of another folder, such as /usr/bin of the Debian packages, where it is named.
BIN="${SPARSEBALANCE_BIN_DIR:-$PWD/$BUILD/bin}"
OUT="$PWD/build/demo"

policies=none,length,paper,sparsebalance
steps=28
workers=2
dataset=""
watch=0

usage() {
  cat <<'HELP'
usage: ./run demo [--policy NAME[,NAME...]] [--steps N] [--workers N] [--dataset DIR] [--watch]

  --policy NAME,...  policies to train under and compare  (none,length,paper,sparsebalance)
  --steps N          steps of each policy                 (28)
  --workers N        worker processes, one rank each      (2)
  --dataset DIR      folder of text or JSONL files, or the prefix of a packed data set
                     (the manual pages of Debian's packages manpages and manpages-dev)
  --watch            a Prometheus beside it, at port 9090 or $PROMETHEUS_PORT; when training is
                     over it and the coordinator's status page stay up until Ctrl-C

Results: build/demo/summary.json; logs, plans and a record of every step lie beside it.
HELP
}

need_value() { [ "$2" -ge 2 ] || { echo "demo: $1 needs a value" >&2; exit 2; }; }
while [ $# -gt 0 ]; do
  case "$1" in
    --policy) need_value "$1" $#; policies="$2"; shift 2 ;;
    --steps) need_value "$1" $#; steps="$2"; shift 2 ;;
    --workers) need_value "$1" $#; workers="$2"; shift 2 ;;
    --dataset) need_value "$1" $#; dataset="$2"; shift 2 ;;
    --watch) watch=1; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "demo: unknown argument \"$1\"" >&2; usage >&2; exit 2 ;;
  esac
done
[[ "$steps" =~ ^[1-9][0-9]*$ ]] || { echo "demo: --steps \"$steps\" is not a number above 0" >&2; exit 2; }
[[ "$workers" =~ ^[1-9][0-9]*$ ]] || { echo "demo: --workers \"$workers\" is not a number above 0" >&2; exit 2; }

readonly PROMETHEUS="127.0.0.1:${PROMETHEUS_PORT:-9090}"
if [ "$watch" = 1 ]; then
  command -v prometheus >/dev/null || { echo "demo: --watch needs prometheus; ./run setup installs it" >&2; exit 1; }
  if (exec 3<>"/dev/tcp/${PROMETHEUS%:*}/${PROMETHEUS#*:}") 2>/dev/null; then
    echo "demo: something listens on $PROMETHEUS already; choose another port in \$PROMETHEUS_PORT" >&2
    exit 1
  fi
fi

readonly CAP=8192  # tokens of the longest sequence and of a micro-batch

rm -rf "$OUT"
mkdir -p "$OUT"

# The packages are unpacked, not installed: slim systems leave manual pages out of installed ones.
fetch_manual_pages() {
  local pages="$PWD/build/manual-pages"
  if [ ! -d "$pages/text" ]; then
    echo "demo: fetching the manual pages (Debian packages manpages, manpages-dev)"
    rm -rf "$pages"
    mkdir -p "$pages/deb" "$pages/root"
    if ! (cd "$pages/deb" && apt-get download manpages manpages-dev) >"$OUT/fetch.log" 2>&1; then
      # The lists may be missing or old.
      if [ "$(id -u)" = 0 ]; then apt-get update -q; else sudo apt-get update -q; fi >>"$OUT/fetch.log" 2>&1
      (cd "$pages/deb" && apt-get download manpages manpages-dev) >>"$OUT/fetch.log" 2>&1 || {
        echo "demo: cannot fetch the manual pages; see $OUT/fetch.log, or give --dataset DIR" >&2
        exit 1
      }
    fi
    for deb in "$pages"/deb/*.deb; do dpkg-deb -x "$deb" "$pages/root"; done
    mv "$pages/root/usr/share/man" "$pages/text"
    rm -rf "$pages/deb" "$pages/root"
  fi
  dataset="$pages/text"
}

[ -n "$dataset" ] || fetch_manual_pages
if [ -f "$dataset.idx" ]; then
  prefix="$dataset"
else
  prefix="$OUT/dataset"
  "$BIN/sparsebalance-data" pack --input "$dataset" --output "$prefix" --max-tokens "$CAP" \
    2>"$OUT/pack.log" || { cat "$OUT/pack.log" >&2; exit 1; }
fi

pids=()
stop_all() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
}
trap stop_all EXIT
trap 'exit 130' INT TERM

"$BIN/sparsebalance-coordinator" --listen 127.0.0.1:0 --metrics-listen 127.0.0.1:0 \
  --store "$OUT/coordinator.sqlite" --port-file "$OUT/ports" >"$OUT/coordinator.log" 2>&1 &
coordinator=$!
pids+=("$coordinator")
until [ -s "$OUT/ports" ]; do
  kill -0 "$coordinator" 2>/dev/null || { cat "$OUT/coordinator.log" >&2; exit 1; }
  sleep 0.05
done
address="127.0.0.1:$(sed -n 's/^grpc=//p' "$OUT/ports")"
metrics="127.0.0.1:$(sed -n 's/^metrics=//p' "$OUT/ports")"
echo "demo: coordinator at $address, status page at http://$metrics/"

threads=$(($(nproc) / workers))
[ "$threads" -ge 1 ] || threads=1
cat >"$OUT/job.toml" <<TOML
# The description of the demo's job; every line is also a flag of sparsebalance-worker.
job = "demo"
dataset = "$prefix"
data-parallel = $workers
policy = "$policies"
block-steps = 4
steps = $steps
global-batch-size = 16
max-tokens-per-micro-batch = $CAP
micro-batch-size = 2
block-tokens = 64
base-budget = 8
hidden-size = 64
layers = 2
heads = 2
kv-heads = 1
intermediate-size = 176
learning-rate = 0.003
min-learning-rate = 0.0003
warmup-steps = 4
threads-per-rank = $threads
TOML

# Ranks share the cores: a thread that waits must not spin.
export OMP_WAIT_POLICY=passive

run_worker() { # RANK
  exec "$BIN/sparsebalance-worker" --config "$OUT/job.toml" --coordinator "$address" \
    --node-id "node-$1" --ranks "$1" --output "$OUT" "${worker_flags[@]}" 2>"$OUT/worker-$1.log"
}
worker_flags=()

# Targets are read from a file: the workers' ports are known once they serve.
start_prometheus() {
  worker_flags=(--metrics-listen 127.0.0.1:0)
  echo '[]' >"$OUT/workers.json"
  cat >"$OUT/prometheus.yaml" <<YAML
global:
  scrape_interval: 1s
  evaluation_interval: 5s
rule_files: ["$PWD/dashboards/prometheus/rules.yaml"]
scrape_configs:
  - job_name: sparsebalance-coordinator
    honor_labels: true  # the label \`job\` of a training job's series is that job
    static_configs: [{targets: ["$metrics"]}]
  - job_name: sparsebalance-worker
    honor_labels: true
    file_sd_configs: [{files: ["$OUT/workers.json"], refresh_interval: 1s}]
YAML
  prometheus --config.file="$OUT/prometheus.yaml" --storage.tsdb.path="$OUT/prometheus" \
    --web.listen-address="$PROMETHEUS" >"$OUT/prometheus.log" 2>&1 &
  local pid=$!
  pids+=("$pid")
  until (exec 3<>"/dev/tcp/${PROMETHEUS%:*}/${PROMETHEUS#*:}") 2>/dev/null; do
    kill -0 "$pid" 2>/dev/null || { tail -n 3 "$OUT/prometheus.log" >&2; exit 1; }
    sleep 0.05
  done
  echo "demo: Prometheus at http://$PROMETHEUS/, status page at http://$metrics/"
}

list_workers() { # Tells Prometheus of the workers, all of which have begun.
  local targets="" rank port
  for ((rank = 0; rank < workers; ++rank)); do
    while true; do
      port="$(sed -n 's,.*metrics on http://127.0.0.1:\([0-9]*\)/.*,\1,p' "$OUT/worker-$rank.log" 2>/dev/null)"
      [ -z "$port" ] || break
      sleep 0.05
    done
    targets+="${targets:+, }\"127.0.0.1:$port\""
  done
  echo "[{\"targets\": [$targets]}]" >"$OUT/workers.json.new"
  mv "$OUT/workers.json.new" "$OUT/workers.json"
}
[ "$watch" = 0 ] || start_prometheus
echo "demo: $workers workers, policies $policies, $steps steps each; logs in build/demo"
for ((rank = 1; rank < workers; ++rank)); do
  run_worker "$rank" >/dev/null &
  pids+=($!)
done
run_worker 0 &
worker_0=$!
pids+=("$worker_0")
if [ "$watch" = 1 ]; then
  list_workers &
  pids+=($!)
fi
code=0
wait "$worker_0" || code=$?
if [ "$code" != 0 ]; then
  echo "demo: worker 0 ended with exit code $code:" >&2
  tail -n 5 "$OUT/worker-0.log" >&2
  exit "$code"
fi
echo "demo: summary in build/demo/summary.json"
if [ "$watch" = 1 ]; then
  echo "demo: status page at http://$metrics/, Prometheus at http://$PROMETHEUS/; Ctrl-C ends both"
  wait "$coordinator" || true
fi
