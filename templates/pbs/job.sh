#!/bin/bash
{{pbs options}}
#
# xffl job {{job_name}}, rendered for PBS. `qsub job.sh` by hand submits the same job. Its folder, protocol and files:
# docs/reference/job_json.md and docs/operator/pbs_and_flux.md.
job=${PBS_JOBID:?this script is for qsub}
starts=0 # PBS does not tell a job that it runs again; the heartbeat does
hosts=("$(hostname)")
if [ -r "$PBS_NODEFILE" ]; then mapfile -t hosts < <(awk '!seen[$0]++' "$PBS_NODEFILE"); fi
tmrsh=$(command -v pbs_tmrsh || (. /etc/pbs.conf && echo "$PBS_EXEC/bin/pbs_tmrsh") 2>/dev/null || echo pbs_tmrsh)
on_host() { # on_host HOST COMMAND...: as a task of this job; the warning reaches the ranks of the first host
  trap '' USR1
  exec "$tmrsh" "$@"
}
{{include ranks}}
