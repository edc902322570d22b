#!/bin/bash
{{flux options}}
#
# xffl job {{job_name}}, rendered for Flux. `flux batch job.sh` by hand submits the same job. Its folder, protocol and files:
# docs/reference/job_json.md and docs/operator/pbs_and_flux.md.
job=$(flux job id --to=dec "$(flux getattr jobid)") # the broker of this script is a job of the system's Flux
: "${job:?this script is for flux batch}"
starts=0
mapfile -t hosts < <(flux exec --label-io --rank=all hostname | sort -n | cut -d ' ' -f 2)
on_host() { # on_host HOST COMMAND...: by the broker of the host; the warning reaches the ranks of the first host
  local broker
  for broker in "${!hosts[@]}"; do
    if [ "${hosts[broker]}" = "$1" ]; then break; fi
  done
  shift
  trap '' USR1
  exec flux exec --rank="$broker" "$@"
}
{{include ranks}}
