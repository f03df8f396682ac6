# write_fenced FILE TOKEN COMMAND...: the file gets what the command prints, if it succeeds.
# 0 written, 1 refused: stop. You are stale, or TOKEN is no token; else: not written, or perhaps not on disk
write_fenced() (
    [ $# -gt 2 ] || exit 2
    file=$1 token=$2
    shift 2
    case $token in ''|0*|*[!0-9]*|?????????????????*) false;; *) [ "$token" -le 9007199254740991 ];; esac ||
        { echo "write_fenced: '$token' is not a fencing token" >&2; exit 1; }
    exec 9>>"$file.fence-lock" && flock 9 || exit 2
    highest=0 # before the first write. A mark that can't be read does not count as 0
    [ ! -e "$file.fence" ] || highest=$(cat "$file.fence") || exit 2
    [ "${highest:-none}" -le 9007199254740991 ] || exit 2 # the mark is damaged
    [ "$token" -ge "$highest" ] || exit 1
    echo "$token" >"$file.fence-new" && sync "$file.fence-new" && mv "$file.fence-new" "$file.fence" || exit 2
    ("$@") 9>&- >"$file.new" || exit 2
    sync "$file.new" "$(dirname "$file")" && mv "$file.new" "$file" && sync "$(dirname "$file")" || exit 2
)
