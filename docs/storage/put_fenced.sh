# put_fenced URL TOKEN COMMAND...: puts what the command prints, if it succeeds. The token is the first line of the object.
# 0 written, 1 refused: stop. You are stale, or TOKEN is no token; else: not written, or unknown
put_fenced() (
    is_token() {
        case $1 in ''|0*|*[!0-9]*|?????????????????*) return 1;; esac
        [ "$1" -le 9007199254740991 ]
    }
    [ $# -gt 2 ] || exit 2
    url=$1 token=$2
    shift 2
    is_token "$token" || { echo "put_fenced: '$token' is not a fencing token" >&2; exit 1; }
    dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT || exit 2
    (echo "$token" && "$@") >"$dir/new" || exit 2
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        found=$(curl -sS $S3_OPTIONS -D "$dir/head" -o "$dir/old" -w '%{http_code}' "$url") || exit 2
        case $found in
        404) condition='If-None-Match: *' ;;
        200)
            etag=$(sed -n 's/^[Ee][Tt][Aa][Gg]: *\([^[:space:]]*\).*/\1/p' "$dir/head")
            [ -n "$etag" ] || { echo "put_fenced: $url has no ETag" >&2; exit 2; } # curl would leave out the condition
            highest=$(head -n 1 "$dir/old")
            is_token "$highest" || { echo "put_fenced: $url begins with no token" >&2; exit 2; }
            [ "$token" -ge "$highest" ] || exit 1
            condition="If-Match: $etag" ;;
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
