#!/bin/sh
# xffl job {{job_name}}, a process of this machine. Its folder, protocol and files: docs/formats.md.
umask 077
cd {{quote folder}} || exit 1

# The first act: whoever creates the claim trains; a second start of the same attempt must not.
if ! mkdir claim 2>/dev/null; then
  if [ -d claim ]; then
    echo "xffl: this attempt is claimed already by $(cat claim/owner 2>/dev/null); nothing to do"
    exit 0
  fi
  echo "xffl: cannot create the folder 'claim' in $PWD" >&2
  exit 1
fi

# The owner: process id and start time (field 22 of /proc/PID/stat; exec keeps both), and the nonce.
IFS= read -r stat <"/proc/$$/stat" || exit 1
# shellcheck disable=SC2086  # split into fields; the text after the last ')' starts with field 3
set -- ${stat##*) }
printf '%s %s\n' "$$.${20}" {{quote nonce}} >claim/owner.part || exit 1
mv claim/owner.part claim/owner || exit 1
set --

{{lines environment}}
exec {{words launch}}
