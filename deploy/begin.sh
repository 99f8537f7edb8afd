# shellcheck shell=bash
# What run.sh does first, on one machine as over SSH: look for certificates, and see to it that nothing is left behind.
# Read by run.sh after its settings.
if [ $# -eq 0 ]; then
  echo "usage: run.sh rgcss scan|batch ... (it gets --scheduler-file)" >&2
  exit 2
fi
if ! [ -f "$CERTIFICATES/dask.yaml" ]; then
  echo "error: there are no certificates in $CERTIFICATES. Make them: make_certificates.py $CERTIFICATES" >&2
  exit 1
fi
DASK_CONFIG=$(realpath "$CERTIFICATES/dask.yaml")
export DASK_CONFIG

# Scheduler and workers live as long as somebody could write to their pipe: until run.sh ends, however it ends.
state=$(mktemp -d)
mkfifo "$state/scheduler" "$state/workers"
exec 8<>"$state/scheduler" 9<>"$state/workers"
workers=()
stop() {
  touch "$state/stopping"
  exec 9>&-
  # First the workers: without a scheduler they would not know that all is well.
  if [ ${#workers[@]} -gt 0 ]; then wait "${workers[@]}" || true; fi
  exec 8>&-
  wait
  rm -rf "$state"
}
trap stop EXIT
