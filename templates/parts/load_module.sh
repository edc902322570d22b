load_module() {
  local init
  if ! command -v module >/dev/null 2>&1; then
    for init in /etc/profile.d/{lmod,z00_lmod,modules,00-modulepath}.sh "$LMOD_PKG/init/bash" "$MODULESHOME/init/bash" \
      /usr/share/{lmod/lmod,modules}/init/bash; do
      if [ -r "$init" ]; then . "$init"; fi
      if command -v module >/dev/null 2>&1; then break; fi
    done
  fi
  if ! module load "$1"; then
    echo "xffl: cannot load the module $1" >&2
    exit 1
  fi
}
