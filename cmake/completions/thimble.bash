# Completion of thimble's commands and options for bash. Both come from the program's own help.
_thimble() {
  local current=${COMP_WORDS[COMP_CWORD]} given
  if [ "$COMP_CWORD" -eq 1 ]; then
    given="$("${COMP_WORDS[0]}" --help 2>/dev/null | sed -n '/^Commands:/,/^[^ ]/s/^  \([a-z]*\) .*/\1/p') --help --version"
    mapfile -t COMPREPLY < <(compgen -W "$given" -- "$current")
  elif [[ $current == -* ]]; then
    given=$("${COMP_WORDS[0]}" "${COMP_WORDS[1]}" --help-all 2>/dev/null | grep -oE '^ +(-[a-z],)?--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+')
    mapfile -t COMPREPLY < <(compgen -W "$given" -- "$current")
  else
    compopt -o default
    COMPREPLY=()
  fi
}
complete -F _thimble thimble
