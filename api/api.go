// Package api holds the contract of the HTTP interface.
package api

import _ "embed"

// OpenAPI is openapi.yaml: the contract in OpenAPI 3.1.
//
//go:embed openapi.yaml
var OpenAPI []byte
