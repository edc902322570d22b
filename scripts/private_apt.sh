# Functions for scripts that need packages of another Debian or another architecture, without installing them. Sourced, not started.

# private_apt FOLDER SUITE ARCHITECTURE [COMPONENT]: a state of apt in FOLDER with this machine's mirror and keys. apt checks signatures
# as usual. COMPONENT: main (default), non-free, ...
private_apt() {
  local mirror keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  apt_folder=$1
  mkdir -p "$1"/{state/lists/partial,cache/archives/partial}
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/*$' || echo http://deb.debian.org/debian/)
  echo "deb [signed-by=$keyring] $mirror $2 ${4:-main}" >"$1/sources.list"
  cat >"$1/apt.conf" <<A
APT::Architecture "$3";
APT::Architectures { "$3"; };
Dir::State "$1/state";
Dir::Cache "$1/cache";
Dir::Etc::sourcelist "$1/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::status "/dev/null";
APT::Sandbox::User "root";
A
  APT_CONFIG=$1/apt.conf apt-get update -q
}

# fetch SUBFOLDER PACKAGE...: downloads packages into a folder of private_apt's.
fetch() {
  mkdir -p "$apt_folder/$1"
  (cd "$apt_folder/$1" && shift && APT_CONFIG=$apt_folder/apt.conf apt-get download -q "$@")
}

# fetch_closure SUBFOLDER PACKAGE...: the same, with the packages that these depend on.
fetch_closure() {
  local subfolder=$1
  mkdir -p "$apt_folder/$subfolder/partial"
  shift
  APT_CONFIG=$apt_folder/apt.conf apt-get install -q -y --download-only --no-install-recommends \
    -o "Dir::Cache::archives=$apt_folder/$subfolder" "$@"
}

# links_inside ROOT: absolute links of unpacked packages stay in ROOT.
links_inside() {
  local link target
  find "$1" -type l | while read -r link; do
    target=$(readlink "$link")
    if [[ $target == /* && -e $1$target ]]; then ln -sfnr "$1$target" "$link"; fi
  done
}
