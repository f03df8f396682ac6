# write_fenced FILE TOKEN COMMAND...: the file gets what the command prints, if it succeeds.
# 0 written, 1 refused: stop. You are stale, or TOKEN is no token; else: not written, or perhaps not on disk
write_fenced() (
    [ $# -gt 2 ] || exit 2
    say() { echo "write_fenced: $1" >&2; }
    name=${1##*/} token=$2
    case $1 in /*) dir=${1%"$name"};; *) dir=./${1%"$name"};; esac
    case $name in ''|.*) say "the name of '$1' is empty or begins with a dot"; exit 2;; esac
    shift 2
    case $token in ''|0*|*[!0-9]*|?????????????????*) false;; *) [ "$token" -le 9007199254740991 ];; esac ||
        { say "'$token' is not a fencing token"; exit 1; }
    mark=$dir.$name.fence # with .NAME.fence-lock and .NAME.fence-new, as fence.Dir has them in Go
    [ -e "$mark-lock" ] || true >>"$mark-lock" || exit 2
    command exec 9<"$mark-lock" && flock 9 || exit 2
    if [ -e "$dir$name.fence" ] && [ -e "$dir$name.fence-lock" ]; then
        say "$dir$name.fence is a mark of an earlier version. Once that is in use nowhere, run: take_over_fenced '$dir'"
        exit 2
    fi
    highest=0 # before the first write. A mark that can't be read does not count as 0
    if [ -e "$mark" ]; then # {"token":7}, or with permits {"token":7,"slots":{"0":8,"2":9}}: the highest of all counts
        highest=$(grep -Ex '\{"token":[0-9]{1,16}(,"slots":\{"[0-9]+":[1-9][0-9]{0,15}(,"[0-9]+":[1-9][0-9]{0,15})*\})?\}' "$mark" |
            grep -oE ':[0-9]+' | tr -d : | sort -n | tail -n 1)
        [ "${highest:-0}" -ge 1 ] && [ "$highest" -le 9007199254740991 ] || { say "$mark is damaged"; exit 2; }
    fi
    [ "$token" -ge "$highest" ] || exit 1
    rm -f "$mark-new" && printf '{"token":%s}' "$token" >"$mark-new" &&
        sync "$mark-new" && mv -f "$mark-new" "$mark" || exit 2
    ("$@") 9<&- >"$mark-new" || { rm -f "$mark-new"; exit 2; }
    sync "$mark-new" "$dir" && mv -f "$mark-new" "$dir$name" && sync "$dir" || exit 2
)

# take_over_fenced DIRECTORY: once, when no earlier version of write_fenced, which had the mark of FILE in FILE.fence, is in use.
take_over_fenced() (
    cd "$1" || exit 2
    for lock in *.fence-lock; do
        old=${lock%-lock}
        [ -e "$old" ] || continue
        marks=$(cat "$old" && { [ ! -e ".$old" ] || cat ".$old"; }) || exit 2 # the higher one counts
        token=$(echo "$marks" | grep -oE '(^|:)[0-9]+' | tr -d : | sort -n | tail -n 1)
        [ "$token" ] && printf '{"token":%s}' "$token" >".$old-new" && sync ".$old-new" && mv -f ".$old-new" ".$old" &&
            sync . && rm "$old" "$lock" || { echo "take_over_fenced: $old was not taken over" >&2; exit 2; }
    done
)
