package sql

import (
	"testing"

	"fencepost/internal/sql/sqltest"
)

func TestMain(m *testing.M) { sqltest.Main(m) }
