# Completion of `launch` for bash. In ~/.bashrc:  eval "$(launch completion bash)"
_launch() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do # A list of words would be expanded to names of files.
        COMPREPLY+=("$line")
    done < <("${1/#\~/$HOME}" __complete bash "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=./,@] ]]; then
        compopt -o nospace
    fi
}
complete -o nosort -F _launch launch 2>/dev/null || complete -F _launch launch
