#!/bin/sh
# xffl job xffl-demo-0001-r0002-alba-a1, a process of this machine. Its folder, protocol and files: docs/formats.md.
umask 077
cd /scratch/me/xffl/demo/0001-0123abcd/alba/r0002/a1 || exit 1

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
printf '%s %s\n' "$$.${20}" 0123456789abcdef0123456789abcdef >claim/owner.part || exit 1
mv claim/owner.part claim/owner || exit 1
set --

exec /opt/xffl/bin/xffl exec --world-size 1 -- /opt/xffl/bin/xffl-train --job /scratch/me/xffl/demo/0001-0123abcd/alba/r0002/a1/job.json
