#!/usr/bin/env bash
# Start a scheduler and workers on this machine, over TLS, run one command on them, and stop them:
#
#     run.sh rgcss scan data.zarr -o moments.zarr
#
# The settings are in cluster.conf beside this script, or in the file that RGCSS_CLUSTER names.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=cluster.conf
. "${RGCSS_CLUSTER:-$here/cluster.conf}"
# shellcheck source=../begin.sh
. "$here/../begin.sh"
mkdir -p "$LOGS"

"$here/../supervise.sh" --while-stdin \
  dask scheduler --interface "$INTERFACE" --port 0 --dashboard-address "$DASHBOARD" \
  --scheduler-file "$state/scheduler.json" <"$state/scheduler" 8>&- 9>&- >"$LOGS/scheduler.log" 2>&1 &
scheduler=$!
for i in $(seq "$WORKERS"); do
  "$here/../supervise.sh" --while-stdin \
    dask worker --scheduler-file "$state/scheduler.json" --interface "$INTERFACE" --dashboard-address 127.0.0.1:0 \
    --name "worker-$i" --nthreads "$THREADS" --memory-limit "$MEMORY" --death-timeout 60 \
    <"$state/workers" 8>&- 9>&- >"$LOGS/worker-$i.log" 2>&1 &
  workers+=($!)
done

deadline=$((SECONDS + 120))
until [ -s "$state/scheduler.json" ]; do
  if ! kill -0 "$scheduler" 2>/dev/null || [ $SECONDS -gt $deadline ]; then
    echo "error: no scheduler starts. The end of $LOGS/scheduler.log:" >&2
    tail -n 5 "$LOGS/scheduler.log" >&2
    exit 1
  fi
  sleep 0.1
done
"$@" --scheduler-file "$state/scheduler.json" 8>&- 9>&-
