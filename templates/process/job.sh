#!/bin/sh
# xffl job {{job_name}}, a process of this machine. Its folder, protocol and files: docs/reference/job_json.md.
umask 077
cd {{quote folder}} || exit 1

# The start that creates the claim trains; a second start of the same attempt exits.
if ! mkdir claim 2>/dev/null; then
  if [ -d claim ]; then
    echo "xffl: this attempt is already claimed by $(cat claim/owner 2>/dev/null); nothing to do"
    exit 0
  fi
  echo "xffl: cannot create the folder 'claim' in $PWD" >&2
  exit 1
fi

# The owner: process id and start time (field 22 of /proc/PID/stat; exec keeps both), and the nonce.
IFS= read -r stat <"/proc/$$/stat" || exit 1
# The text after the last ')' starts with field 3. zsh does not split an unquoted variable into words.
owner=$$.$(printf '%s\n' "${stat##*) }" | cut -d ' ' -f 20)
printf '%s %s\n' "$owner" {{quote nonce}} >claim/owner.part || exit 1
mv claim/owner.part claim/owner || exit 1

# One line per moment of this start, for the account of node-hours (docs/reference/job_json.md). A failed write costs nothing.
stamp() { { echo "$1 $(date +%s)${2:+ $2}" >>claim/times; } 2>/dev/null || :; }
stamp start "job=$owner nodes=1"

{{include check_model}}

{{lines environment}}
stamp train
exec {{words launch}}
