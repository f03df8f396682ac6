#!/usr/bin/env bash
# Writes a report of 20 parts under the lock reports/nightly. Needs bash 5, curl and Linux. docs/clients.md has the exit statuses.
#   STORAGE=http://127.0.0.1:8090/report bash examples/nightly.sh
#
# The work and the renewals are jobs of their own. The script itself only looks at the clock and at what the renewals tell it,
# and kills both in time. It starts no program and waits for none while it does: on a busy machine that can outlast the lease.
# If you change it: a signal that comes while bash 5.2 runs $(...) may not run its trap, and `read -t` from a pipe may return
# the first half of a line.
set -um # -m: a job is a process group
lock=reports/nightly storage=${STORAGE:-} ttl=30000 # the lock: any text
gateways=${FENCEPOST:-http://127.0.0.1:8080}
read -rd '' -a gateways <<<"${gateways//,/ }"
authorization=${FENCEPOST_KEY:+Authorization: Bearer $FENCEPOST_KEY}
[ -n "$storage" ] || { echo "set STORAGE to the URL that takes the parts of the report, such as http://127.0.0.1:8090/report" >&2; exit 2; }
for url in "${gateways[@]:-}"; do
	[[ $url =~ ^https?://([^/:@]+|\[[^/]+\])(:[0-9]+)?(/|$) ]] || { echo "FENCEPOST has to be a list of URLs like http://127.0.0.1:8080" >&2; exit 64; }
done

hex() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }
lease_id="01$(hex 12 | tr a-f A-F).$(hex 16)" dir=$(mktemp -d) turn=0 answer='' said='' job=''

# From here on the script itself runs no $(...): bash 5.2 may lose a trap there.
clock() { local up; read -r up _ </proc/uptime; now=${up/./}0; } # ms, suspended time included
exec {never}<> <(:)                                              # a pipe on which nothing comes: to read from it is to sleep, without a program
pause() { local s; printf -v s '%d.%03d' $(($1 / 1000)) $(($1 % 1000)); read -rt $s -u $never; }

encode() { # sets name to any text as a name: docs/locks.md
	local LC_ALL=C before=/ i byte
	name=''
	for ((i = 0; i < ${#1}; i++)); do
		byte=${1:i:1}
		case $before${1:i} in
		//* | ?/ | /. | /./* | /.. | /../* | ?[!A-Za-z0-9._:@/-]*)
			printf -v byte %d "'$byte"
			printf -v byte '~%02X' $((byte & 255))
			;;
		esac
		name+=$byte before=${1:i:1}
	done
}

# ask METHOD BODY TIMEOUT: one request. Sets status (000: it is no gateway's), after (ms not to ask again) and said, for people.
# Lease id and key are in no command line.
ask() {
	local seconds file=$dir/$1.$BASHPID url=${gateways[turn % ${#gateways[@]}]} mine=$turn
	turn=$((turn + 1)) # whoever asks before this is answered asks the next gateway
	while [[ $url == */ ]]; do url=${url%/}; done
	printf -v seconds '%d.%03d' $(($3 / 1000)) $(($3 % 1000))
	clock
	sent=$now
	curl -sS --max-time "$seconds" -w '\n%{http_code} %header{retry-after}' -X "$1" -d "$2" \
		-H @<(printf 'Lease-Id: %s\n%s' "$lease_id" "$authorization") "$url/locks/$name" >"$file" 2>&1 &
	status=000 after=0 answer=''
	if wait $!; then # a trap interrupts it
		read -rd '' answer <"$file" # to its end
		[[ ${answer##*$'\n'} =~ ^([0-9]{3})\ ?([0-9]{1,6}$)? ]] && status=${BASH_REMATCH[1]} after=$((${BASH_REMATCH[2]:-0} * 1000))
	else
		read -rd '' answer <"$file"
	fi
	said="$1 $url/locks/$name: ${answer:0:500}" said=${said//$'\n'/ }
	rm -f "$file"
	case $1$status in
	POST20[01] | PUT200) granted && turn=$mine || status=000 ;;
	*4??) [[ $answer == *'"code"'* ]] || status=000 ;; # a proxy's
	esac
	case $status in
	204 | 400 | 409 | 412 | 423) turn=$mine ;;
	esac
}
number() { [[ $answer =~ \"$2\":([0-9]+) ]] && printf -v "$1" %s "${BASH_REMATCH[1]}"; }
granted() { # false: the answer is none of the gateway's, and nothing is known
	local waited expires renew
	number waited waited_ms && number expires expires_in_ms && number renew renew_in_ms && number token fencing_token || return 1
	deadline=$((sent + waited + expires)) renew_at=$((sent + waited + renew))
}
lasts() { clock; left=$((deadline - now - ttl / 10)); [ $left -gt 0 ]; } # a tenth to spare
tell() { echo "$deadline" >"$dir/next" && mv "$dir/next" "$dir/deadline"; } # a file: it is read whole or not at all
told() { read -r deadline <"$dir/deadline" && lasts; }

# insist METHOD MS: asks until a gateway decides, all refuse to let this wait, or the time is over
insist() {
	local until rest tries=0 refused=0
	clock
	until=$((now + $2)) status=000
	while [ $refused -lt ${#gateways[@]} ] && clock && rest=$((until - now)) && [ $rest -gt 0 ]; do
		if [ $1 = POST ]; then
			[ $rest -lt 5000 ] || rest=5000
			ask POST "{\"ttl_ms\":$ttl,\"wait_ms\":$rest,\"owner\":\"bash\"}" $((rest + 3000))
		else
			ask "$1" '' $((rest < 2000 ? rest : 2000))
		fi
		case $1$status in
		POST20[01]) lasts && return ;;
		*204 | *400 | *409 | *412 | POST40[45] | POST413 | POST428) return ;;
		POST3?? | POST40[13] | POST421) refused=$((refused + 1)) ;;
		*) refused=0 ;;
		esac
		tries=$((tries + 1))
		if [ $status = 423 ]; then
			pause 100 # the place in the queue is kept for some seconds
		elif ((tries % ${#gateways[@]} == 0)); then
			pause $((after < 500 ? 500 : after < 3000 ? after : 3000))
		fi
	done
}
stop() { # stop STATUS [WHY]: ends the work, releases the lock, and exits
	trap '' TERM INT HUP
	pause 1 # a trap may run within a read -t, whose time would end the next read in here, or $(...), and the trap with it
	for group in $(jobs -p); do kill -KILL -- -$group; done 2>/dev/null # also of a job that was begun just now
	wait 2>/dev/null
	[ -z "${2:-}" ] || echo "$2" >&2
	[ ! -e "$dir/said" ] || [ "$1" != 124 ] || cat "$dir/said" >&2
	insist DELETE 5000
	rm -rf "$dir"
	exit "$1"
}
encode "$lock"
trap 'stop 143' TERM
trap 'stop 130' INT
trap 'stop 129' HUP

insist POST 30000
case $status in
200 | 201) lasts || stop 69 "the lease was over before its answer was read" ;;
401 | 403) stop 77 "the lock is not acquired: $said" ;;
409 | 412 | 423 | 429) stop 75 "the lock is not acquired: $said" ;;
[34]??) stop 64 "the lock is not acquired: $said" ;;
*)
	[[ $said != *'"quarantined"'* ]] || stop 75 "the lock is not acquired: $said"
	stop 69 "the lock is not acquired: $said"
	;;
esac
tell

work() {
	for part in {1..20}; do
		told || exit 124 # the script, which looks too, may stand still
		written=$(curl -sS -w '\n%{http_code}' -X PUT -H "Fencing-Token: $token" -d "part $part by bash" "$storage" 2>&1)
		case ${written##*$'\n'} in
		2??) sleep 0.2; continue ;;
		esac
		echo "part $part is not written: ${written//$'\n'/ }" >&2
		[[ $written != *$'\n'412 ]] || exit 124
		exit 1
	done
	echo "20 parts are written"
}
renew() { # renew NUMBER TIMEOUT: a job of its own, for the answer may take long
	ask PUT '{}' "$2"
	[ $status = 200 ] || echo "the last renewal: $said" >"$dir/said"
	echo "$status $sent $deadline $renew_at $after $turn" >"$dir/answer$1" && mv "$dir/answer$1" "$dir/answered.$1"
}
keep() {
	local number=0 newest=$sent until again next soon
	while kill -0 $$ 2>/dev/null && lasts; do # not without the script
		for file in "$dir"/answered.*; do
			[ -e "$file" ] || continue
			read -r status sent until again after next <"$file"
			rm "$file"
			case $status in
			200) turn=$next; [ $sent -gt $newest ] && newest=$sent deadline=$until renew_at=$again && tell ;;
			412) deadline=0 && tell && return ;;
			*)
				soon=$((after < left / 4 ? after : left / 4))
				soon=$((now + (soon > left / 10 ? soon : left / 10)))
				[ $soon -lt $renew_at ] && renew_at=$soon
				;;
			esac
		done
		if lasts && [ $now -ge $renew_at ]; then
			number=$((number + 1)) # here: the job would count in its own shell
			renew $number $left &
			turn=$((turn + 1)) renew_at=$((now + left / 3 + 50)) # no answer by then: another one beside it
		fi
		sleep 0.05
	done
}
work &
job=$!
keep &
while kill -0 $job 2>/dev/null; do
	told || stop 124 "the lease is over"
	pause 50
done
wait $job
stop $?
