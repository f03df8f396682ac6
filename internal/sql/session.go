package sql

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// What a session has at its start an administrator sets for a server, a database or a user. None of it may change what a gateway does.
//
// PostgreSQL: behind a pooler a session can't be set, so what a turn needs it sets itself, or it does without:
//
//	client_encoding                  UTF8 from the start of the session: poolers follow it, and it prevails
//	bytea_output                     both forms are read: octets
//	array_nulls                      no array has nulls
//	default_transaction_read_only    what writes says that it does: beginWriting
//	default_transaction_isolation    so does that, and a read goes by now(), which is before all that it reads
//	default_transaction_deferrable   means nothing where is written
//	client_min_messages, lock_timeout, idle_in_transaction_session_timeout, synchronous_commit, enable_seqscan
//	                                 of a turn: the function turn; of many messages: ownBounds
//	search_path                      of the functions: their own. Elsewhere names are whole
//	DateStyle, IntervalStyle, TimeZone, extra_float_digits, lc_messages
//	                                 no time and no fraction is read as text, and errors are known by SQLSTATE
//	standard_conforming_strings, backslash_quote
//	                                 no literal has a backslash
//	statement_timeout, transaction_timeout, idle_session_timeout
//	                                 too short ones slow things down: the checks of doctor name them
//	the encoding of the database     of the owners that it may not hold it is given ASCII: holdable
//
// MariaDB and MySQL: mysqlSession sets these:
//
//	character_set_*, collation_*     set names
//	sql_mode                         how statements are read, and that nothing is cut off silently
//	autocommit, isolation, read only of what is not in a transaction, and of those that are
//	completion_type                  or else a commit may begin another transaction, or end the connection
//	innodb_lock_wait_timeout, lock_wait_timeout, max_statement_time
//	net_read_timeout, net_write_timeout
//	                                 who stands still in the middle of a message, or does not take an answer, is thrown out
//	sql_safe_updates, sql_select_limit, sql_big_selects
//	                                 refuse statements, or cut off what they read
//	group_concat_max_len             MariaDB cuts off json_arrayagg there
//	unique_checks, foreign_key_checks
//	                                 off, an insert into an empty table locks all of it
//
// and these mean nothing: time_zone, for all times are UTC, and the server is never asked for its local one; default_storage_engine and
// character_set_server, for the tables say theirs; check_constraint_checks, sql_auto_is_null, old_mode, the optimizer's, wait_timeout (a
// connection that was cut off between two turns is opened again).

// beginWriting begins a transaction that writes.
const beginWriting = "begin isolation level read committed read write"

// ownBounds returns a statement of PostgreSQL that bounds a transaction of many messages: by lock for each wait for a lock, by idle between two messages,
// and by nothing else. Which settings there are depends on the version.
func ownBounds(lock, idle time.Duration) string {
	return fmt.Sprintf(`select set_config(name, case name when 'lock_timeout' then '%d' when 'idle_in_transaction_session_timeout' then '%d' else '0' end, true)
		from pg_settings where name in ('lock_timeout', 'statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout')`,
		lock.Milliseconds(), idle.Milliseconds())
}

// holdable returns a text that the encoding of the database can hold. Only people see it, in the view of leases: the log has the
// text itself, as octets. SQL_ASCII takes all octets as they are.
func (c *postgresConn) holdable(text string) string {
	if encoding := c.PgConn().ParameterStatus("server_encoding"); encoding == "UTF8" || encoding == "SQL_ASCII" {
		return text
	}
	return strings.Map(func(r rune) rune {
		if r >= 0x80 {
			return '?'
		}
		return r
	}, text)
}

// octets reads a bytea in any form that a server may send it in: binary, or as text by bytea_output. NULL is nil.
type octets []byte

// ScanBytes implements pgtype.BytesScanner.
func (o *octets) ScanBytes(data []byte) error {
	*o = bytes.Clone(data)
	return nil
}

// ScanText implements pgtype.TextScanner.
func (o *octets) ScanText(text pgtype.Text) (err error) {
	switch {
	case !text.Valid:
		*o = nil
	case strings.HasPrefix(text.String, `\x`):
		*o, err = hex.DecodeString(text.String[2:])
	default:
		*o, err = unescaped(text.String)
	}
	return err
}

// unescaped reads the form escape: an octet is itself, or \ and three octal digits, and a backslash is two.
func unescaped(text string) ([]byte, error) {
	data := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] != '\\':
			data = append(data, text[i])
		case strings.HasPrefix(text[i+1:], `\`):
			data = append(data, '\\')
			i++
		default:
			digits := text[i+1 : min(i+4, len(text))]
			if len(digits) < 3 || strings.Trim(digits, "01234567") != "" || digits[0] > '3' {
				return nil, errors.New("a value of type bytea is neither in hex nor escaped")
			}
			data = append(data, (digits[0]-'0')<<6|(digits[1]-'0')<<3|(digits[2]-'0'))
			i += 3
		}
	}
	return data, nil
}
