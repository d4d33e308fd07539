#compdef launch
# Completion of `launch` for zsh. In ~/.zshrc, after compinit:  eval "$(launch completion zsh)"
_launch() {
    local line word
    local -a whole whole_shown begun begun_shown
    for line in ${(f)"$(${words[1]/#\~/$HOME} __complete zsh "${(@Q)words[2,CURRENT]}" 2>/dev/null)"}; do
        word=${line%%$'\t'*}
        if [[ $word == *[=./,@] ]]; then
            begun+=($word)
            begun_shown+=("${line//$'\t'/  }")
        else
            whole+=($word)
            whole_shown+=("${line//$'\t'/  }")
        fi
    done
    (( $#whole )) && compadd -l -V words -d whole_shown -a whole
    (( $#begun )) && compadd -l -S '' -V begun -d begun_shown -a begun
}
compdef _launch launch
