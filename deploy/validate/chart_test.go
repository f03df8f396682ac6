package validate

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

const chartDir = "../helm/fencepost"

var update = flag.Bool("update", false, "write ../kubernetes from the chart")

// manifests are what ../kubernetes has: the chart with these values.
var manifests = map[string]map[string]any{
	"embedded.yaml": {},
	"raft.yaml":     {"store": "raft"},
	"redis.yaml":    {"store": "redis"},
}

// further values, so that every branch of the templates is rendered.
var further = map[string]map[string]any{
	"all of it": {
		"store": "redis", "allowedHosts": []any{"locks.example"}, "settings": map[string]any{"DEFAULT_TTL": "10s", "STRICT": true},
		"imagePullSecrets": []any{map[string]any{"name": "registry"}}, "podAnnotations": map[string]any{"a": "b"},
		"nodeSelector": map[string]any{"disk": "ssd"}, "tolerations": []any{map[string]any{"operator": "Exists"}},
		"redis": map[string]any{"sentinelUsername": "fencepost", "ca": true, "certificate": true, "ports": []any{6379, 26379}},
		"tls":   map[string]any{"secret": "locks-tls", "clientCA": true}, "keys": map[string]any{"secret": "locks-keys"},
	},
	"a trial":            {"insecureNoAuth": true},
	"a trial with TLS":   {"insecureNoAuth": true, "tls": map[string]any{"secret": "locks-tls"}},
	"five nodes":         {"store": "raft", "raft": map[string]any{"replicas": 5, "storageClass": "fast", "secret": "locks-cluster"}},
	"a class of volumes": {"embedded": map[string]any{"storageClass": "fast"}, "networkPolicy": map[string]any{"enabled": false}},
	"traces": {
		"env":           []any{map[string]any{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}},
		"networkPolicy": map[string]any{"egress": []any{map[string]any{"ports": []any{map[string]any{"port": 4318}}}}},
	},
}

func TestChart(t *testing.T) {
	for name, values := range manifests {
		check(t, name, values)
		text := "# What the chart of deploy/helm renders for this store, for who has no Helm: docs/operations.md.\n" + render(t, values)
		path := "../kubernetes/" + name
		if *update {
			must(t, os.WriteFile(path, []byte(text), 0o644))
		}
		if text != string(read(t, path)) {
			t.Errorf("%s is not what the chart renders; go test -run TestChart -update writes it", path)
		}
	}
	for name, values := range further {
		check(t, name, values)
	}
}

// What would be served to everybody is refused until somebody says so.
func TestChartRefuses(t *testing.T) {
	for name, values := range map[string]map[string]any{
		"no keys": {"keys": map[string]any{"secret": ""}}, "another store": {"store": "postgres"},
	} {
		if _, err := try(t, values); err == nil {
			t.Errorf("%s: nothing is refused", name)
		}
	}
}

func check(t *testing.T, name string, values map[string]any) {
	t.Helper()
	for _, message := range lint.All(chartDir, values, "fencepost", true).Messages {
		if message.Severity > support.InfoSev {
			t.Errorf("%s: helm lint: %s", name, message)
		}
	}
	seen := decode(t, name, render(t, values))
	want := []string{"NetworkPolicy", "Service", "StatefulSet"}
	if values["store"] == "redis" {
		want = []string{"Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service"}
	}
	if values["store"] == "raft" {
		want = []string{"NetworkPolicy", "PodDisruptionBudget", "Service", "Service", "StatefulSet"}
	}
	if on, _ := values["networkPolicy"].(map[string]any); on["enabled"] == false {
		want = slices.DeleteFunc(want, func(kind string) bool { return kind == "NetworkPolicy" })
	}
	if slices.Sort(seen); !slices.Equal(seen, want) {
		t.Errorf("%s has %v, want %v", name, seen, want)
	}
}

func try(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	chart, err := loader.Load(chartDir)
	must(t, err)
	release := chartutil.ReleaseOptions{Name: "fencepost", Namespace: "fencepost", IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, values, release, chartutil.DefaultCapabilities)
	must(t, err)
	return engine.Engine{Strict: true}.Render(chart, all)
}

func render(t *testing.T, values map[string]any) string {
	t.Helper()
	files, err := try(t, values)
	must(t, err)
	var b strings.Builder
	for _, name := range []string{"workload", "network"} {
		for part := range strings.SplitSeq(files["fencepost/templates/"+name+".yaml"], "\n---\n") {
			fmt.Fprintf(&b, "---\n%s\n", strings.TrimSpace(part))
		}
	}
	return strings.TrimPrefix(b.String(), "---\n")
}

// decode reads objects into their types, without a field that these do not have, and holds
// pods against the strictest of the Pod Security Standards.
func decode(t *testing.T, name, text string) (kinds []string) {
	t.Helper()
	for part := range strings.SplitSeq(text, "---\n") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		var head struct{ APIVersion, Kind string }
		must(t, yaml.Unmarshal([]byte(part), &head))
		kinds = append(kinds, head.Kind)
		strict := func(into any) {
			if err := yaml.UnmarshalStrict([]byte(part), into); err != nil {
				t.Errorf("%s: %s: %v", name, head.Kind, err)
			}
		}
		switch head.APIVersion + " " + head.Kind {
		case "apps/v1 StatefulSet":
			var o apps.StatefulSet
			strict(&o)
			inCluster := o.Spec.PodManagementPolicy == apps.ParallelPodManagement
			if (*o.Spec.Replicas == 1) == inCluster {
				t.Errorf("%s: %d gateways, in a cluster: %t", name, *o.Spec.Replicas, inCluster)
			}
			restricted(t, name, &o.Spec.Template)
		case "apps/v1 Deployment":
			var o apps.Deployment
			strict(&o)
			restricted(t, name, &o.Spec.Template)
		case "policy/v1 PodDisruptionBudget":
			strict(new(policyv1.PodDisruptionBudget))
		case "v1 Service":
			strict(new(core.Service))
		case "networking.k8s.io/v1 NetworkPolicy":
			strict(new(networking.NetworkPolicy))
		default:
			t.Errorf("%s has a %s %s", name, head.APIVersion, head.Kind)
		}
	}
	return kinds
}

func restricted(t *testing.T, name string, pod *core.PodTemplateSpec) {
	t.Helper()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	must(t, err)
	level := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	for _, result := range evaluator.EvaluatePod(level, &pod.ObjectMeta, &pod.Spec) {
		if !result.Allowed {
			t.Errorf("%s: %s: %s", name, result.ForbiddenReason, result.ForbiddenDetail)
		}
	}
	gateway := pod.Spec.Containers[0]
	if !*gateway.SecurityContext.ReadOnlyRootFilesystem || gateway.LivenessProbe == nil || gateway.ReadinessProbe == nil {
		t.Errorf("%s: %+v", name, gateway)
	}
	volumes := map[string]bool{"locks": true} // of the StatefulSet
	for _, volume := range pod.Spec.Volumes {
		volumes[volume.Name] = true
	}
	var paths []string
	for _, mount := range gateway.VolumeMounts {
		paths = append(paths, mount.MountPath+"/")
		if !volumes[mount.Name] {
			t.Errorf("%s mounts %s, which it does not have", name, mount.Name)
		}
	}
	settings := map[string]string{}
	for _, env := range gateway.Env {
		settings[env.Name] = env.Value
		if strings.HasSuffix(env.Name, "_FILE") && !slices.ContainsFunc(paths, func(path string) bool { return strings.HasPrefix(env.Value, path) }) {
			t.Errorf("%s: %s is %s, which is not mounted", name, env.Name, env.Value)
		}
	}
	if trial := strings.HasPrefix(name, "a trial"); (settings["FENCEPOST_KEYS_FILE"] == "") != trial || (settings["FENCEPOST_INSECURE_NO_AUTH"] != "") != trial {
		t.Errorf("%s: the keys are %q, and insecure is %q", name, settings["FENCEPOST_KEYS_FILE"], settings["FENCEPOST_INSECURE_NO_AUTH"])
	}
	secured := settings["FENCEPOST_TLS_CERT_FILE"] != ""
	for _, probe := range []*core.Probe{gateway.LivenessProbe, gateway.ReadinessProbe, gateway.StartupProbe} {
		if (probe.HTTPGet.Scheme == core.URISchemeHTTPS) != secured {
			t.Errorf("%s: a probe asks by %q, TLS is %v", name, probe.HTTPGet.Scheme, secured)
		}
	}
}

// TestStrictDecoding: a field in the wrong place is found.
func TestStrictDecoding(t *testing.T) {
	text := bytes.Replace([]byte(render(t, manifests["redis.yaml"])), []byte("readinessProbe"), []byte("readynessProbe"), 1)
	part := bytes.Split(text, []byte("---\n"))[0]
	if err := yaml.UnmarshalStrict(part, new(apps.Deployment)); err == nil {
		t.Error("a misspelt field was not found")
	}
}
