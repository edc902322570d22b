# Completion of xffl for bash 4.4 or newer. The program xffl of PATH lists the candidates; the script evaluates none.
_xffl() {
  local candidate description
  COMPREPLY=()
  while IFS=$'\t' read -r candidate description; do
    case $candidate in
      :files) compopt -o default ;;
      :folders) compopt -o dirnames ;;
      *) COMPREPLY+=("$candidate") ;;
    esac
  done < <(command xffl complete-words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null </dev/null)
}
complete -F _xffl xffl
