# Completion of xffl for fish. The program xffl of PATH lists the candidates; the script evaluates none.
function __xffl_candidates
    set -l words (commandline -opc)
    set -e words[1]
    set -l current (commandline -ct)
    set -l option (string match -r -- '^--[^=]*=' "$current")
    set -l path (string replace -r -- '^--[^=]*=' '' "$current")
    for line in (command xffl complete-words $words "$current" 2>/dev/null </dev/null)
        switch $line
            case :files
                for file in (__fish_complete_path "$path")
                    printf '%s%s\n' "$option" "$file"
                end
            case :folders
                for folder in (__fish_complete_directories "$path" '')
                    printf '%s%s\n' "$option" "$folder"
                end
            case '*'
                printf '%s\n' "$line"
        end
    end
end
complete -c xffl -f -a '(__xffl_candidates)'
