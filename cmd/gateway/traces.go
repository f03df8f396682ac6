package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// Traces are set by OpenTelemetry's own variables (its specification, "Environment Variable
// Specification" and "OpenTelemetry Protocol Exporter"), which its SDK reads: endpoint,
// headers, certificates, sampler, limits, resource. Here stands when there are any, and what
// of those variables this gateway can't do.

// flushTimeout bounds how long the end of the gateway waits for the last spans to be taken.
const flushTimeout = 5 * time.Second

// wantsTraces reports whether the environment names somebody to send spans to.
func wantsTraces() bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return false
	}
	return os.Getenv("OTEL_TRACES_EXPORTER") != "" ||
		os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != ""
}

// traceFaults finds what the SDK would pass over, or log with a secret in it.
func traceFaults() (faults []error) {
	if !wantsTraces() {
		return nil
	}
	if exporter := os.Getenv("OTEL_TRACES_EXPORTER"); exporter != "" && exporter != "otlp" {
		faults = append(faults, fmt.Errorf("OTEL_TRACES_EXPORTER: %q must be otlp or none", exporter))
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"} {
		if protocol := os.Getenv(name); protocol != "" && protocol != "http/protobuf" {
			faults = append(faults, fmt.Errorf("%s: %q must be http/protobuf, which collectors take on port 4318", name, protocol))
		}
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		if endpoint := os.Getenv(name); endpoint != "" {
			if u, err := url.Parse(endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
				faults = append(faults, fmt.Errorf("%s: it must be a URL like http://collector:4318", name))
			}
		}
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"} {
		headers := os.Getenv(name)
		for i, header := range strings.Split(headers, ",") {
			key, value, ok := strings.Cut(header, "=")
			if _, err := url.PathUnescape(value); headers != "" && (!ok || strings.TrimSpace(key) == "" || err != nil) {
				faults = append(faults, fmt.Errorf("%s: entry %d is not name=value, with the value percent-encoded", name, i+1))
			}
		}
	}
	return faults
}

// tracerProvider makes spans and sends them in the background.
type tracerProvider struct{ *sdk.TracerProvider }

// newTracerProvider returns nil if nobody is to be sent spans to.
func newTracerProvider(ctx context.Context, log *slog.Logger) (*tracerProvider, error) {
	if !wantsTraces() {
		return nil, nil
	}
	otel.SetLogger(logr.FromSlogHandler(log.Handler()))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("spans were lost: they could not be sent", "error", err) }))
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	// Of two attributes of one name the later counts: what the operator sets is last.
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "fencepost"), attribute.String("service.version", version)),
		resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("traces: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	log.Info("spans are sent", "endpoint", redacted(cmp.Or(
		os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"), "https://localhost:4318")))
	return &tracerProvider{sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(about))}, nil
}

// redacted returns a URL without the password that it may have.
func redacted(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Redacted()
}

// end sends what is left. A collector that is away doesn't make the gateway's end a failure.
func (p *tracerProvider) end(log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := p.Shutdown(ctx); err != nil {
		log.Warn("the last spans were lost: they could not be sent", "error", err)
	}
}
