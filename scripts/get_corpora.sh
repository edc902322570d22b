#!/usr/bin/env bash
# Makes two clean corpora, it.txt (Italian) and cs.txt (Czech), from the LibreOffice help pages in Debian.
#
#   scripts/get_corpora.sh [OUTDIR]      default: .corpora in the source folder
#
# Downloads the packages libreoffice-help-it and -cs (without root) and unpacks the packages in a temporary folder
# without installing them. Blank lines separate documents (one per help page); a line is a paragraph. Safe to repeat:
# the script keeps a complete corpus. Needs apt-get, dpkg-deb and python3.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-$here/../.corpora}
min_bytes=1000000

fail() {
  echo "get_corpora: $*" >&2
  exit 1
}

is_good() { # is_good FILE: large enough and UTF-8
  [ -f "$1" ] && [ "$(stat -c %s "$1")" -ge $min_bytes ] && iconv -f utf-8 -t utf-8 "$1" >/dev/null 2>&1
}

missing_tool() {
  fail "$1 was not found, so the help pages cannot be downloaded; use your own text instead:
  xffl demo --text it=FILE --text cs=FILE"
}

# Uses private package lists if the system's lists are missing or outdated; needs no root.
download() { # download PACKAGE FOLDER
  cd "$2"
  apt-get download -q "$1" && return
  mkdir -p lists/partial cache/archives/partial
  local own=(-o Dir::State::lists="$PWD/lists" -o Dir::Cache="$PWD/cache")
  apt-get "${own[@]}" update -q && apt-get "${own[@]}" download -q "$1"
}

make_corpus() { # make_corpus LANGUAGE TEMP: works in TEMP, then renames the result into the output folder
  local language=$1 work=$2/$1 start=$SECONDS package=libreoffice-help-$1
  mkdir "$work"
  (download "$package" "$work") >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    fail "apt-get could not download $package; use your own text instead:
  xffl demo --text it=FILE --text cs=FILE"
  }
  dpkg-deb -x "$work"/"$package"_*.deb "$work/root"
  python3 "$here/help_pages_to_text.py" "$language" "$work/root/usr/share/libreoffice/help/$language/text" \
    "$out/$language.txt.part-$$"
  is_good "$out/$language.txt.part-$$" ||
    fail "the text of $package has $(stat -c %s "$out/$language.txt.part-$$") bytes, expected at least $min_bytes of UTF-8"
  mv "$out/$language.txt.part-$$" "$out/$language.txt"
  echo "get_corpora: $out/$language.txt: $(stat -c %s "$out/$language.txt") bytes, $((SECONDS - start)) s"
}

mkdir -p "$out"
out=$(cd "$out" && pwd)
wanted=()
for language in it cs; do
  if is_good "$out/$language.txt"; then
    echo "get_corpora: $out/$language.txt: $(stat -c %s "$out/$language.txt") bytes, exists already"
  else
    wanted+=("$language")
  fi
done
[ ${#wanted[@]} -gt 0 ] || exit 0
for tool in apt-get dpkg-deb python3; do
  command -v $tool >/dev/null || missing_tool $tool
done
temp=$(mktemp -d)
trap 'rm -rf "$temp" "$out"/*.txt.part-$$' EXIT
jobs=()
for language in "${wanted[@]}"; do
  make_corpus "$language" "$temp" &
  jobs+=($!)
done
status=0
for job in "${jobs[@]}"; do wait "$job" || status=$?; done
exit $status
