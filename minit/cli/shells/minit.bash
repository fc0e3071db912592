# Completion of minit for bash. Made by `minit completion bash`.

_minit() {
    local word paths value IFS=$'\t\n'
    word=${COMP_WORDS[COMP_CWORD]}
    [[ $word == [=:] ]] && word=
    COMPREPLY=()
    {
        read -r paths || return
        while read -r value _; do
            COMPREPLY+=("$value")
        done
    } < <("${COMP_WORDS[0]}" __complete bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2> /dev/null)
    case $paths in
    files)
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word")
        compopt -o filenames
        ;;
    directories)
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$word")
        compopt -o filenames
        ;;
    esac
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    fi
}

complete -F _minit minit
