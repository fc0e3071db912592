#compdef minit
# Completion of minit for zsh. Made by `minit completion zsh`.

_minit() {
    local line paths
    local -a lines plain open
    lines=("${(@f)$("${(Q)words[1]}" __complete zsh "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2> /dev/null)}")
    paths=$lines[1]
    for line in "${(@)lines[2,-1]}"; do
        # A colon would begin the description.
        line="${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}"
        if [[ ${line%%:*} == *= ]]; then open+=("$line"); else plain+=("$line"); fi
    done
    (( $#plain )) && _describe minit plain
    (( $#open )) && _describe minit open -S ''
    if [[ $paths != nothing ]]; then
        compset -P '--[^=]#='
        if [[ $paths == directories ]]; then _files -/; else _files; fi
    fi
    return 0
}

if [[ $funcstack[1] == _minit ]]; then
    _minit "$@"
else
    compdef _minit minit
fi
