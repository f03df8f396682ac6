// Package variables knows the environment variables of the gateway by name, so that each program tells those of the other from
// misspelt ones.
package variables

import (
	"regexp"
	"strings"
)

// Prefix is what all begin with.
const Prefix = "FENCEPOST"

// Gateway lists the settings of the gateway. TestSettingsAreListed of cmd/gateway holds it to what the gateway reads.
var Gateway = strings.Fields(`
FENCEPOST_LISTEN_ADDR FENCEPOST_ALLOWED_HOSTS FENCEPOST_KEYS_FILE FENCEPOST_TLS_CERT_FILE FENCEPOST_TLS_KEY_FILE
FENCEPOST_TLS_CLIENT_CA_FILE FENCEPOST_INSECURE_NO_AUTH FENCEPOST_ADMIN_ADDR FENCEPOST_MAX_CONNECTIONS
FENCEPOST_MAX_CONNECTIONS_PER_CLIENT FENCEPOST_MAX_CONNECTION_RATE_PER_CLIENT FENCEPOST_DRAIN_TIMEOUT FENCEPOST_DRAIN_DELAY
FENCEPOST_STORE FENCEPOST_STORE_FILE FENCEPOST_DATA_DIR FENCEPOST_EXPECT_STORE FENCEPOST_MAX_CLOCK_SKEW FENCEPOST_STRICT
FENCEPOST_CLUSTER_ADDR FENCEPOST_CLUSTER_LISTEN_ADDR FENCEPOST_CLUSTER_SECRET FENCEPOST_CLUSTER_SECRET_FILE
FENCEPOST_CLUSTER_TLS_CERT_FILE FENCEPOST_CLUSTER_TLS_KEY_FILE FENCEPOST_CLUSTER_TLS_CA_FILE FENCEPOST_REDIS_USERNAME
FENCEPOST_REDIS_PASSWORD FENCEPOST_REDIS_PASSWORD_FILE FENCEPOST_SENTINEL_USERNAME FENCEPOST_SENTINEL_PASSWORD
FENCEPOST_SENTINEL_PASSWORD_FILE FENCEPOST_REDIS_TLS_CERT_FILE FENCEPOST_REDIS_TLS_KEY_FILE FENCEPOST_REDIS_TLS_CA_FILE
FENCEPOST_REDIS_REPLICA_ACKS FENCEPOST_QUARANTINE FENCEPOST_DEFAULT_TTL FENCEPOST_MIN_TTL FENCEPOST_MAX_TTL
FENCEPOST_MAX_HOLDERS_PER_NAME FENCEPOST_MAX_WAIT FENCEPOST_MAX_WAITERS FENCEPOST_MAX_WAITERS_PER_NAME
FENCEPOST_MAX_WAITERS_PER_CLIENT FENCEPOST_MAX_STREAMS FENCEPOST_MAX_STREAMS_PER_CLIENT FENCEPOST_MAX_REQUEST_RATE_PER_PRINCIPAL
FENCEPOST_MAX_REQUESTS_PER_PRINCIPAL FENCEPOST_LOG_LEVEL FENCEPOST_AUDIT_REQUIRED FENCEPOST_LOG_FORMAT`)

// Service matches what Kubernetes puts into the environment of every pod when a service's name begins with "fencepost".
var Service = regexp.MustCompile(`_SERVICE_(HOST|PORT(_.*)?)$|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_.*)?)?$`)

// maxTypos is how far from a known word another one may be to be taken for it, and half of what it has behind the prefix of
// a setting; two of three letters, that two may be swapped.
const maxTypos = 4

// Nearest returns the word that was probably meant, such as a setting or a command; "" if none is near.
func Nearest(word string, known []string) string {
	best, least := "", min(maxTypos, (len(strings.TrimPrefix(word, Prefix+"_"))+1)/2)+1
	for _, candidate := range known {
		if typos := editDistance(word, candidate); typos < least {
			best, least = candidate, typos
		}
	}
	return best
}

// editDistance is how many bytes have to be inserted, removed or replaced to make b of a.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
