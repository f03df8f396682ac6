package validate

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/opencontainers/go-digest"
)

// anyImage resolves every image to one of which nothing is known: no registry is asked.
type anyImage struct{}

func (anyImage) ResolveImageConfig(_ context.Context, ref string, _ sourceresolver.Opt) (string, digest.Digest, []byte, error) {
	return ref, "", []byte(`{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/usr/local/go/bin:/usr/bin:/bin"]}}`), nil
}

func TestDockerfile(t *testing.T) {
	text := read(t, "../docker/Dockerfile")
	results := findings(t, text)
	for _, warning := range results {
		t.Error(warning)
	}
	built, err := dockerfile2llb.Dockerfile2LLB(t.Context(), text, options(text))
	must(t, err)
	config := built.Image.Config
	if config.User != "65532:65532" || len(config.Entrypoint) != 1 || built.Image.Config.Healthcheck == nil {
		t.Errorf("the image is %+v", config)
	}
	if test := config.Healthcheck.Test; len(test) != 3 || test[0] != "CMD" {
		t.Errorf("the health check needs a shell: %q", test)
	}
	// The check itself is one: it finds what is planted.
	for _, planted := range []string{"FROM scratch\nMAINTAINER a\n", "from scratch\nCMD a b\n"} {
		if len(findings(t, []byte(planted))) == 0 {
			t.Errorf("no fault was found in %q", planted)
		}
	}
}

func options(text []byte) dockerfile2llb.ConvertOpt {
	source := llb.NewSourceMap(nil, "Dockerfile", "Dockerfile", text)
	source.Definition = &llb.Definition{}
	return dockerfile2llb.ConvertOpt{MetaResolver: anyImage{}, SourceMap: source}
}

func findings(t *testing.T, text []byte) (faults []string) {
	t.Helper()
	results, err := dockerfile2llb.DockerfileLint(t.Context(), bytes.Clone(text), options(text))
	must(t, err)
	if results.Error != nil {
		faults = append(faults, results.Error.Message)
	}
	for _, warning := range results.Warnings {
		faults = append(faults, warning.RuleName+": "+warning.Detail)
	}
	return faults
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
