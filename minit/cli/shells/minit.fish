# Completion of minit for fish. Made by `minit completion fish`.

function __minit_complete
    set -l word (commandline --current-token)
    set -l words (commandline --tokenize --cut-at-cursor --current-process)
    set -l lines ($words[1] __complete fish $words "$word" 2> /dev/null)
    set -q lines[1]; or return
    test (count $lines) -gt 1; and printf '%s\n' $lines[2..-1]
    set -l option (string match --regex -- '^--[^=]*=' $word)
    set -l begun (string replace --regex -- '^--[^=]*=' '' $word)
    switch $lines[1]
        case files
            printf "$option%s\n" (__fish_complete_path $begun)
        case directories
            printf "$option%s\n" (__fish_complete_directories $begun)
    end
end

complete --command minit --no-files --arguments '(__minit_complete)'
