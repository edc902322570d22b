#!/bin/bash
{{gridengine options}}
#
# xffl job {{job_name}}, rendered for Grid Engine. `qsub job.sh` by hand submits the same job. Its folder, protocol and files:
# docs/reference/job_json.md and docs/operator/grid_engine.md.
job=${JOB_ID:?this script is for qsub}
starts=${RESTARTED:-0} # 1: the job was rescheduled
hosts=("$HOSTNAME")
if [ -r "$PE_HOSTFILE" ]; then mapfile -t hosts < <(cut -d ' ' -f 1 "$PE_HOSTFILE"); fi
on_host() { # on_host HOST COMMAND...: as a task of this job; the warning reaches the ranks of the first host
  local host=$1
  shift
  trap '' USR1
  exec qrsh -inherit -nostdin "$host" "$@"
}
{{include ranks}}
