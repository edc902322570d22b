# Puts the file of an image into place, and does not promote it: compares an image that is there, or the one that was sent, with its
# SHA-256, and starts xffl-train in it. `xffl deploy` runs this script in a job or on the log-in node (deploy.unpack).
#
# Arguments: the image's folder, its final name, the file that was sent, its SHA-256, the image's program, the trainer inside (empty: none is
# started). The output is that of place_bundle.sh.
LC_ALL=C
export LC_ALL
trap '' USR1 # the warning before the walltime would end this shell
name=$2 sent=$3 sha256=$4 program=$5 trainer=$6

say() { # say KEY TEXT: one line, with the end of a long text
  printf '%s %s\n' "$1" "$(printf '%s' "$2" | tail -c 1500 | tr '\n' ' ')"
}
finish() {
  echo end
  exit 0
}
compare() { # compare FILE: `problem` names a difference
  archive=$(sha256sum -- "$1") || exit 2
  archive=${archive%% *}
  problem="its SHA-256 is $archive, expected $sha256"
  [ "$archive" = "$sha256" ]
}

cd -- "$1" || exit 2
say host "$(uname -n)"
say machine "$(uname -m)"
if ! command -v sha256sum >/dev/null 2>&1; then
  echo 'missing sha256sum'
  finish
fi
state=
if [ -e "$name" ]; then
  echo 'step compares the image that is there'
  if compare "$name"; then state=intact; else say damage "$problem"; fi
fi
if [ -z "$state" ]; then
  if [ ! -e "$sent" ]; then
    echo 'state absent'
    finish
  fi
  echo 'step compares the image with its SHA-256'
  if ! compare "$sent"; then
    say problem "$problem"
    say archive "$archive"
    echo 'state broken'
    finish
  fi
  touch -- "$sent" && mv -f -- "$sent" "$name" || exit 2
  state=placed
fi
rm -rf -- "${sent%/*}"
rmdir .xffl-staging 2>/dev/null
say state "$state"
if [ -n "$trainer" ] && ! command -v -- "$program" >/dev/null 2>&1; then
  say no_program "$program"
elif [ -n "$trainer" ]; then
  echo 'step starts xffl-train in the image'
  started=$("$program" exec "$PWD/$name" "$trainer" --version 2>/dev/null </dev/null)
  code=$?
  [ "$code" = 0 ] || started=$("$program" exec "$PWD/$name" "$trainer" --version 2>&1 </dev/null)
  say exit_code "$code"
  say started "$started"
fi
finish
