#!/bin/sh
# xffl job xffl-demo-0001-r0002-alba-a1, a process of this machine. Its folder, protocol and files: docs/reference/job_json.md.
umask 077
cd /scratch/me/xffl/demo/0001-0123abcd/alba/r0002/a1 || exit 1

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
printf '%s %s\n' "$owner" 0123456789abcdef0123456789abcdef >claim/owner.part || exit 1
mv claim/owner.part claim/owner || exit 1

# One line per moment of this start, for the account of node-hours (docs/reference/job_json.md). A failed write costs nothing.
stamp() { { echo "$1 $(date +%s)${2:+ $2}" >>claim/times; } 2>/dev/null || :; }
stamp start "job=$owner nodes=1"

# Checks the input model for a custom trainer: the coordinator lists its files and their SHA-256, and sends damaged files again.
# The list is empty for xffl-train, which checks the model itself.
if [ -s model.sha256 ] && ! command -v sha256sum >/dev/null 2>&1; then
  echo "xffl: sha256sum not found: the input model is not checked" >&2
elif [ -s model.sha256 ]; then
  check_files() {
    if ! command -v xargs >/dev/null 2>&1; then
      sha256sum --check --quiet model.sha256
      return
    fi
    # openssl is faster (it uses the processor's SHA instructions); sha256sum decides where the digests differ.
    xargs -d '\n' -n 1 -P 8 sh -c 'found=$(openssl dgst -sha256 -r "${1#*  }" 2>/dev/null)
      [ "${found%% *}" = "${1%%  *}" ] || printf "%s\n" "$1" | sha256sum --check --quiet' sh <model.sha256
  }
  damaged=$(LC_ALL=C check_files 2>&1) || {
    echo "xffl: the input model is damaged: $damaged" >&2
    case $damaged in
      *FAILED*) printf '%s\n' "$damaged" >out/model.failure.part && mv out/model.failure.part out/model.failure ;;
    esac
    exit 1
  }
fi

stamp train
exec /opt/xffl/bin/xffl exec --world-size 1 -- /opt/xffl/bin/xffl-train --job /scratch/me/xffl/demo/0001-0123abcd/alba/r0002/a1/job.json
