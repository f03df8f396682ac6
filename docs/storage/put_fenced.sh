# put_fenced URL TOKEN COMMAND...: puts what the command prints, if it succeeds.
# 0 written, 1 you are stale, stop; else: can't tell
put_fenced() (
    [ $# -gt 2 ] || exit 2
    url=$1 token=$2
    shift 2
    case $token in ''|0*|*[!0-9]*|?????????????????*) exit 1;; esac
    [ "$token" -le 9007199254740991 ] || exit 1
    dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT || exit 2
    (echo "$token" && "$@") >"$dir/new" || exit 2
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        found=$(curl -sS $S3_OPTIONS -D "$dir/head" -o "$dir/old" -w '%{http_code}' "$url") || exit 2
        case $found in
        404) condition='If-None-Match: *' ;;
        200) condition="If-Match: $(sed -n 's/^[Ee][Tt][Aa][Gg]: *\([^[:space:]]*\).*/\1/p' "$dir/head")"
            [ "$token" -ge "$(head -n 1 "$dir/old")" ] || exit 1 ;;
        *) exit 2 ;;
        esac
        put=$(curl -sS $S3_OPTIONS -T "$dir/new" -H "$condition" -o "$dir/answer" -w '%{http_code}' "$url") || exit 2
        case $put in
        200) exit 0 ;;
        404 | 409 | 412) ;; # it was written in between: look again
        *) exit 2 ;;
        esac
    done
    exit 2
)
