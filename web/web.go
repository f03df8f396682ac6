// Package web is the page people watch locks on: static files, served as they
// are. There is no build step; the browser loads the ES modules under js.
//
// The page keeps to a policy of "default-src 'none'" with scripts, styles,
// images and connections from its own origin only: no inline script or style.
// It knows the HTTP interface and nothing else of the gateway.
package web

import "embed"

// Files holds index.html, which belongs at "/", and *.css, icon.svg and
// js/*.js, which belong under "/assets/".
//
//go:embed index.html *.css icon.svg js/*.js
var Files embed.FS
