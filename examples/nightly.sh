#!/usr/bin/env bash
# Writes a report of 20 parts under the lock reports/nightly. Needs bash 5, curl and Linux. docs/clients.md has the exit statuses.
#   STORAGE=http://127.0.0.1:8090/report bash examples/nightly.sh
#
# The work and the renewals are jobs of their own. The script itself only looks at the clock and at what the renewals tell it,
# and kills both in time. It starts no program and waits for none while it does: on a busy machine that can outlast the lease.
# If you change it: a signal that comes while bash 5.2 runs $(...) may not run its trap, and `read -t` from a pipe may return
# the first half of a line.
set -um # -m: a job is a process group
gateway=${FENCEPOST:-http://127.0.0.1:8080} storage=${STORAGE:-} lock=reports/nightly ttl=30000
authorization=${FENCEPOST_KEY:+Authorization: Bearer $FENCEPOST_KEY}
[ -n "$storage" ] || { echo "set STORAGE to the URL that takes the parts of the report, such as http://127.0.0.1:8090/report" >&2; exit 2; }

hex() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }
lease_id="01$(hex 12 | tr a-f A-F).$(hex 16)" dir=$(mktemp -d) answer='' job='' keeper='' asked=''

# From here on the script itself runs no $(...): bash 5.2 may lose a trap there.
clock() { local up; read -r up _ </proc/uptime; now=${up/./}0; } # ms, suspended time included

# ask METHOD BODY TIMEOUT: one request. Lease id and key are in no command line.
ask() {
	local seconds file=$dir/$1.$BASHPID
	printf -v seconds '%d.%03d' $(($3 / 1000)) $(($3 % 1000))
	clock
	sent=$now
	curl -s --max-time "$seconds" -w '\n%{http_code}' -X "$1" -d "$2" \
		-H @<(printf 'Lease-Id: %s\n%s' "$lease_id" "$authorization") "$gateway/locks/$lock" >"$file" &
	asked=$! status=000
	if wait $asked; then # a trap interrupts it
		read -rd '' answer <"$file" # to its end
		status=${answer##*$'\n'}
	fi
	rm -f "$file"
	asked=''
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

stop() { # ends the work, releases the lock, and exits
	trap '' TERM INT HUP
	for group in $job $keeper $asked; do kill -KILL -- -$group; done 2>/dev/null
	wait $job $keeper $asked 2>/dev/null
	[ "$1" = 124 ] && echo "the lease is over" >&2
	ask DELETE '' 2000
	rm -rf "$dir"
	exit "$1"
}
trap 'stop 143' TERM
trap 'stop 130' INT
trap 'stop 129' HUP
exec {never}<> <(:) # a pipe on which nothing comes: to read from it is to sleep, without a program
pause() { read -rt "$1" -u $never; }

clock
give_up=$((now + 30000))
while :; do
	clock
	wait=$((give_up - now))
	[ $wait -gt 0 ] || { echo "the lock could not be acquired" >&2; stop 75; }
	ask POST "{\"ttl_ms\":$ttl,\"wait_ms\":$wait,\"owner\":\"bash\"}" $((wait + 5000))
	case $status in
	200 | 201) granted && lasts && break; pause 1 ;;
	000 | 429 | 5??) pause 1 ;; # not known, or not now: the same request again
	*) echo "the lock could not be acquired: $answer" >&2; stop 75 ;;
	esac
done
tell

work() {
	for part in {1..20}; do
		told || exit 124 # the script, which looks too, may stand still
		written=$(curl -s -o /dev/null -w '%{http_code}' -X PUT -H "Fencing-Token: $token" -d "part $part by bash" "$storage")
		case $written in
		2??) ;;
		412) exit 124 ;;
		*) echo "part $part is not written: $written" >&2; exit 1 ;;
		esac
		sleep 0.2
	done
}
renew() { # renew NUMBER TIMEOUT: a job of its own, for the answer may take long
	ask PUT '{}' "$2"
	[ "$status" != 200 ] || granted || status=000
	echo "$status $sent $deadline $renew_at" >"$dir/answer$1" && mv "$dir/answer$1" "$dir/answered.$1"
}
keep() {
	local number=0 newest=$sent until again
	while kill -0 $$ 2>/dev/null && lasts; do # not without the script
		for file in "$dir"/answered.*; do
			[ -e "$file" ] || continue
			read -r status sent until again <"$file"
			rm "$file"
			case $status in
			200) [ $sent -gt $newest ] && newest=$sent deadline=$until renew_at=$again && tell ;;
			412) deadline=0 && tell && return ;;
			*) [ $((now + left / 10)) -lt $renew_at ] && renew_at=$((now + left / 10)) ;;
			esac
		done
		if lasts && [ $now -ge $renew_at ]; then
			number=$((number + 1)) # here: the job would count in its own shell
			renew $number $left &
			renew_at=$((now + left / 3 + 50)) # no answer by then: another one beside it
		fi
		sleep 0.05
	done
}
work &
job=$!
keep &
keeper=$!
while kill -0 $job 2>/dev/null; do
	told || stop 124
	pause 0.05
done
wait $job
status=$? job=''
stop $status
