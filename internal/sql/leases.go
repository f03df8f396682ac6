package sql

import _ "embed"

// The statements that make the table of live leases, the view of it and the function guard, apart by
// lines that are "-- ;;". Each may be run again. In PostgreSQL they stand in the schema fencepost,
// which must be there; in MariaDB and MySQL in the database of the connection.
var (
	//go:embed schema/postgres_leases.sql
	postgresLeases string

	//go:embed schema/mysql_leases.sql
	mysqlLeases string
)
