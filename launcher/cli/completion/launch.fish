# Completion of `launch` for fish. Once:  launch completion fish > ~/.config/fish/completions/launch.fish
function __launch_complete
    set -l words (commandline -opc)
    $words[1] __complete fish $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c launch -f -k -a '(__launch_complete)'
