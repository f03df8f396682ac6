package fencetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// URL is storage that is written with PUT, and read with GET, at a URL. A write carries the
// header Fencing-Token: the token, and for a permit its slot as a parameter
// (5;slot=3). An answer of 2xx says that it was admitted, one of 4xx that it was refused;
// any other that it can't be told. GET answers 404 for what was never written.
type URL struct {
	URL       string // {resource} in it stands for the name; without one the name is added after a slash
	WriteOnly bool   // it can't be read

	Client *http.Client // nil: http.DefaultClient
}

// maxBody bounds what is read of an answer.
const maxBody = 1 << 20

// Write sends PUT.
func (u URL) Write(ctx context.Context, w Write) error {
	value := w.Token
	if w.Slot >= 0 {
		value += ";slot=" + strconv.Itoa(w.Slot)
	}
	status, body, err := u.send(ctx, http.MethodPut, w.Resource, value, w.Value)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	case status >= 200 && status < 300:
		return nil
	case status >= 400 && status < 500:
		return fmt.Errorf("%w: %d", ErrRefused, status)
	}
	return fmt.Errorf("%w: %d %s", ErrUnknown, status, last(body, 500))
}

// Read sends GET.
func (u URL) Read(ctx context.Context, resource string) (string, error) {
	if u.WriteOnly {
		return "", errors.ErrUnsupported
	}
	switch status, body, err := u.send(ctx, http.MethodGet, resource, "", ""); {
	case err != nil:
		return "", err
	case status == http.StatusNotFound:
		return "", nil
	case status != http.StatusOK:
		return "", fmt.Errorf("reading is answered %d %s", status, last(body, 500))
	default:
		return body, nil
	}
}

func (u URL) send(ctx context.Context, method, resource, token, content string) (status int, body string, err error) {
	address := strings.ReplaceAll(u.URL, "{resource}", url.PathEscape(resource))
	if address == u.URL {
		address = strings.TrimSuffix(u.URL, "/") + "/" + url.PathEscape(resource)
	}
	r, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(content))
	if err != nil {
		return 0, "", err
	}
	if method == http.MethodPut {
		r.Header.Set("Fencing-Token", token)
	}
	client := u.Client
	if client == nil {
		client = http.DefaultClient
	}
	response, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	return response.StatusCode, string(answer), err
}
