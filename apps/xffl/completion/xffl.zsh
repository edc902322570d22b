#compdef xffl
# Completion of xffl for zsh. The program xffl of PATH lists the candidates; the script evaluates none.
_xffl() {
  local line
  local -a names shown
  for line in "${(@f)$(command xffl complete-words "${(@Q)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null </dev/null)}"; do
    case $line in
      :files) [[ $PREFIX != --*=* ]] || compset -P '*='; _files ;;
      :folders) [[ $PREFIX != --*=* ]] || compset -P '*='; _files -/ ;;
      ?*) names+=("${line%%$'\t'*}"); shown+=("${line/$'\t'/  -- }") ;;
    esac
  done
  (( ! $#names )) || compadd -l -d shown -a names
}
# zsh runs the file at the first completion; `source` only registers the function.
if [[ ${funcstack[1]} == _xffl ]]; then _xffl "$@"; else compdef _xffl xffl; fi
