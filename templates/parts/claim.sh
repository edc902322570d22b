# The part of a job script that claims the attempt. Before it: the variables job (the id) and starts (restarts of the job, if
# known), and the function already_reported.
# The job that creates the claim trains; another job of this attempt exits. A job with the owner's id is a restarted job, whose
# earlier start has ended, or another job with a reused id (a queue manager that lost its state). The earlier start's heartbeat
# tells them apart.
start_id=$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')
beat=${XFFL_CLAIM_BEAT:-15} # seconds between heartbeats
own_claim() {
  printf '%s %s %s %s\n' "$job" {{quote nonce}} "$start_id" "$starts" >claim/owner.part && mv claim/owner.part claim/owner
}
is_alive() { # is_alive START_ID: the heartbeat of that start changes
  local before
  before=$(cat "claim/beat-$1" 2>/dev/null)
  for _ in 1 2 3; do
    sleep "$beat"
    [ "$(cat "claim/beat-$1" 2>/dev/null)" = "$before" ] || return 0
  done
  return 1
}
if mkdir claim 2>/dev/null; then
  own_claim || exit 1
elif [ -e claim/fenced ]; then
  echo "xffl: the coordinator has abandoned this attempt; nothing to do"
  exit 0
elif [ -d claim ]; then
  owner=
  for _ in 1 2 3 4 5; do
    read -r owner _ owner_start_id owner_starts 2>/dev/null <claim/owner && break
    sleep 2 # the owner is written after the claim; a shared file system may show it late
  done
  if [ "$owner" != "$job" ]; then
    echo "xffl: this attempt is already claimed by ${owner:+job }${owner:-an unknown job}; nothing to do"
    exit 0
  fi
  if [ -e out/report.json ] || [ -e stay.taken ]; then # the folder out of a job of several rounds may be removed
    already_reported
    echo "xffl: job $job has already reported"
    exit 0
  fi
  if [ "$starts" -le "${owner_starts:-0}" ] && is_alive "${owner_start_id:-none}"; then
    echo "xffl: another job with the id $job trains here; nothing to do"
    exit 0
  fi
  echo "xffl: job $job starts again (restart $starts); its earlier output is removed"
  own_claim && rm -rf out && mkdir out || exit 1
else
  echo "xffl: cannot create the folder 'claim' in $PWD" >&2
  exit 1
fi
