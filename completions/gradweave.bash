_gradweave() {
  local IFS=$'\n'
  local words
  words=$(gradweave complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _gradweave gradweave
