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
