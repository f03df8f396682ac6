// Package http is the HTTP interface of the gateway: the routes, the wire forms
// and the status codes of api/openapi.yaml.
//
// It guarantees that a body is read to its end before the store is asked, that
// nothing out of range reaches the store, that the secret of a lease leaves in
// the answer to the POST that asked for it and nowhere else, and that a grant
// whose answer could not be handed over is given back (P6). A client that closes,
// resets or half-closes its connection has left, also while it waits. It decides
// nothing about locks: that is the store's; what takes time is the watchdog's.
package http
