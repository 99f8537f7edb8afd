#!/usr/bin/env bash
# Do the jobs of a file on Slurm: an array of so many shares, then one job for the summary.
#     deploy/slurm/batch.sh JOBS.toml SHARES [options of sbatch ...]
set -euo pipefail
if [ $# -lt 2 ]; then sed -n '2,3s/^# *//p' "$0" >&2; exit 2; fi
jobs=$1 shares=$2
shift 2
script=$(dirname "$0")/array.sbatch
mkdir -p rgcss-logs

array=$(sbatch --parsable --array="1-$shares" --output="rgcss-logs/share-%A-%a.log" "$@" "$script" "$jobs" "$shares")
# However the shares ended: this one does what they left, and writes summary.json for all of them.
summary=$(sbatch --parsable --dependency="afterany:$array" --output="rgcss-logs/summary-%j.log" "$@" "$script" "$jobs" "$shares")
echo "array $array of $shares shares, then job $summary for the summary; logs in rgcss-logs/"
