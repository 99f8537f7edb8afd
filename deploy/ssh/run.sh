#!/usr/bin/env bash
# Start a scheduler and workers on other hosts, over TLS, run one command on them, and stop them:
#
#     run.sh rgcss scan /data/rows.zarr -o /data/moments.zarr
#
# The settings are in hosts.conf beside this script, or in the file that RGCSS_CLUSTER names.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=hosts.conf
. "${RGCSS_CLUSTER:-$here/hosts.conf}"
# shellcheck source=../begin.sh
. "$here/../begin.sh"

# Nobody is there to type a password, and a host that is gone must not go unnoticed for hours.
ssh=(ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=15 "${SSH_OPTIONS[@]}")
# TLS through Dask's configuration: `dask scheduler` does not take --tls-cert together with --interface.
dask=(env "DASK_CONFIG=$FOLDER/dask.yaml" "$DASK")

# The same configuration with the paths that hold on the hosts.
sed -E "s#\"[^\"]*/([a-z-]+\.pem)\"#\"$FOLDER/\1\"#" "$DASK_CONFIG" >"$state/dask.yaml"

install_on() { # host, role: the files a role needs, and no other role's key
  local files=(ca.pem "$2.pem" "$2-key.pem")
  tar -c -C "$CERTIFICATES" "${files[@]}" -C "$here/.." supervise.sh -C "$state" dask.yaml |
    "${ssh[@]}" "$1" "umask 077 && mkdir -p $FOLDER && rm -f $FOLDER/scheduler.json && tar -C $FOLDER -xo"
}

keep_on() { # host, name, command: run it under a supervisor; connect again when the connection is lost (ssh: 255)
  local host=$1 file=$FOLDER/$2 code=0
  shift 2
  # The supervisor of a lost connection may still be there, and is replaced.
  local supervised="sh $FOLDER/supervise.sh --replace $file.pid --while-stdin ${*@Q} >>$file.log 2>&1"
  while "${ssh[@]}" "$host" "$supervised" || code=$?; do
    # If this script was killed, it left no sign that it stops: $$ is its number in here too.
    if [ "$code" -ne 255 ] || [ -e "$state/stopping" ] || ! kill -0 "$$" 2>/dev/null; then break; fi
    code=0
    sleep 2
  done
}

install_on "$SCHEDULER" scheduler
for host in $(printf '%s\n' "${WORKERS[@]}" | sort -u); do
  install_on "$host" worker
done

keep_on "$SCHEDULER" scheduler "${dask[@]}" scheduler --interface "$INTERFACE" --port "$PORT" \
  --dashboard-address "$DASHBOARD" --scheduler-file "$FOLDER/scheduler.json" \
  <"$state/scheduler" 8>&- 9>&- &
scheduler=$!
address=
deadline=$((SECONDS + 120))
until [ -n "$address" ]; do
  if ! kill -0 "$scheduler" 2>/dev/null || [ $SECONDS -gt $deadline ]; then
    echo "error: no scheduler starts on $SCHEDULER. The end of $FOLDER/scheduler.log there:" >&2
    "${ssh[@]}" "$SCHEDULER" "tail -n 5 $FOLDER/scheduler.log" </dev/null >&2
    exit 1
  fi
  sleep 0.5
  "${ssh[@]}" "$SCHEDULER" "cat $FOLDER/scheduler.json" </dev/null >"$state/scheduler.json" 2>/dev/null || continue
  address=$(sed -n 's/.*"address": *"\([^"]*\)".*/\1/p' "$state/scheduler.json")
done

for i in "${!WORKERS[@]}"; do
  keep_on "${WORKERS[i]}" "worker-$i" "${dask[@]}" worker "$address" --name "worker-$i" --interface "$INTERFACE" \
    --dashboard-address 127.0.0.1:0 --nthreads "$THREADS" --memory-limit "$MEMORY" --death-timeout 60 \
    <"$state/workers" 8>&- 9>&- &
  workers+=($!)
done

"$@" --scheduler-file "$state/scheduler.json" 8>&- 9>&-
