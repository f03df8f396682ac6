package http

import (
	"bytes"
	"compress/gzip"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"fencepost/api"
	"fencepost/internal/fencing"
)

// pagePolicy lets the page load what this server serves and nothing else: no
// inline script or style, no frame around it, no form; and no script turns text into
// markup or code (Trusted Types).
var pagePolicy = []string{"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"}

// assetTypes are the kinds of file served, by extension. What is not here is
// not served: a type must never be guessed.
var assetTypes = map[string][]string{
	".css":   {"text/css; charset=utf-8"},
	".js":    {"text/javascript; charset=utf-8"},
	".svg":   {"image/svg+xml"},
	".png":   {"image/png"},
	".ico":   {"image/x-icon"},
	".woff2": {"font/woff2"},
}

var (
	htmlType = []string{"text/html; charset=utf-8"}
	yamlType = []string{"application/yaml"}
	textType = []string{"text/plain; charset=utf-8"}
)

// openapi sends the contract. A browser that is sent to it asks for HTML before anything
// else; it would save a file of YAML's own type, where somebody wants to read it.
func openapi(c *call) {
	contentType := yamlType
	for _, accept := range c.r.Header["Accept"] {
		if strings.HasPrefix(accept, "text/html") {
			contentType = textType
		}
	}
	c.send(200, contentType, api.OpenAPI)
}

func page(c *call) { c.serveFile("index.html", htmlType) }

func asset(c *call) {
	name := c.wildcard
	c.serveFile(name, assetTypes[path.Ext(name)])
}

func (c *call) serveFile(name string, contentType []string) {
	missing := &fencing.Error{Code: fencing.CodeNotFound, Detail: "there is no such file"}
	if c.s.page == nil || contentType == nil || !fs.ValidPath(name) {
		c.writeError(missing)
		return
	}
	body, err := fs.ReadFile(c.s.page, name)
	if err != nil {
		c.writeError(missing)
		return
	}
	h := c.Header()
	h["Content-Security-Policy"] = pagePolicy
	h["Vary"] = []string{"Accept-Encoding"}
	if small := c.s.small[name]; small != nil && acceptsGzip(c.r.Header["Accept-Encoding"]) {
		h["Content-Encoding"] = []string{"gzip"}
		body = small
	}
	c.send(200, contentType, body)
}

// acceptsGzip reports whether an Accept-Encoding names gzip, and not with the weight 0.
func acceptsGzip(values []string) bool {
	for _, value := range values {
		for coding := range strings.SplitSeq(value, ",") {
			name, weight, _ := strings.Cut(coding, ";")
			if strings.EqualFold(strings.TrimSpace(name), "gzip") {
				q, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(weight), "q="), 64)
				return err != nil || q > 0
			}
		}
	}
	return false
}

// compress returns the files of the page that are smaller in gzip, by name. They are the
// same for everybody and hold no secret.
func compress(page fs.FS) map[string][]byte {
	small := map[string][]byte{}
	if page == nil {
		return small
	}
	// What can't be read is not there, and served as such.
	_ = fs.WalkDir(page, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil
		}
		body, err := fs.ReadFile(page, name)
		if err != nil {
			return nil
		}
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		w.Write(body) // to memory: it can't fail
		w.Close()
		if b.Len() < len(body) {
			small[name] = b.Bytes()
		}
		return nil
	})
	return small
}
