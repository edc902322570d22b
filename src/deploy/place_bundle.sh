# Puts a bundle into place, and does not promote it: compares an unpacked bundle with its MANIFEST, or unpacks the archive that was sent,
# and starts xffl-train. `xffl deploy` runs this script in a job or on the log-in node (deploy.unpack).
#
# Arguments: the folder of programs, the bundle's name, the first digits of its MANIFEST's SHA-256.
# When `xffl deploy` is killed, its script goes on here for a while, and the next one starts beside it. Each unpacks into a folder of its
# own, and the file .staging/NAME.owner names the newest one, which alone may replace anything.
#
# Output: lines "key value". Lines "step ..." tell the progress, the line "end" is the last one. Another exit code than 0: there is no report.
LC_ALL=C
export LC_ALL
trap '' USR1 # the warning before the walltime would end this shell
name=$2 manifest=$3
archive=.staging/$name/$name.tar.gz
own=$(uname -n).$$.$(date +%s)
fresh=.staging/$name.unpacked.$own

say() { # say KEY TEXT: one line, with the end of a long text
  printf '%s %s\n' "$1" "$(printf '%s' "$2" | tail -c 1500 | tr '\n' ' ')"
}
finish() {
  echo end
  exit 0
}
# Compares the files of the folder $1 with its MANIFEST; `problem` names a difference.
compare() {
  case $(cd -- "$1" && sha256sum MANIFEST) in
    "$manifest"*) problem=$(cd -- "$1" && sha256sum -c --quiet MANIFEST 2>&1) ;;
    *)
      problem="MANIFEST: another hash than the archive's name"
      return 1
      ;;
  esac
}

stop_unless_newest() {
  if ! read -r newest 2>/dev/null <".staging/$name.owner" || [ "$newest" != "$own" ]; then
    rm -rf -- "$fresh"
    rmdir .staging 2>/dev/null
    echo 'another deployment of this bundle has begun here' >&2
    exit 2
  fi
}
# Removes the folders that earlier scripts left. A script that still runs may write files meanwhile, hence the second try.
remove_others() {
  for folder in ".staging/$name.unpacked"*; do
    [ "$folder" = "$fresh" ] || rm -rf -- "$folder" 2>/dev/null || rm -rf -- "$folder" 2>/dev/null
  done
}

cd -- "$1" || exit 2
say host "$(uname -n)"
say machine "$(uname -m)"
libc=$(getconf GNU_LIBC_VERSION 2>/dev/null || /usr/bin/getconf GNU_LIBC_VERSION 2>/dev/null) && say glibc "${libc#glibc }"
missing=
for program in tar gzip sha256sum; do
  command -v $program >/dev/null 2>&1 || missing="$missing $program"
done
if [ -n "$missing" ]; then
  say missing "${missing# }"
  finish
fi

state=
if [ -e "$name/MANIFEST" ]; then
  echo 'step compares the files that are there'
  if compare "$name"; then state=intact; else say damage "$problem"; fi
fi
if [ -z "$state" ]; then
  if [ ! -e "$archive" ]; then
    echo 'state absent'
    finish
  fi
  echo 'step unpacks the archive'
  printf '%s\n' "$own" >".staging/$name.owner" || exit 2
  remove_others
  mkdir -- "$fresh" || exit 2
  if ! problem=$(tar -xzf "$archive" --touch --no-same-owner -C "$fresh" 2>&1) ||
    ! echo 'step compares the files with MANIFEST' || ! compare "$fresh/$name"; then
    stop_unless_newest
    say problem "$problem"
    found=$(sha256sum -- "$archive") && say archive "${found%% *}"
    echo 'state broken'
    rm -rf -- "$fresh"
    finish
  fi
  stop_unless_newest
  rm -rf -- "$name" && mv -T -- "$fresh/$name" "$name" || exit 2
  state=unpacked
fi
rm -rf -- "$fresh"
remove_others
rm -rf -- ".staging/$name" ".staging/$name.owner"
rmdir .staging 2>/dev/null
say state "$state"
echo 'step starts xffl-train'
started=$("$name/bin/xffl-train" --version 2>/dev/null </dev/null)
code=$?
[ "$code" = 0 ] || started=$("$name/bin/xffl-train" --version 2>&1 </dev/null)
say exit_code "$code"
say started "$started"
finish
